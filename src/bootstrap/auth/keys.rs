//! Keys that the ends of a stream prove their knowledge of the job's secret with, and seal what
//! they say afterwards: HKDF, HMAC and X25519. May touch: hmac, sha2, x25519-dalek, getrandom,
//! zeroize. Law: a key for each job and direction, so that nothing said in one can be said in the
//! other; tags are compared in constant time; what a stream is sealed by nobody can find out later,
//! not even with the secret; nothing that the secret could be told from stays where a core file has
//! it.

use std::convert::Infallible;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::{Zeroize, Zeroizing, zeroize_stack};

use super::handshake::{Agreed, NONCE, Side};
use crate::config::{Hidden, SECRET, Secret};
use crate::transport::aead::Seals;

/// The bytes of a tag, and of a key.
pub(super) const TAG: usize = 32;
/// What these keys are for.
const PURPOSE: &[u8] = b"ringreduce handshake 1";

type Key = Zeroizing<[u8; TAG]>;

/// The stack that making keys takes: that of HMAC is a few KiB deep.
const DEPTH: usize = 16 << 10;

/// The keys of a job.
#[derive(Clone)]
pub(crate) struct Keys {
    /// The dialler's, the acceptor's, and what the keys of its streams are made with.
    all: Arc<Hidden<[[u8; TAG]; 3]>>,
    secret: bool,
}

impl Keys {
    /// Those of the job `job`; without a secret they are known to everybody.
    pub(crate) fn new(secret: Option<&Secret>, job: u64) -> Self {
        let known = secret.map_or(&[0; SECRET], |secret| secret.bytes());
        let derive = |keys: &mut [[u8; TAG]; 3]| {
            let root = extract(PURPOSE, known);
            for (key, purpose) in keys.iter_mut().zip([&b"dialler"[..], b"acceptor", b"streams"]) {
                key.copy_from_slice(&*expand(&root, &[purpose, &job.to_le_bytes()]));
            }
        };
        let all = Hidden::filled(|keys| {
            swept(|| derive(keys));
            Ok::<_, Infallible>(())
        });
        let all = Arc::new(all.unwrap_or_else(|never| match never {}));
        Self { all, secret: secret.is_some() }
    }

    /// Do they prove anything?
    pub(super) fn are_secret(&self) -> bool {
        self.secret
    }

    /// What `side` proves with that it has seen all that `transcript` is the digest of.
    pub(super) fn tag(&self, side: Side, transcript: &[u8; TAG]) -> [u8; TAG] {
        swept(|| *hmac(self.of(side), &[transcript]))
    }

    /// Is `tag` what `side` says?
    pub(super) fn verify(&self, side: Side, transcript: &[u8; TAG], tag: &[u8; TAG]) -> bool {
        swept(|| mac(self.of(side), &[transcript]).verify(&(*tag).into()).is_ok())
    }

    fn of(&self, side: Side) -> &[u8] {
        match side {
            Side::Dialler => &self.all[0],
            Side::Acceptor => &self.all[1],
        }
    }

    /// What `side` seals and opens a stream by, if the other's number is one to agree with.
    pub(super) fn seals(&self, side: Side, mine: Ephemeral, agreed: &Agreed) -> Option<Seals> {
        swept(|| {
            let shared = Zeroizing::new(x25519(*mine.private, agreed.theirs));
            // A number of small order would make a secret that everybody knows (RFC 7748, 6.1).
            if *shared == [0; NONCE] {
                return None;
            }
            let root = extract(&self.all[2], &shared[..]);
            let key = |side: &[u8]| expand(&root, &[b"seal", side, &agreed.transcript]);
            let (dialler, acceptor) = (key(b"dialler"), key(b"acceptor"));
            match side {
                Side::Dialler => Seals::new(&dialler, &acceptor),
                Side::Acceptor => Seals::new(&acceptor, &dialler),
            }
        })
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// A number that nobody has seen, and what only its owner can do with it: come to the same secret
/// as the owner of the other end's.
pub(super) struct Ephemeral {
    private: Zeroizing<[u8; NONCE]>,
    /// The number.
    pub(super) nonce: [u8; NONCE],
}

impl Ephemeral {
    /// A new one; none if the system has no random bytes.
    pub(super) fn draw() -> Option<Self> {
        let mut private = Zeroizing::new([0; NONCE]);
        getrandom::fill(&mut private[..]).ok()?;
        let nonce = swept(|| x25519(*private, X25519_BASEPOINT_BYTES));
        Some(Self { private, nonce })
    }
}

/// What names a secret where its ranks compare what they were told; it says nothing of it.
pub(crate) fn name_of(secret: &Secret) -> String {
    let name = swept(|| *expand(&extract(b"ringreduce name 1", secret.bytes()), &[b"name"]));
    name[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number of a job that its launcher calls `name`.
pub(crate) fn number_of(name: Option<&str>) -> u64 {
    let Some(name) = name else { return 0 };
    let digest = extract(b"ringreduce job 1", name.as_bytes());
    digest.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

/// Does what may leave copies of keys on the stack, and wipes these.
fn swept<T>(work: impl FnOnce() -> T) -> T {
    #[inline(never)]
    fn apart<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
    let done = apart(work);
    zeroize_stack::<DEPTH>();
    done
}

/// HMAC over these, one after the other, under a key of at most a block of SHA-256, 64 bytes.
fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block[..key.len()].copy_from_slice(key);
    let mut mac = Hmac::new(&block);
    block.zeroize();
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    Zeroizing::new(mac(key, parts).finalize().into_bytes().into())
}

/// HKDF's first half (RFC 5869).
fn extract(salt: &[u8], secret: &[u8]) -> Key {
    hmac(salt, &[secret])
}

/// Its second half, for one block of output.
fn expand(key: &Key, info: &[&[u8]]) -> Key {
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
    fn as_the_standard_says() {
        // RFC 5869, A.1 and A.3; of the output its first block.
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
    fn every_job_and_direction_has_its_own() {
        let secrets = [Some(Secret::from(&[1; TAG])), Some(Secret::from(&[2; TAG])), None];
        let mut tags = Vec::new();
        for (secret, job) in secrets.iter().flat_map(|secret| [(secret, 1), (secret, 2)]) {
            let keys = Keys::new(secret.as_ref(), job);
            for side in [Side::Dialler, Side::Acceptor] {
                let tag = keys.tag(side, &[3; TAG]);
                assert!(keys.verify(side, &[3; TAG], &tag));
                assert!(!keys.verify(side, &[4; TAG], &tag));
                tags.push(tag);
            }
            assert!(!format!("{keys:?}").contains("1, 1"));
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 12);
        assert_ne!(number_of(Some("a")), number_of(Some("b")));
        assert_eq!(name_of(&Secret::from(&[1; TAG])).len(), 16);
    }
}
