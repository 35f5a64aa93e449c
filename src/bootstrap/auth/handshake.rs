//! The handshake of every stream, to a store or for a link, Unix or TCP: each end proves that it
//! knows the job's secret. Four messages of one shape: the dialler's offer, the acceptor's answer,
//! the dialler's confirmation, the acceptor's welcome; a stream is taken at the third, so one that
//! was given up on meanwhile never is. A nonce is the public half of a key drawn for this stream
//! (X25519): both ends agree on keys for the rest. May touch: keys, strangers, wire.
//! Law: pure, fixed size, no allocation; every byte of every message is looked at, under the tag
//! of the next; nonces make each handshake another one, keys each direction.

#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};

use super::keys::{Keys, TAG};
use super::rejected::Refusal;
use crate::bootstrap::kv::protocol::Reader;
use crate::bootstrap::topology::LinkKind;

/// The bytes of a message.
pub(in crate::bootstrap) const HELLO: usize = 128;
pub(super) const MAGIC: [u8; 8] = *b"RRHELLO\0";
/// The versions that this build speaks.
const VERSION_MIN: u16 = 1;
const VERSION_MAX: u16 = 1;
/// The bytes of a nonce.
pub(in crate::bootstrap) const NONCE: usize = 32;
const SPARE: usize = 24;
/// Where nonce and tag begin.
const NONCE_AT: usize = TAG_AT - NONCE;
const TAG_AT: usize = HELLO - TAG;

/// A message as it travels.
pub(super) type Hello = [u8; HELLO];

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Dialler,
    Acceptor,
}

/// Which of the four messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Stage {
    Offer = 1,
    Answer = 2,
    Confirm = 3,
    Welcome = 4,
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Shm = 1,
    Tcp = 2,
    Store = 3,
}

impl From<LinkKind> for Role {
    fn from(kind: LinkKind) -> Self {
        match kind {
            LinkKind::Shm => Self::Shm,
            LinkKind::Tcp => Self::Tcp,
        }
    }
}

/// Which stream this is. Both ends must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) job: u64,
    pub(crate) epoch: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) role: Role,
    /// Which of the link's streams.
    pub(crate) index: u16,
    /// How many streams the link has.
    pub(crate) count: u16,
    /// Is all that follows sealed?
    pub(crate) sealed: bool,
}

impl Identity {
    /// Why two that should be the same are not.
    fn difference(&self, other: &Self) -> Refusal {
        match (Self { sealed: other.sealed, ..*self }) == *other {
            true => Refusal::Sealing,
            false => Refusal::Elsewhere,
        }
    }

    /// The stream of `rank` to the store of a job.
    pub(crate) fn of_store(job: u64, rank: u32) -> Self {
        Self {
            job,
            epoch: 0,
            from: rank,
            to: 0,
            role: Role::Store,
            index: 0,
            count: 1,
            sealed: true,
        }
    }
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) struct Message {
    stage: Stage,
    versions: (u16, u16),
    identity: Identity,
    /// Has the speaker a secret?
    secret: bool,
    nonce: [u8; NONCE],
    tag: [u8; TAG],
}

impl Message {
    fn new(stage: Stage, identity: Identity, keys: &Keys, nonce: [u8; NONCE]) -> Self {
        let (versions, secret) = ((VERSION_MIN, VERSION_MAX), keys.are_secret());
        Self { stage, versions, identity, secret, nonce, tag: [0; TAG] }
    }

    pub(crate) fn encode(&self) -> Hello {
        let mut out = [0; HELLO];
        let Identity { job, epoch, from, to, role, index, count, sealed } = self.identity;
        let fields = MAGIC
            .into_iter()
            .chain(self.versions.0.to_le_bytes())
            .chain(self.versions.1.to_le_bytes())
            .chain([self.stage as u8, role as u8])
            .chain(index.to_le_bytes())
            .chain(count.to_le_bytes())
            .chain([u8::from(self.secret), u8::from(sealed)])
            .chain(epoch.to_le_bytes())
            .chain(job.to_le_bytes())
            .chain(from.to_le_bytes())
            .chain(to.to_le_bytes());
        // Between these and the nonce are the reserved bytes, all zero.
        out.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        out[NONCE_AT..TAG_AT].copy_from_slice(&self.nonce);
        out[TAG_AT..].copy_from_slice(&self.tag);
        out
    }

    /// The offer that a dialler begins with, and the stream that is expected in its place.
    pub(super) fn offer(
        bytes: &Hello,
        expects: impl FnOnce(&Identity) -> Option<Identity>,
    ) -> Result<(Self, Identity), Refusal> {
        let offer = Self::decode(bytes, Stage::Offer)?;
        if offer.tag != [0; TAG] {
            return Err(Refusal::Noise);
        }
        let expected = expects(&offer.identity).ok_or(Refusal::Elsewhere)?;
        Ok((offer, expected))
    }

    /// What a peer says at `stage`, or why that can't be.
    pub(crate) fn decode(bytes: &Hello, stage: Stage) -> Result<Self, Refusal> {
        Self::parse(bytes, stage).unwrap_or(Err(Refusal::Noise))
    }

    /// The same; none if it is cut short.
    fn parse(bytes: &Hello, stage: Stage) -> Option<Result<Self, Refusal>> {
        let mut fields = Reader(bytes);
        if fields.bytes(MAGIC.len()).ok()? != MAGIC {
            return None;
        }
        let versions = (fields.u16().ok()?, fields.u16().ok()?);
        if versions.1 < VERSION_MIN || versions.0 > VERSION_MAX || versions.0 > versions.1 {
            return Some(Err(Refusal::Version(versions.0, versions.1)));
        }
        if fields.u8().ok()? != stage as u8 {
            return Some(Err(Refusal::Order));
        }
        let role = match fields.u8().ok()? {
            1 => Role::Shm,
            2 => Role::Tcp,
            3 => Role::Store,
            _ => return None,
        };
        let (index, count) = (fields.u16().ok()?, fields.u16().ok()?);
        let (secret, sealed) = (fields.u8().ok()?, fields.u8().ok()?);
        let (epoch, job) = (fields.u32().ok()?, fields.u64().ok()?);
        let (from, to) = (fields.u32().ok()?, fields.u32().ok()?);
        let reserved = fields.bytes(SPARE).ok()?;
        if secret > 1 || sealed > 1 || reserved.iter().any(|&byte| byte != 0) {
            return None;
        }
        let nonce = *fields.bytes(NONCE).ok()?.first_chunk()?;
        let tag = *fields.bytes(TAG).ok()?.first_chunk()?;
        let sealed = sealed == 1;
        let identity = Identity { job, epoch, from, to, role, index, count, sealed };
        Some(Ok(Self { stage, versions, identity, secret: secret == 1, nonce, tag }))
    }
}

/// All that was said so far.
#[derive(Clone)]
struct Transcript(Sha256);

impl Transcript {
    fn new() -> Self {
        Self(Sha256::new())
    }

    fn add(&mut self, bytes: &Hello) {
        self.0.update(bytes);
    }

    /// Its digest if `bytes` come next, but for their tag, which is zero.
    fn with(&self, bytes: &Hello) -> [u8; TAG] {
        let mut next = self.0.clone();
        next.update(&bytes[..TAG_AT]);
        next.update([0; TAG]);
        digest(next)
    }

    /// Adds what `side` says next, with its tag.
    fn say(&mut self, keys: &Keys, side: Side, mut message: Message) -> Hello {
        message.tag = keys.tag(side, &self.with(&message.encode()));
        let bytes = message.encode();
        self.add(&bytes);
        bytes
    }

    /// Adds what `side` said, if its tag is right.
    fn hear(&mut self, keys: &Keys, side: Side, bytes: &Hello) -> Result<(), Refusal> {
        let tag = bytes.last_chunk().unwrap_or(&[0; TAG]);
        if !keys.verify(side, &self.with(bytes), tag) {
            return Err(Refusal::Unproved);
        }
        self.add(bytes);
        Ok(())
    }
}

fn digest(said: Sha256) -> [u8; TAG] {
    said.finalize().into()
}

/// What both ends know when a stream is open, each of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The other's nonce.
    pub(super) theirs: [u8; NONCE],
    /// The digest of all that was said.
    pub(super) transcript: [u8; TAG],
}

/// The dialler's side.
pub(in crate::bootstrap) struct Dialling {
    identity: Identity,
    transcript: Transcript,
    theirs: [u8; NONCE],
    awaited: Stage,
}

impl Dialling {
    /// It, and the message to begin with. The nonce is never used again.
    pub(crate) fn new(keys: &Keys, identity: Identity, nonce: [u8; NONCE]) -> (Self, Hello) {
        let offer = Message::new(Stage::Offer, identity, keys, nonce).encode();
        let mut transcript = Transcript::new();
        transcript.add(&offer);
        let theirs = [0; NONCE];
        (Self { identity, transcript, theirs, awaited: Stage::Answer }, offer)
    }

    /// Takes a message; gives the next one to say, or nothing when the stream is open.
    pub(crate) fn hear(&mut self, keys: &Keys, bytes: &Hello) -> Result<Option<Hello>, Refusal> {
        let said = Message::decode(bytes, self.awaited)?;
        if said.versions.0 != said.versions.1 {
            // An answer names the version that it chose.
            return Err(Refusal::Version(said.versions.0, said.versions.1));
        }
        if said.secret != keys.are_secret() {
            return Err(Refusal::Mode);
        }
        if said.identity != self.identity {
            return Err(self.identity.difference(&said.identity));
        }
        self.transcript.hear(keys, Side::Acceptor, bytes)?;
        if self.awaited == Stage::Welcome {
            return Ok(None);
        }
        (self.awaited, self.theirs) = (Stage::Welcome, said.nonce);
        let confirm = Message::new(Stage::Confirm, self.identity, keys, [0; NONCE]);
        Ok(Some(self.transcript.say(keys, Side::Dialler, confirm)))
    }

    /// Once the stream is open.
    pub(super) fn agreed(&self) -> Agreed {
        Agreed { theirs: self.theirs, transcript: digest(self.transcript.0.clone()) }
    }
}

/// The acceptor's side.
pub(in crate::bootstrap) struct Accepting {
    nonce: [u8; NONCE],
    transcript: Transcript,
    offered: Option<Message>,
    /// Why the stream that was offered is another one than expected, if it is.
    other: Option<Refusal>,
}

/// What the acceptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Reply {
    /// The handshake goes on.
    Answer(Hello),
    /// The dialler is who it says.
    Welcome(Hello, Identity),
}

impl Accepting {
    /// The nonce is never used again.
    pub(crate) fn new(nonce: [u8; NONCE]) -> Self {
        Self { nonce, transcript: Transcript::new(), offered: None, other: None }
    }

    /// Takes a message. `expects` gives the stream that is expected, if any is, when one is
    /// offered; a dialler that offers another one of the same kind hears of it and goes.
    pub(crate) fn hear(
        &mut self,
        keys: &Keys,
        bytes: &Hello,
        expects: impl FnOnce(&Identity) -> Option<Identity>,
    ) -> Result<Reply, Refusal> {
        let Some(offered) = self.offered else {
            let (offer, mine) = Message::offer(bytes, expects)?;
            self.transcript.add(bytes);
            self.offered = Some(offer);
            self.other = (mine != offer.identity).then(|| mine.difference(&offer.identity));
            let mut answer = Message::new(Stage::Answer, mine, keys, self.nonce);
            answer.versions = chosen(offer.versions);
            let answer = self.transcript.say(keys, Side::Acceptor, answer);
            return Ok(Reply::Answer(answer));
        };
        let confirm = Message::decode(bytes, Stage::Confirm)?;
        if confirm.secret != keys.are_secret() || offered.secret != confirm.secret {
            return Err(Refusal::Mode);
        }
        let identity = confirm.identity;
        if identity != offered.identity || expects(&identity) != Some(identity) {
            return Err(Refusal::Elsewhere);
        }
        if confirm.nonce != [0; NONCE] {
            return Err(Refusal::Noise);
        }
        self.transcript.hear(keys, Side::Dialler, bytes)?;
        let mut welcome = Message::new(Stage::Welcome, identity, keys, [0; NONCE]);
        welcome.versions = chosen(offered.versions);
        Ok(Reply::Welcome(self.transcript.say(keys, Side::Acceptor, welcome), identity))
    }

    /// Why a dialler has gone that says nothing more.
    pub(super) fn left(&self, keys: &Keys) -> Refusal {
        match self.offered {
            None => Refusal::Closed,
            Some(offer) if offer.secret != keys.are_secret() => Refusal::Mode,
            Some(_) => self.other.unwrap_or(Refusal::Left),
        }
    }

    /// Once the stream is open.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        let theirs = self.offered?.nonce;
        Some(Agreed { theirs, transcript: digest(self.transcript.0.clone()) })
    }

    /// Has it said anything that makes sense?
    pub(super) fn has_offered(&self) -> bool {
        self.offered.is_some()
    }
}

/// The version that both speak, of those offered.
fn chosen(offered: (u16, u16)) -> (u16, u16) {
    let version = offered.1.min(VERSION_MAX);
    (version, version)
}
