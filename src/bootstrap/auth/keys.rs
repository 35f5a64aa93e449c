//! Key derivation of the handshake: HMAC tags that prove knowledge of the job's secret, and session
//! keys of a stream, by HKDF and X25519.
//! Law: each job and direction has its own key; tags are compared in constant time; session keys
//! have forward secrecy, even if the job's secret leaks later; the secret of two records has it
//! once both processes have dropped their private keys; no private key and no job's key stays where
//! a core file would have it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::{Zeroize, Zeroizing, zeroize_stack};

use super::handshake::{Agreement, NONCE_LEN, Nonce, Side};
use super::hello::HelloBytes;
use crate::config::{HiddenMemory, SECRET_LEN, Secret};
use crate::error::{Error, Result};
use crate::transport::aead::AeadKeys;

/// Length of a tag, and of a key.
pub(super) const TAG_LEN: usize = 32;
pub(super) type Tag = [u8; TAG_LEN];
/// HKDF salt, which separates these keys from other uses of the secret.
const HKDF_SALT: &[u8] = b"ringreduce handshake 1";

type HkdfKey = Zeroizing<Tag>;

/// Bytes of stack to wipe after key derivation; HMAC takes a few KiB.
const WIPED_STACK_LEN: usize = 16 << 10;

/// The keys of a job.
#[derive(Clone)]
pub(crate) struct Keys {
    /// The dialler's key, the acceptor's key, and the key that stream keys derive from.
    derived: Arc<HiddenMemory<[Tag; 3]>>,
    secret: bool,
}

impl Keys {
    /// The keys of `job`. Without a secret they are public.
    pub(crate) fn new(secret: Option<&Secret>, job: u64) -> Self {
        let bytes = secret.map_or(&[0; SECRET_LEN], |secret| secret.bytes());
        let derive = |keys: &mut [Tag; 3]| {
            let root = extract(HKDF_SALT, bytes);
            for (key, purpose) in keys.iter_mut().zip([&b"dialler"[..], b"acceptor", b"streams"]) {
                key.copy_from_slice(&*expand(&root, &[purpose, &job.to_le_bytes()]));
            }
        };
        let derived = HiddenMemory::fill_in_place(|keys| {
            wiping_stack(|| derive(keys));
            Ok::<_, Infallible>(())
        });
        let derived = Arc::new(derived.unwrap_or_else(|never| match never {}));
        Self { derived, secret: secret.is_some() }
    }

    /// True if there is a secret, so that tags prove something.
    pub(crate) fn has_secret(&self) -> bool {
        self.secret
    }

    /// The tag by which `side` proves that it has seen this transcript.
    pub(super) fn tag(&self, side: Side, transcript: &Tag) -> Tag {
        wiping_stack(|| *hmac(self.key_of(side), &[transcript]))
    }

    /// True if `tag` is that of `side` for this transcript.
    pub(super) fn verify(&self, side: Side, transcript: &Tag, tag: &Tag) -> bool {
        wiping_stack(|| mac(self.key_of(side), &[transcript]).verify(&(*tag).into()).is_ok())
    }

    fn key_of(&self, side: Side) -> &[u8] {
        match side {
            Side::Dialler => &self.derived[0],
            Side::Acceptor => &self.derived[1],
        }
    }

    /// Session keys of `side` for a stream; none if the peer's public key is of small order.
    pub(super) fn session_keys(
        &self,
        side: Side,
        own_key: KeyPair,
        agreement: &Agreement,
    ) -> Option<SessionKeys> {
        wiping_stack(|| {
            let root = self.root(&own_key, agreement.peer_nonce)?;
            let aead = aead_keys(&root, side, &agreement.transcript)?;
            let links = LinkSecret(expand(&root, &[b"links", &agreement.transcript]));
            Some(SessionKeys { aead, links })
        })
    }

    /// The secret of two processes by the keys in their records, without a handshake: both have
    /// `own` and `theirs` the other way round. `None` if the public key is of small order.
    pub(in crate::bootstrap) fn pair_secret(
        &self,
        own: &KeyPair,
        theirs: Nonce,
    ) -> Option<LinkSecret> {
        let (low, high) = (own.nonce.min(theirs), own.nonce.max(theirs));
        wiping_stack(|| {
            let root = self.root(own, theirs)?;
            Some(LinkSecret(expand(&root, &[b"pair", &low, &high])))
        })
    }

    /// The key that those of two processes derive from.
    fn root(&self, own: &KeyPair, theirs: Nonce) -> Option<HkdfKey> {
        let shared = Zeroizing::new(x25519(*own.private, theirs));
        // A point of small order would give a shared secret that everybody knows (RFC 7748, 6.1).
        let is_secret = *shared != [0; NONCE_LEN];
        is_secret.then(|| extract(&self.derived[2], &shared[..]))
    }
}

/// The AEAD keys of `side` for the stream with these first messages.
fn aead_keys(root: &HkdfKey, side: Side, messages: &[u8]) -> Option<AeadKeys> {
    let key = |side: &[u8]| expand(root, &[b"seal", side, messages]);
    let (dialler, acceptor) = (key(b"dialler"), key(b"acceptor"));
    match side {
        Side::Dialler => AeadKeys::new(&dialler, &acceptor),
        Side::Acceptor => AeadKeys::new(&acceptor, &dialler),
    }
}

/// The keys that two processes have agreed on.
#[derive(Debug)]
pub(crate) struct SessionKeys {
    /// The keys of the stream over which they have agreed.
    pub(crate) aead: AeadKeys,
    /// The secret of further streams between them.
    pub(crate) links: LinkSecret,
}

/// The secret of two processes from which the keys of the streams of their links derive, like the
/// exporter secret of TLS (RFC 8446, 7.5).
pub(crate) struct LinkSecret(HkdfKey);

impl LinkSecret {
    /// The tag of a hello that begins with these bytes.
    pub(super) fn tag(&self, hello: &[u8]) -> Tag {
        wiping_stack(|| *hmac(&self.0[..], &[b"hello", hello]))
    }

    /// True if the tag at the end of a hello is that of the bytes before it.
    pub(in crate::bootstrap) fn verify(&self, hello: &HelloBytes) -> bool {
        let (bytes, tag) = hello.split_at(hello.len() - TAG_LEN);
        wiping_stack(|| mac(&self.0[..], &[b"hello", bytes]).verify_slice(tag).is_ok())
    }

    /// The tag of the answer to a hello, with the number that it tells.
    pub(super) fn tag_of_answer(&self, hello: &[u8], received: u64) -> Tag {
        wiping_stack(|| *hmac(&self.0[..], &[b"answer", hello, &received.to_le_bytes()]))
    }

    /// True if `tag` is that of the answer to this hello with this number.
    pub(super) fn verify_answer(&self, hello: &[u8], received: u64, tag: &[u8]) -> bool {
        let parts: [&[u8]; 3] = [b"answer", hello, &received.to_le_bytes()];
        wiping_stack(|| mac(&self.0[..], &parts).verify_slice(tag).is_ok())
    }

    #[cfg(any(test, feature = "internals"))]
    pub(in crate::bootstrap) fn of_test(byte: u8) -> Self {
        Self(Zeroizing::new([byte; TAG_LEN]))
    }

    /// The keys of `side` for the control channel of two processes that have no handshake: the
    /// lower rank counts as its dialler.
    pub(in crate::bootstrap) fn control_keys(&self, side: Side) -> Option<AeadKeys> {
        wiping_stack(|| aead_keys(&self.0, side, b"control"))
    }

    /// The keys of `side` for the stream that begins with this hello.
    pub(in crate::bootstrap) fn stream_keys(
        &self,
        side: Side,
        hello: &HelloBytes,
    ) -> Option<AeadKeys> {
        wiping_stack(|| aead_keys(&self.0, side, hello))
    }
}

impl std::fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkSecret")
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// An X25519 key pair, drawn for one handshake or for the record of a process.
pub(in crate::bootstrap) struct KeyPair {
    private: HiddenMemory<Nonce>,
    /// The public key, which serves as nonce of the handshake.
    pub(in crate::bootstrap) nonce: Nonce,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyPair")
    }
}

impl KeyPair {
    /// A new key pair; none if the system has no random bytes.
    pub(super) fn generate() -> Option<Self> {
        let private = HiddenMemory::fill_in_place(|key: &mut Nonce| getrandom::fill(key)).ok()?;
        let nonce = wiping_stack(|| x25519(*private, X25519_BASEPOINT_BYTES));
        Some(Self { private, nonce })
    }

    /// As [`Self::generate`].
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(in crate::bootstrap) fn draw() -> Result<Self> {
        let none = || Error::io("drawing a key", io::Error::other("no random bytes"));
        Self::generate().ok_or_else(none)
    }
}

/// A fingerprint of a secret, by which ranks compare theirs. It reveals nothing about the secret.
#[must_use]
pub fn secret_fingerprint(secret: &Secret) -> String {
    let name = wiping_stack(|| *expand(&extract(b"ringreduce name 1", secret.bytes()), &[b"name"]));
    name[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret of the ranks that meet by a unique id, in a job that has a secret of its own: whoever
/// reads the id lacks it.
pub(crate) fn secret_of_id(job: &Secret, drawn: &[u8; SECRET_LEN]) -> Secret {
    let derive = || *expand(&extract(b"ringreduce id 1", job.bytes()), &[drawn]);
    let derived = Secret::fill_in_place(|bytes| {
        wiping_stack(|| bytes.copy_from_slice(&derive()));
        Ok::<_, Infallible>(())
    });
    derived.unwrap_or_else(|never| match never {})
}

/// The job number that follows from the launcher's name of a job; 0 without one.
pub(crate) fn job_number(name: Option<&str>) -> u64 {
    let Some(name) = name else { return 0 };
    let digest = extract(b"ringreduce job 1", name.as_bytes());
    digest.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

/// Runs `work`, which may leave copies of keys on the stack, and wipes the stack below.
fn wiping_stack<T>(work: impl FnOnce() -> T) -> T {
    #[inline(never)]
    fn not_inlined<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
    let done = not_inlined(work);
    zeroize_stack::<WIPED_STACK_LEN>();
    done
}

/// HMAC-SHA-256 over the concatenated parts, under a key of at most 64 bytes.
fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block[..key.len()].copy_from_slice(key);
    let mut mac = Hmac::new(&block);
    block.zeroize();
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> HkdfKey {
    Zeroizing::new(mac(key, parts).finalize().into_bytes().into())
}

/// HKDF-Extract (RFC 5869).
fn extract(salt: &[u8], secret: &[u8]) -> HkdfKey {
    hmac(salt, &[secret])
}

/// HKDF-Expand, for one block of output.
fn expand(key: &HkdfKey, info: &[&[u8]]) -> HkdfKey {
    hmac(&key[..], &[info, &[&[1]]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }

    #[test]
    fn hkdf_matches_rfc_5869() {
        // Vectors A.1 and A.3 of RFC 5869; the first block of their output.
        let (salt, info) = (hex("000102030405060708090a0b0c"), hex("f0f1f2f3f4f5f6f7f8f9"));
        let root = extract(&salt, &[0x0b; 22]);
        assert_eq!(
            root.to_vec(),
            hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
        );
        assert_eq!(
            expand(&root, &[&info]).to_vec(),
            hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf")
        );
        assert_eq!(
            expand(&extract(&[], &[0x0b; 22]), &[]).to_vec(),
            hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d")
        );
    }

    #[test]
    fn tags_differ_by_secret_job_and_direction() {
        let secrets = [Some(Secret::from(&[1; TAG_LEN])), Some(Secret::from(&[2; TAG_LEN])), None];
        let mut tags = Vec::new();
        for (secret, job) in secrets.iter().flat_map(|secret| [(secret, 1), (secret, 2)]) {
            let keys = Keys::new(secret.as_ref(), job);
            for side in [Side::Dialler, Side::Acceptor] {
                let tag = keys.tag(side, &[3; TAG_LEN]);
                assert!(keys.verify(side, &[3; TAG_LEN], &tag));
                assert!(!keys.verify(side, &[4; TAG_LEN], &tag));
                tags.push(tag);
            }
            assert!(!format!("{keys:?}").contains("1, 1"));
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 12);
        assert_ne!(job_number(Some("a")), job_number(Some("b")));
        assert_eq!(secret_fingerprint(&Secret::from(&[1; TAG_LEN])).len(), 16);
    }
}
