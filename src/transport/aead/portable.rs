//! AES-256-GCM by the crate `aes-gcm`, which builds in seconds without a C compiler, and uses the
//! CPU's AES and carry-less multiplication where the CPU has them.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit};

use super::{KEY, NONCE, TAG};

/// The key schedule of one direction of a stream; the crate erases it when it is dropped.
pub(super) struct Cipher(Aes256Gcm);

impl Cipher {
    pub(super) fn new(key: &[u8; KEY]) -> Option<Self> {
        Some(Self(Aes256Gcm::new(key.into())))
    }

    pub(super) fn seal(&self, nonce: [u8; NONCE], text: &mut [u8]) -> Option<[u8; TAG]> {
        self.encrypt(nonce, text.into())
    }

    pub(super) fn seal_from(
        &self,
        nonce: [u8; NONCE],
        text: &[u8],
        out: &mut [u8],
    ) -> Option<[u8; TAG]> {
        self.encrypt(nonce, InOutBuf::new(text, out).ok()?)
    }

    pub(super) fn open(&self, nonce: [u8; NONCE], text: &mut [u8], tag: &[u8; TAG]) -> Option<()> {
        self.decrypt(nonce, text.into(), tag)
    }

    pub(super) fn open_to(
        &self,
        nonce: [u8; NONCE],
        text: &[u8],
        tag: &[u8; TAG],
        out: &mut [u8],
    ) -> Option<()> {
        self.decrypt(nonce, InOutBuf::new(text, out).ok()?, tag)
    }

    fn encrypt(&self, nonce: [u8; NONCE], buffer: InOutBuf<'_, '_, u8>) -> Option<[u8; TAG]> {
        self.0.encrypt_inout_detached(&nonce.into(), &[], buffer).map(Into::into).ok()
    }

    fn decrypt(
        &self,
        nonce: [u8; NONCE],
        buffer: InOutBuf<'_, '_, u8>,
        tag: &[u8; TAG],
    ) -> Option<()> {
        self.0.decrypt_inout_detached(&nonce.into(), &[], buffer, tag.into()).ok()
    }
}
