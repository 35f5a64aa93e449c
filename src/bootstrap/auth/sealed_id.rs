//! Unique ids on their way through a place that others can read: each is sealed for one process, by
//! a key that this process and the maker agree on with X25519.
//! Law: a key pair is used once; who only reads what the two tell each other learns no id. Who may
//! also write there can ask for an id as a rank does, so a place like that authenticates nobody.

use std::fmt;

use sha2::{Digest, Sha256};

use super::handshake::{Agreement, Side};
use super::keys::{KeyPair, Keys, Tag};
use crate::bootstrap::UniqueId;
use crate::error::{Error, Result};
use crate::transport::aead::{AeadKeys, TAG};

/// The length of a public key.
const PUBLIC_LEN: usize = 32;
/// The length of a sealed id: the maker's public key, the id, and an authentication tag.
const SEALED_LEN: usize = PUBLIC_LEN + UniqueId::LEN + TAG;

/// The key pair of a process that asks for a [`UniqueId`]: its program takes the public half to the
/// process that made the id, and the answer of [`UniqueId::seal_for`] back.
///
/// ```
/// use ringreduce::{UniqueId, UniqueIdKey};
///
/// let key = UniqueIdKey::new()?;
/// let id = UniqueId::new()?;
/// let sealed = id.seal_for(key.public())?;
/// assert_eq!(key.open(&sealed)?, id);
/// # Ok::<(), ringreduce::Error>(())
/// ```
pub struct UniqueIdKey(KeyPair);

impl UniqueIdKey {
    /// A new key pair, for one answer.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn new() -> Result<Self> {
        Ok(Self(KeyPair::draw()?))
    }

    /// The public half, which anybody may read.
    #[must_use]
    pub fn public(&self) -> &[u8; PUBLIC_LEN] {
        &self.0.nonce
    }

    /// The id of an answer.
    ///
    /// # Errors
    /// If the answer is for another key, or not whole.
    pub fn open(self, sealed: &[u8]) -> Result<UniqueId> {
        let wrong = || {
            let given = format!("{} bytes that this key does not open", sealed.len());
            let expected = "the whole answer of UniqueId::seal_for to the public half of this key";
            Error::argument("unique_id", "sealed", given, expected)
        };
        let (maker, sealed) = sealed.split_first_chunk::<PUBLIC_LEN>().ok_or_else(wrong)?;
        let mut id = [0; UniqueId::LEN];
        let transcript = transcript(&self.0.nonce, maker);
        let mut keys = agree(Side::Dialler, self.0, maker, transcript).ok_or_else(wrong)?;
        if sealed.len() != UniqueId::LEN + TAG {
            return Err(wrong());
        }
        keys.opener.open_to(sealed, &mut id).map_err(|_| wrong())?;
        UniqueId::from_bytes(&id)
    }
}

impl UniqueId {
    /// The id, sealed for the process whose [`UniqueIdKey`] has this public half.
    ///
    /// # Errors
    /// If it is no public key, or the system has no random bytes.
    pub fn seal_for(&self, public: &[u8]) -> Result<Vec<u8>> {
        let wrong = || {
            let given = format!("{} bytes that are no public key", public.len());
            Error::argument("unique_id", "public", given, "the 32 bytes of UniqueIdKey::public")
        };
        let asker = public.try_into().map_err(|_| wrong())?;
        let own = KeyPair::draw()?;
        let mut sealed = own.nonce.to_vec();
        sealed.resize(SEALED_LEN, 0);
        let transcript = transcript(asker, &own.nonce);
        let mut keys = agree(Side::Acceptor, own, asker, transcript).ok_or_else(wrong)?;
        let done = keys.sealer.seal_from(self.as_bytes(), &mut sealed[PUBLIC_LEN..]);
        done.map_err(|_| wrong())?;
        Ok(sealed)
    }
}

impl fmt::Debug for UniqueIdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueIdKey").finish_non_exhaustive()
    }
}

/// The digest of the two public keys, which the keys of an answer depend on.
fn transcript(asker: &[u8; PUBLIC_LEN], maker: &[u8; PUBLIC_LEN]) -> Tag {
    let digest = Sha256::new().chain_update(b"ringreduce sealed id 1");
    digest.chain_update(asker).chain_update(maker).finalize().into()
}

/// The keys of one answer; none if the peer's public key is of small order.
fn agree(side: Side, own: KeyPair, peer: &[u8; PUBLIC_LEN], transcript: Tag) -> Option<AeadKeys> {
    let agreement = Agreement { peer_nonce: *peer, transcript };
    Some(Keys::new(None, 0).session_keys(side, own, &agreement)?.aead)
}
