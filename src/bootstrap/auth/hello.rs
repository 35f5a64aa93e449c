//! The hello, by which the dialler of a link's stream names the stream and proves that the secret
//! of both processes is its own. No answer is awaited: data follow at once, like the early data of
//! TLS (RFC 8446, 2.3). A connection that takes the place of a broken one is the exception: its
//! dialler awaits the number of bytes that have come. The secret is that of the processes' control
//! connection, whose handshake has authenticated both.
//! Law: pure; the tag covers every byte before it, and the keys of the stream derive from all of
//! them but the generation and the received bytes. Each stream has a nonce, so no two have the same
//! keys; the bytes of a stream are sealed once, and sent again as they are.

use super::handshake::NONCE_LEN;
use super::keys::{LinkSecret, TAG_LEN};
use super::rejected::Rejection;
use crate::codec::{Decoder, Encoder};
use crate::transport::LinkContent;
use crate::transport::tcp::ANSWER_LEN;

/// Bytes of a hello: magic, communicator, dialler, acceptor, content, number, generation, received,
/// nonce, tag.
pub(in crate::bootstrap) const HELLO_LEN: usize = 104;
const TAG_AT: usize = HELLO_LEN - TAG_LEN;
pub(in crate::bootstrap) const MAGIC: [u8; 8] = *b"RRLINK\x02\0";

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

/// The content of a hello, beside its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) struct Hello {
    pub(in crate::bootstrap) stream: LinkStream,
    /// The number of the connection among those of the stream. All but the first one, which is 0,
    /// take the place of one that has broken, and the acceptor answers them.
    pub(in crate::bootstrap) generation: u32,
    /// How much the dialler has received on the earlier connections.
    pub(in crate::bootstrap) received: u64,
    /// Is drawn once for a stream.
    pub(in crate::bootstrap) nonce: [u8; NONCE_LEN],
}

impl Hello {
    /// The hello of a stream's first connection. A nonce must be used for one stream only.
    pub(in crate::bootstrap) fn first(stream: LinkStream, nonce: [u8; NONCE_LEN]) -> Self {
        Self { stream, generation: 0, received: 0, nonce }
    }

    pub(in crate::bootstrap) fn encode(&self, secret: &LinkSecret) -> HelloBytes {
        let Self { stream, generation, received, nonce } = self;
        let mut out = [0; HELLO_LEN];
        let to = Encoder(&mut out[..]).raw(&MAGIC).u64(stream.communicator).u32(stream.dialler);
        let to = to.u32(stream.acceptor).u16(stream.content as u16).u16(stream.index);
        to.u32(*generation).u64(*received).raw(nonce);
        let tag = secret.tag(&out[..TAG_AT]);
        out[TAG_AT..].copy_from_slice(&tag);
        out
    }

    /// The content of a hello, without a proof.
    pub(in crate::bootstrap) fn decode(hello: &HelloBytes) -> Result<Self, Rejection> {
        let mut fields = Decoder(hello);
        if fields.array()? != MAGIC {
            return Err(Rejection::Malformed);
        }
        let communicator = fields.u64()?;
        let (dialler, acceptor) = (fields.u32()?, fields.u32()?);
        let content = fields.u16()?;
        let content = LinkContent::from_number(content.into()).ok_or(Rejection::Malformed)?;
        let stream = LinkStream { communicator, dialler, acceptor, content, index: fields.u16()? };
        let (generation, received, nonce) = (fields.u32()?, fields.u64()?, fields.array()?);
        Ok(Self { stream, generation, received, nonce })
    }

    /// The hello that the keys of the stream derive from, whichever connection carries it.
    pub(in crate::bootstrap) fn of_keys(&self, secret: &LinkSecret) -> HelloBytes {
        Self::first(self.stream, self.nonce).encode(secret)
    }
}

/// The answer to a hello from an end that has received so much.
pub(in crate::bootstrap) fn answer(
    secret: &LinkSecret,
    hello: &[u8],
    received: u64,
) -> [u8; ANSWER_LEN] {
    let mut out = [0; ANSWER_LEN];
    out[..8].copy_from_slice(&received.to_le_bytes());
    out[8..].copy_from_slice(&secret.tag_of_answer(hello, received));
    out
}

/// How much the other end has received, by its answer to this hello; `None` without a proof.
pub(in crate::bootstrap) fn open_answer(
    secret: &LinkSecret,
    hello: &[u8],
    answer: &[u8; ANSWER_LEN],
) -> Option<u64> {
    let received = u64::from_le_bytes(*answer.first_chunk()?);
    secret.verify_answer(hello, received, &answer[8..]).then_some(received)
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
        let content = Hello { generation: 3, received: 77, ..Hello::first(STREAM, [9; NONCE_LEN]) };
        let hello = content.encode(&secret);
        assert_eq!(Hello::decode(&hello), Ok(content));
        assert_eq!(content.of_keys(&secret), Hello::first(STREAM, [9; NONCE_LEN]).encode(&secret));
        assert!(secret.verify(&hello));
        assert!(!LinkSecret::of_test(2).verify(&hello));
        for bit in 0..8 * HELLO_LEN {
            let mut changed = hello;
            changed[bit / 8] ^= 1 << (bit % 8);
            let passes = Hello::decode(&changed).is_ok() && secret.verify(&changed);
            assert!(!passes, "bit {bit}");
        }
        for len in 0..=HELLO_LEN {
            assert!(may_begin(&hello[..len]));
        }
        assert!(!may_begin(b"GET / HTTP/1.1"));
    }

    #[test]
    fn an_answer_tells_its_number_for_its_hello_alone() {
        let secret = LinkSecret::of_test(1);
        let hello = |generation| {
            Hello { generation, ..Hello::first(STREAM, [9; NONCE_LEN]) }.encode(&secret)
        };
        let told = answer(&secret, &hello(1), 1 << 40);
        assert_eq!(open_answer(&secret, &hello(1), &told), Some(1 << 40));
        assert_eq!(open_answer(&secret, &hello(2), &told), None);
        assert_eq!(open_answer(&LinkSecret::of_test(2), &hello(1), &told), None);
        for bit in 0..8 * ANSWER_LEN {
            let mut changed = told;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open_answer(&secret, &hello(1), &changed), None, "bit {bit}");
        }
    }

    #[test]
    fn each_nonce_gives_keys_of_its_own() {
        let secret = LinkSecret::of_test(1);
        let piece = |nonce: u8, side| {
            let hello = Hello::first(STREAM, [nonce; NONCE_LEN]).encode(&secret);
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
        let hello = Hello::first(STREAM, [1; NONCE_LEN]).encode(&secret);
        let mut acceptor = secret.stream_keys(Side::Acceptor, &hello).unwrap();
        let mut out = [0; 16];
        assert!(acceptor.opener.open_to(&pieces[0], &mut out).is_ok() && out == [7; 16]);
    }
}
