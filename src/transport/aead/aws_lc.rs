//! AES-256-GCM by AWS-LC: several times as fast where the CPU has AVX-512, but its C code takes a
//! minute and a half to compile.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::{KEY, NONCE, TAG};

/// The key schedule of one direction of a stream; the crate erases it when it is dropped.
pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    pub(super) fn new(key: &[u8; KEY]) -> Option<Self> {
        Some(Self(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?)))
    }

    pub(super) fn seal(&self, nonce: [u8; NONCE], text: &mut [u8]) -> Option<[u8; TAG]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::empty(), text).ok()?;
        tag.as_ref().first_chunk().copied()
    }

    pub(super) fn seal_from(
        &self,
        nonce: [u8; NONCE],
        text: &[u8],
        out: &mut [u8],
    ) -> Option<[u8; TAG]> {
        let (nonce, mut tag) = (Nonce::assume_unique_for_key(nonce), [0; TAG]);
        let sealed =
            self.0.seal_out_of_place_scatter(nonce, Aad::empty(), text, out, &[], &mut tag);
        sealed.ok().map(|()| tag)
    }

    pub(super) fn open(&self, nonce: [u8; NONCE], text: &mut [u8], tag: &[u8; TAG]) -> Option<()> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place_separate_tag(nonce, Aad::empty(), tag, text).map(drop).ok()
    }

    pub(super) fn open_to(
        &self,
        nonce: [u8; NONCE],
        text: &[u8],
        tag: &[u8; TAG],
        out: &mut [u8],
    ) -> Option<()> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_separate_gather(nonce, Aad::empty(), text, tag, out).ok()
    }
}
