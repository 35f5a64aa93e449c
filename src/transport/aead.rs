//! Keys by which pieces of a stream are sealed at one end and opened at the other: AES-256-GCM, so
//! that nobody between the two can read them, change one, or leave one out. The cipher is the crate
//! `aes-gcm`, or AWS-LC with the feature `aws-lc`; both ends of a stream may differ in that.
//! Law: a key is for one stream and direction; both ends count the pieces, and the count makes each
//! nonce; after one wrong tag nothing is opened any more.

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

/// Bytes that a piece is longer by than what it seals.
pub const TAG: usize = 16;
/// The bytes of a key.
pub const KEY: usize = 32;
/// The bytes of a nonce.
const NONCE: usize = 12;

/// A key, and how many pieces there were.
struct Counted {
    key: Cipher,
    count: u64,
}

impl Counted {
    fn new(key: &[u8; KEY]) -> Option<Self> {
        Some(Self { key: Cipher::new(key)?, count: 0 })
    }

    /// The next piece's, and nobody else's.
    fn nonce(&mut self) -> Option<[u8; NONCE]> {
        let mut nonce = [0; NONCE];
        nonce[NONCE - 8..].copy_from_slice(&self.count.to_be_bytes());
        self.count = self.count.checked_add(1)?;
        Some(nonce)
    }
}

/// The sending end's.
pub struct Sealer(Counted);

impl Sealer {
    /// Seals a piece where it lies; its last [`TAG`] bytes are room for the tag.
    ///
    /// # Errors
    /// When no number is left, which takes centuries.
    pub fn seal(&mut self, piece: &mut [u8]) -> Result<(), Fault> {
        let (text, room) = piece.split_last_chunk_mut::<TAG>().ok_or_else(used_up)?;
        let nonce = self.0.nonce().ok_or_else(used_up)?;
        *room = self.0.key.seal(nonce, text).ok_or_else(used_up)?;
        Ok(())
    }

    /// Seals `text` on its way to `piece`, which is longer by [`TAG`] bytes.
    ///
    /// # Errors
    /// As [`Self::seal`]; or if it is not so long.
    pub fn seal_from(&mut self, text: &[u8], piece: &mut [u8]) -> Result<(), Fault> {
        let (out, room) = piece.split_last_chunk_mut::<TAG>().ok_or_else(used_up)?;
        let nonce = self.0.nonce().ok_or_else(used_up)?;
        *room = self.0.key.seal_from(nonce, text, out).ok_or_else(used_up)?;
        Ok(())
    }
}

fn used_up() -> Fault {
    Fault::Lost("the key of the connection to it is used up".into())
}

/// The receiving end's.
pub struct Opener(Option<Counted>);

/// A piece is not what was sealed as the next one; or an earlier one was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

impl Opener {
    /// Opens the next piece where it lies; its tag stays behind it.
    ///
    /// # Errors
    /// If it is another one; nothing is left of it then.
    pub fn open(&mut self, piece: &mut [u8]) -> Result<(), Forged> {
        let opened = self.next(|key, nonce| {
            let (text, tag) = piece.split_last_chunk_mut::<TAG>()?;
            key.open(nonce, text, tag)
        });
        opened.inspect_err(|_| piece.fill(0))
    }

    /// Opens the next piece on its way to `out`, which is shorter by [`TAG`] bytes.
    ///
    /// # Errors
    /// If it is another one; `out` is zero then.
    pub fn open_to(&mut self, piece: &[u8], out: &mut [u8]) -> Result<(), Forged> {
        let opened = self.next(|key, nonce| {
            let (text, tag) = piece.split_last_chunk::<TAG>()?;
            key.open_to(nonce, text, tag, out)
        });
        opened.inspect_err(|_| out.fill(0))
    }

    /// Opens a piece, unless one before was not opened.
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

/// Both of one end of a stream.
#[derive(Debug)]
pub struct Seals {
    /// For what it sends.
    pub sealer: Sealer,
    /// For what it receives.
    pub opener: Opener,
}

impl Seals {
    /// Of keys that were never used before: for what goes out, and for what comes in.
    #[must_use]
    pub fn new(outward: &[u8; KEY], inward: &[u8; KEY]) -> Option<Self> {
        let (outward, inward) = (Counted::new(outward)?, Counted::new(inward)?);
        Some(Self { sealer: Sealer(outward), opener: Opener(Some(inward)) })
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Opener" } else { "Opener, closed" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [Seals; 2] {
        let keys = [[0; KEY], [1; KEY]];
        [Seals::new(&keys[0], &keys[1]).unwrap(), Seals::new(&keys[1], &keys[0]).unwrap()]
    }

    /// Both ways to seal give the same.
    fn sealed(seals: &mut Seals, text: &[u8]) -> Vec<u8> {
        let mut piece = [text, &[0; TAG]].concat();
        let counted = seals.sealer.0.count;
        seals.sealer.seal(&mut piece).unwrap();
        seals.sealer.0.count = counted;
        let mut other = vec![7; piece.len()];
        seals.sealer.seal_from(text, &mut other).unwrap();
        assert!(piece == other);
        piece
    }

    /// Opens it where it lies, or on its way elsewhere; nothing is left of what is forged.
    fn opened(seals: &mut Seals, piece: &[u8], in_place: bool) -> Result<Vec<u8>, Forged> {
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
    fn as_the_standard_says() {
        // The GCM specification's test cases 13 and 14: a key and a nonce of zeros.
        let hex =
            |piece: Vec<u8>| piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(sealed(&mut pair()[0], &[])), "530f8afbc74536b9a963b4f1c4cb738b");
        assert_eq!(
            hex(sealed(&mut pair()[0], &[0; 16])),
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
        );
    }

    /// Ends that were built with different ciphers understand each other.
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
    fn pieces_open_in_their_order_and_only_there() {
        for way in [false, true] {
            in_their_order(way);
        }
    }

    fn in_their_order(way: bool) {
        let [mut one, mut other] = pair();
        let texts: [&[u8]; 4] = [b"abc", b"abc", b"", &[7; 70_000]];
        let pieces = texts.map(|text| sealed(&mut one, text));
        assert_ne!(pieces[0], pieces[1], "no two are sealed alike");
        for (piece, text) in pieces.iter().zip(texts) {
            assert!(opened(&mut other, piece, way).unwrap() == text);
        }
        // Left out, again, from the wrong end, cut short, longer, nothing.
        let long = [&pieces[0][..], &[0]].concat();
        let wrong =
            [&pieces[1], &pieces[3], &sealed(&mut other, b"abc"), &pieces[0][..18], &long, &[]];
        for wrong in wrong {
            let [_, mut other] = pair();
            assert_eq!(opened(&mut other, wrong, way), Err(Forged));
            // After that neither this one nor the next one opens, either way.
            for (piece, way) in [(1, way), (2, !way), (0, way)] {
                assert_eq!(opened(&mut other, &pieces[piece], way), Err(Forged));
            }
        }
        let [_, mut other] = pair();
        assert!(opened(&mut other, &pieces[0], way).is_ok());
        assert_eq!(opened(&mut other, &pieces[0], way), Err(Forged), "said twice");
    }

    #[test]
    fn what_goes_elsewhere_must_fit_there() {
        let [mut one, mut other] = pair();
        let piece = sealed(&mut one, b"abc");
        for len in [2, 4] {
            assert_eq!(pair()[1].opener.open_to(&piece, &mut vec![1; len]), Err(Forged));
            assert!(pair()[0].sealer.seal_from(&[1; 3], &mut vec![0; len + TAG]).is_err());
        }
        assert!(other.opener.open_to(&piece, &mut [1; 3]).is_ok());
    }

    #[test]
    fn any_bit_that_is_changed_is_noticed_and_nothing_is_left() {
        let piece = sealed(&mut pair()[0], b"some text");
        for bit in 0..8 * piece.len() {
            let mut piece = piece.clone();
            piece[bit / 8] ^= 1 << (bit % 8);
            for way in [false, true] {
                assert_eq!(opened(&mut pair()[1], &piece, way), Err(Forged), "bit {bit}");
            }
        }
    }

    #[test]
    fn keys_are_not_shown() {
        assert_eq!(format!("{:?}", pair()[0]), "Seals { sealer: Sealer, opener: Opener }");
    }
}
