//! Authenticated encryption (AEAD) of streams by AES-256-GCM: one end seals each piece, the other
//! opens it, so that no host between them can read, change, repeat or drop a piece. The cipher is
//! the crate `aes-gcm`, or AWS-LC with the feature `aws-lc`; the two ends may use different ones.
//! Law: a key serves one stream in one direction; the nonce of a piece is its number, which both
//! ends count; after the first wrong tag no further piece is opened.

#[cfg(feature = "aws-lc")]
mod aws_lc;
#[cfg(any(not(feature = "aws-lc"), test))]
mod portable;

use std::fmt;

use super::Fault;
#[cfg(feature = "aws-lc")]
use aws_lc::Cipher;
#[cfg(not(feature = "aws-lc"))]
use portable::Cipher;

/// Bytes of the authentication tag after each sealed piece.
pub const TAG: usize = 16;
/// The bytes of a key.
pub const KEY: usize = 32;
const NONCE: usize = 12;

/// A key, and the number of pieces so far, which is the next nonce.
struct CountedKey {
    key: Cipher,
    count: u64,
}

impl CountedKey {
    fn new(key: &[u8; KEY]) -> Option<Self> {
        Some(Self { key: Cipher::new(key)?, count: 0 })
    }

    /// The nonce of the next piece; no two pieces of a key have the same.
    fn nonce(&mut self) -> Option<[u8; NONCE]> {
        let mut nonce = [0; NONCE];
        nonce[NONCE - 8..].copy_from_slice(&self.count.to_be_bytes());
        self.count = self.count.checked_add(1)?;
        Some(nonce)
    }
}

/// The key of the sending end, which seals pieces.
pub struct SealingKey(CountedKey);

impl SealingKey {
    /// Seals a piece in place; its last [`TAG`] bytes are room for the tag.
    ///
    /// # Errors
    /// When all nonces are used, which takes centuries.
    pub fn seal(&mut self, piece: &mut [u8]) -> Result<(), Fault> {
        let (text, room) = piece.split_last_chunk_mut::<TAG>().ok_or_else(nonces_exhausted)?;
        let nonce = self.0.nonce().ok_or_else(nonces_exhausted)?;
        *room = self.0.key.seal(nonce, text).ok_or_else(nonces_exhausted)?;
        Ok(())
    }

    /// Seals `text` into `piece`, which is longer by [`TAG`] bytes.
    ///
    /// # Errors
    /// As [`Self::seal`]; or if `piece` has another length.
    pub fn seal_from(&mut self, text: &[u8], piece: &mut [u8]) -> Result<(), Fault> {
        let (out, room) = piece.split_last_chunk_mut::<TAG>().ok_or_else(nonces_exhausted)?;
        let nonce = self.0.nonce().ok_or_else(nonces_exhausted)?;
        *room = self.0.key.seal_from(nonce, text, out).ok_or_else(nonces_exhausted)?;
        Ok(())
    }
}

fn nonces_exhausted() -> Fault {
    Fault::Lost("the key of the connection to it is used up".into())
}

/// The key of the receiving end, which opens pieces; `None` after a forged one.
pub struct OpeningKey(Option<CountedKey>);

/// The piece, or an earlier one, is not what the sender sealed as the next piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

impl OpeningKey {
    /// Opens the next piece in place; its tag stays after it.
    ///
    /// # Errors
    /// If the piece is forged; its bytes are zero then.
    pub fn open(&mut self, piece: &mut [u8]) -> Result<(), Forged> {
        let opened = self.next(|key, nonce| {
            let (text, tag) = piece.split_last_chunk_mut::<TAG>()?;
            key.open(nonce, text, tag)
        });
        opened.inspect_err(|_| piece.fill(0))
    }

    /// Opens the next piece into `out`, which is shorter by [`TAG`] bytes.
    ///
    /// # Errors
    /// If the piece is forged; `out` is zero then.
    pub fn open_to(&mut self, piece: &[u8], out: &mut [u8]) -> Result<(), Forged> {
        let opened = self.next(|key, nonce| {
            let (text, tag) = piece.split_last_chunk::<TAG>()?;
            key.open_to(nonce, text, tag, out)
        });
        opened.inspect_err(|_| out.fill(0))
    }

    /// Opens a piece, unless an earlier one was forged.
    fn next(
        &mut self,
        open: impl FnOnce(&Cipher, [u8; NONCE]) -> Option<()>,
    ) -> Result<(), Forged> {
        let mut counted = self.0.take().ok_or(Forged)?;
        let nonce = counted.nonce().ok_or(Forged)?;
        open(&counted.key, nonce).ok_or(Forged)?;
        self.0 = Some(counted);
        Ok(())
    }
}

/// The keys of one end of a stream, one for each direction.
#[derive(Debug)]
pub struct AeadKeys {
    /// The key of sent pieces.
    pub sealer: SealingKey,
    /// The key of received pieces.
    pub opener: OpeningKey,
}

impl AeadKeys {
    /// Both directions, from keys that have never been used: the own one and the peer's.
    #[must_use]
    pub fn new(outward: &[u8; KEY], inward: &[u8; KEY]) -> Option<Self> {
        let (outward, inward) = (CountedKey::new(outward)?, CountedKey::new(inward)?);
        Some(Self { sealer: SealingKey(outward), opener: OpeningKey(Some(inward)) })
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey")
    }
}

impl fmt::Debug for OpeningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OpeningKey" } else { "OpeningKey, closed" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [AeadKeys; 2] {
        let keys = [[0; KEY], [1; KEY]];
        [AeadKeys::new(&keys[0], &keys[1]).unwrap(), AeadKeys::new(&keys[1], &keys[0]).unwrap()]
    }

    /// A sealed piece; sealing in place and into another buffer give the same bytes.
    fn sealed(seals: &mut AeadKeys, text: &[u8]) -> Vec<u8> {
        let mut piece = [text, &[0; TAG]].concat();
        let counted = seals.sealer.0.count;
        seals.sealer.seal(&mut piece).unwrap();
        seals.sealer.0.count = counted;
        let mut other = vec![7; piece.len()];
        seals.sealer.seal_from(text, &mut other).unwrap();
        assert!(piece == other);
        piece
    }

    /// Opens a piece in place or into another buffer, and checks that a forged one leaves zeros.
    fn opened(seals: &mut AeadKeys, piece: &[u8], in_place: bool) -> Result<Vec<u8>, Forged> {
        let mut out = piece.to_vec();
        let len = piece.len().saturating_sub(TAG);
        let answer = match in_place {
            true => seals.opener.open(&mut out),
            false => seals.opener.open_to(piece, &mut out[..len]),
        };
        if answer.is_err() {
            out.truncate(if in_place { piece.len() } else { len });
            assert!(out.iter().all(|&byte| byte == 0));
        }
        answer.map(|()| out[..len].to_vec())
    }

    #[test]
    fn test_cases_of_the_standard_hold() {
        // Test cases 13 and 14 of the GCM specification: a key and a nonce of zeros.
        let hex =
            |piece: Vec<u8>| piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(sealed(&mut pair()[0], &[])), "530f8afbc74536b9a963b4f1c4cb738b");
        assert_eq!(
            hex(sealed(&mut pair()[0], &[0; 16])),
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
        );
    }

    /// Ends that were built with different ciphers can talk to each other.
    #[cfg(feature = "aws-lc")]
    #[test]
    fn both_ciphers_make_the_same_bytes() {
        let (key, nonce, text) = ([3; KEY], [5; NONCE], [7; 70_000]);
        let aws_lc = aws_lc::Cipher::new(&key).unwrap();
        let portable = portable::Cipher::new(&key).unwrap();
        let (mut one, mut other) = (text, text);
        let tag = aws_lc.seal(nonce, &mut one).unwrap();
        assert_eq!(portable.seal(nonce, &mut other), Some(tag));
        assert!(one == other);
        assert!(portable.open(nonce, &mut one, &tag).is_some() && one == text);
    }

    #[test]
    fn pieces_open_in_their_order_and_in_no_other() {
        for in_place in [false, true] {
            check_order(in_place);
        }
    }

    fn check_order(in_place: bool) {
        let [mut one, mut other] = pair();
        let texts: [&[u8]; 4] = [b"abc", b"abc", b"", &[7; 70_000]];
        let pieces = texts.map(|text| sealed(&mut one, text));
        assert_ne!(pieces[0], pieces[1], "equal texts give different pieces");
        for (piece, text) in pieces.iter().zip(texts) {
            assert!(opened(&mut other, piece, in_place).unwrap() == text);
        }
        // A piece too early, a later one, one of the wrong end, a cut one, a longer one, an empty
        // one.
        let long = [&pieces[0][..], &[0]].concat();
        let wrong =
            [&pieces[1], &pieces[3], &sealed(&mut other, b"abc"), &pieces[0][..18], &long, &[]];
        for wrong in wrong {
            let [_, mut other] = pair();
            assert_eq!(opened(&mut other, wrong, in_place), Err(Forged));
            // After a forged piece no further one opens, in place or not.
            for (piece, in_place) in [(1, in_place), (2, !in_place), (0, in_place)] {
                assert_eq!(opened(&mut other, &pieces[piece], in_place), Err(Forged));
            }
        }
        let [_, mut other] = pair();
        assert!(opened(&mut other, &pieces[0], in_place).is_ok());
        assert_eq!(opened(&mut other, &pieces[0], in_place), Err(Forged), "a repetition");
    }

    #[test]
    fn the_other_buffer_must_have_the_right_length() {
        let [mut one, mut other] = pair();
        let piece = sealed(&mut one, b"abc");
        for len in [2, 4] {
            assert_eq!(pair()[1].opener.open_to(&piece, &mut vec![1; len]), Err(Forged));
            assert!(pair()[0].sealer.seal_from(&[1; 3], &mut vec![0; len + TAG]).is_err());
        }
        assert!(other.opener.open_to(&piece, &mut [1; 3]).is_ok());
    }

    #[test]
    fn every_changed_bit_is_noticed_and_leaves_zeros() {
        let piece = sealed(&mut pair()[0], b"some text");
        for bit in 0..8 * piece.len() {
            let mut piece = piece.clone();
            piece[bit / 8] ^= 1 << (bit % 8);
            for in_place in [false, true] {
                assert_eq!(opened(&mut pair()[1], &piece, in_place), Err(Forged), "bit {bit}");
            }
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(
            format!("{:?}", pair()[0]),
            "AeadKeys { sealer: SealingKey, opener: OpeningKey }"
        );
    }
}
