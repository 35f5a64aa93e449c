//! The hello, by which the dialler of a link's stream names the stream and proves that the secret
//! of both processes is its own. No answer is awaited: data follow at once, like the early data of
//! TLS (RFC 8446, 2.3). The secret is that of the processes' control connection, whose handshake
//! has authenticated both.
//! Law: pure; the tag covers every byte before it, and the keys of the stream derive from all of
//! them. Each hello has a nonce, so no two streams have the same keys.

use super::handshake::NONCE_LEN;
use super::keys::{LinkSecret, TAG_LEN};
use super::rejected::Rejection;
use crate::codec::{Decoder, Encoder};
use crate::transport::LinkContent;

/// Bytes of a hello: magic, communicator, dialler, acceptor, content, number, zeros, nonce, tag.
pub(in crate::bootstrap) const HELLO_LEN: usize = 96;
const TAG_AT: usize = HELLO_LEN - TAG_LEN;
pub(in crate::bootstrap) const MAGIC: [u8; 8] = *b"RRLINK\x01\0";

pub(in crate::bootstrap) type HelloBytes = [u8; HELLO_LEN];

/// A stream of a link, as its two processes know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::bootstrap) struct LinkStream {
    /// The key of the communicator that the link belongs to.
    pub(in crate::bootstrap) communicator: u64,
    /// The processes by their ranks in the communicator that met.
    pub(in crate::bootstrap) dialler: u32,
    pub(in crate::bootstrap) acceptor: u32,
    pub(in crate::bootstrap) content: LinkContent,
    /// The number of the stream among those of the link.
    pub(in crate::bootstrap) index: u16,
}

impl LinkStream {
    /// The hello of this stream. A nonce must be used once only.
    pub(in crate::bootstrap) fn hello(
        &self,
        secret: &LinkSecret,
        nonce: [u8; NONCE_LEN],
    ) -> HelloBytes {
        let mut out = [0; HELLO_LEN];
        let to = Encoder(&mut out[..]).raw(&MAGIC).u64(self.communicator).u32(self.dialler);
        let to = to.u32(self.acceptor).u16(self.content as u16).u16(self.index).u32(0);
        to.raw(&nonce);
        let tag = secret.tag(&out[..TAG_AT]);
        out[TAG_AT..].copy_from_slice(&tag);
        out
    }

    /// The stream that a hello names, without a proof.
    pub(in crate::bootstrap) fn decode(hello: &HelloBytes) -> Result<Self, Rejection> {
        let mut fields = Decoder(hello);
        if fields.array()? != MAGIC {
            return Err(Rejection::Malformed);
        }
        let communicator = fields.u64()?;
        let (dialler, acceptor) = (fields.u32()?, fields.u32()?);
        let content = fields.u16()?;
        let content = LinkContent::from_number(content.into()).ok_or(Rejection::Malformed)?;
        let index = fields.u16()?;
        if fields.u32()? != 0 {
            return Err(Rejection::Malformed);
        }
        Ok(Self { communicator, dialler, acceptor, content, index })
    }
}

/// True if these may be the first bytes of a hello.
pub(in crate::bootstrap) fn may_begin(bytes: &[u8]) -> bool {
    MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())])
}

/// A nonce; none if the system has no random bytes.
pub(in crate::bootstrap) fn draw_nonce() -> Option<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).ok()?;
    Some(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::handshake::Side;
    use crate::transport::aead::TAG;

    const STREAM: LinkStream = LinkStream {
        communicator: 7,
        dialler: 3,
        acceptor: 5,
        content: LinkContent::Messages,
        index: 1,
    };

    #[test]
    fn a_hello_decodes_as_encoded_and_no_changed_bit_passes() {
        let secret = LinkSecret::of_test(1);
        let hello = STREAM.hello(&secret, [9; NONCE_LEN]);
        assert_eq!(LinkStream::decode(&hello), Ok(STREAM));
        assert!(secret.verify(&hello));
        assert!(!LinkSecret::of_test(2).verify(&hello));
        for bit in 0..8 * HELLO_LEN {
            let mut changed = hello;
            changed[bit / 8] ^= 1 << (bit % 8);
            let passes = LinkStream::decode(&changed).is_ok() && secret.verify(&changed);
            assert!(!passes, "bit {bit}");
        }
        for len in 0..=HELLO_LEN {
            assert!(may_begin(&hello[..len]));
        }
        assert!(!may_begin(b"GET / HTTP/1.1"));
    }

    #[test]
    fn each_nonce_gives_keys_of_its_own() {
        let secret = LinkSecret::of_test(1);
        let piece = |nonce: u8, side| {
            let hello = STREAM.hello(&secret, [nonce; NONCE_LEN]);
            let mut piece = vec![7; 16 + TAG];
            secret.stream_keys(side, &hello).unwrap().sealer.seal(&mut piece).unwrap();
            piece
        };
        let pieces = [
            piece(1, Side::Dialler),
            piece(1, Side::Acceptor),
            piece(2, Side::Dialler),
            piece(2, Side::Acceptor),
        ];
        for (at, one) in pieces.iter().enumerate() {
            assert!(!pieces[..at].contains(one), "{at}");
        }
        let hello = STREAM.hello(&secret, [1; NONCE_LEN]);
        let mut acceptor = secret.stream_keys(Side::Acceptor, &hello).unwrap();
        let mut out = [0; 16];
        assert!(acceptor.opener.open_to(&pieces[0], &mut out).is_ok() && out == [7; 16]);
    }
}
