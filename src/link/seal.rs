//! Keys by which pieces of a stream are sealed at one end and opened at the other: AES-256-GCM, so
//! that nobody between the two can read them, change one, or leave one out. May touch: ring.
//! Law: a key is for one stream and direction; both ends count the pieces, and the count makes each
//! nonce; after one wrong tag nothing is opened any more.

use std::fmt;

use ring::aead::{
    AES_256_GCM, Aad, BoundKey, NONCE_LEN, Nonce, NonceSequence, OpeningKey, SealingKey, UnboundKey,
};
use ring::error::Unspecified;

use super::Fault;

/// Bytes that a piece is longer by than what it seals.
pub const TAG: usize = 16;
/// The bytes of a key.
pub const KEY: usize = 32;

/// How many pieces there were.
struct Count(u64);

impl NonceSequence for Count {
    fn advance(&mut self) -> Result<Nonce, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.0.to_be_bytes());
        self.0 = self.0.checked_add(1).ok_or(Unspecified)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn bind<K: BoundKey<Count>>(key: &[u8; KEY]) -> Result<K, Unspecified> {
    UnboundKey::new(&AES_256_GCM, key).map(|key| K::new(key, Count(0)))
}

/// The sending end's.
pub struct Sealer(SealingKey<Count>);

impl Sealer {
    /// Seals a piece where it lies; its last [`TAG`] bytes are room for the tag.
    ///
    /// # Errors
    /// When no number is left, which takes centuries.
    pub fn seal(&mut self, piece: &mut [u8]) -> Result<(), Fault> {
        let used_up = || Fault::Lost("the key of the connection to it is used up".into());
        let (text, room) = piece.split_last_chunk_mut::<TAG>().ok_or_else(used_up)?;
        let tag = self.0.seal_in_place_separate_tag(Aad::empty(), text).map_err(|_| used_up())?;
        room.copy_from_slice(tag.as_ref());
        Ok(())
    }
}

/// The receiving end's.
pub struct Opener(Option<OpeningKey<Count>>);

/// A piece is not what was sealed as the next one; or an earlier one was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

impl Opener {
    /// Opens the next piece where it lies; its tag stays behind it.
    ///
    /// # Errors
    /// If it is another one; nothing is left of it then.
    pub fn open(&mut self, piece: &mut [u8]) -> Result<(), Forged> {
        let key = self.0.as_mut().ok_or(Forged)?;
        if key.open_in_place(Aad::empty(), piece).is_ok() {
            return Ok(());
        }
        piece.fill(0);
        self.0 = None;
        Err(Forged)
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
        let bound = bind(outward).and_then(|outward| Ok((outward, bind(inward)?)));
        let (outward, inward) = bound.ok()?;
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

    fn sealed(seals: &mut Seals, text: &[u8]) -> Vec<u8> {
        let mut piece = [text, &[0; TAG]].concat();
        seals.sealer.seal(&mut piece).unwrap();
        piece
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

    #[test]
    fn pieces_open_in_their_order_and_only_there() {
        let [mut one, mut other] = pair();
        let texts: [&[u8]; 4] = [b"abc", b"abc", b"", &[7; 70_000]];
        let pieces = texts.map(|text| sealed(&mut one, text));
        assert_ne!(pieces[0], pieces[1], "no two are sealed alike");
        for (piece, text) in pieces.iter().zip(texts) {
            let mut piece = piece.clone();
            assert!(other.opener.open(&mut piece).is_ok());
            assert_eq!(piece[..text.len()], *text);
        }
        // Left out, again, from the wrong end, cut short, longer, nothing.
        let long = [&pieces[0][..], &[0]].concat();
        let wrong =
            [&pieces[1], &pieces[3], &sealed(&mut other, b"abc"), &pieces[0][..18], &long, &[]];
        for wrong in wrong {
            let [_, mut other] = pair();
            assert_eq!(other.opener.open(&mut wrong.to_vec()), Err(Forged));
            // After that the right one does not help.
            assert_eq!(other.opener.open(&mut pieces[0].clone()), Err(Forged));
        }
        let [_, mut other] = pair();
        assert!(other.opener.open(&mut pieces[0].clone()).is_ok());
        assert_eq!(other.opener.open(&mut pieces[0].clone()), Err(Forged), "said twice");
    }

    #[test]
    fn any_bit_that_is_changed_is_noticed_and_nothing_is_left() {
        let piece = sealed(&mut pair()[0], b"some text");
        for bit in 0..8 * piece.len() {
            let mut piece = piece.clone();
            piece[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(pair()[1].opener.open(&mut piece), Err(Forged), "bit {bit}");
            assert!(piece.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn keys_are_not_shown() {
        assert_eq!(format!("{:?}", pair()[0]), "Seals { sealer: Sealer, opener: Opener }");
    }
}
