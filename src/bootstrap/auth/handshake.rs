//! The handshake of a stream to a store or for a control channel: mutual authentication by the
//! job's secret in four messages (offer, answer, confirmation, welcome). The stream is accepted
//! with the third. Each nonce is an ephemeral X25519 public key, from which both ends derive
//! session keys.
//! Law: pure and without allocation; a message's tag covers every byte before it; nonces make each
//! handshake different, and each direction has its own key.

#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};

use super::keys::{Keys, TAG_LEN, Tag};
use super::rejected::Rejection;
use crate::bootstrap::topology::LinkKind;
use crate::codec::{Decoder, Encoder};

pub(in crate::bootstrap) const MESSAGE_LEN: usize = 128;
pub(super) const MAGIC: [u8; 8] = *b"RRHELLO\0";
/// Versions of the handshake that this build supports.
const VERSION_MIN: u16 = 2;
const VERSION_MAX: u16 = 2;
pub(in crate::bootstrap) const NONCE_LEN: usize = 32;
const RESERVED_BYTES: usize = 28;
pub(in crate::bootstrap) type Nonce = [u8; NONCE_LEN];
/// Offset of the tag in a message.
const TAG_AT: usize = MESSAGE_LEN - TAG_LEN;

pub(super) type MessageBytes = [u8; MESSAGE_LEN];

/// The two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Side {
    Dialler,
    Acceptor,
}

/// The four messages, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum MessageKind {
    Offer = 1,
    Answer = 2,
    Confirm = 3,
    Welcome = 4,
}

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    Shm = 1,
    Tcp = 2,
    Store = 3,
    /// From a launcher's agent on another host.
    Launcher = 4,
}

impl From<LinkKind> for StreamRole {
    fn from(kind: LinkKind) -> Self {
        match kind {
            LinkKind::Shm => Self::Shm,
            LinkKind::Tcp => Self::Tcp,
        }
    }
}

/// Identity of a stream. Both ends must give the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub(crate) job: u64,
    pub(crate) epoch: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) role: StreamRole,
    /// True if everything after the handshake is encrypted.
    pub(crate) encrypted: bool,
}

impl StreamId {
    /// The reason to reject `other` in place of this stream.
    fn mismatch_with(&self, other: &Self) -> Rejection {
        match (Self { encrypted: other.encrypted, ..*self }) == *other {
            true => Rejection::EncryptionMismatch,
            false => Rejection::Unexpected,
        }
    }

    /// The stream from `rank` to the store of a job.
    pub(crate) fn to_store(job: u64, rank: u32) -> Self {
        Self { job, epoch: 0, from: rank, to: 0, role: StreamRole::Store, encrypted: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) struct Message {
    kind: MessageKind,
    versions: (u16, u16),
    identity: StreamId,
    /// True if the sender has a secret.
    secret: bool,
    nonce: Nonce,
    tag: Tag,
}

impl Message {
    fn new(kind: MessageKind, identity: StreamId, keys: &Keys, nonce: Nonce) -> Self {
        let (versions, secret) = ((VERSION_MIN, VERSION_MAX), keys.has_secret());
        Self { kind, versions, identity, secret, nonce, tag: [0; TAG_LEN] }
    }

    pub(crate) fn encode(&self) -> MessageBytes {
        let mut out = [0; MESSAGE_LEN];
        let StreamId { job, epoch, from, to, role, encrypted } = self.identity;
        let fields = Encoder(&mut out[..]).raw(&MAGIC).u16(self.versions.0).u16(self.versions.1);
        let fields = fields.u8(self.kind as u8).u8(role as u8);
        let fields = fields.u8(u8::from(self.secret)).u8(u8::from(encrypted)).u32(epoch).u64(job);
        let fields = fields.u32(from).u32(to).raw(&[0; RESERVED_BYTES]);
        fields.raw(&self.nonce).raw(&self.tag);
        out
    }

    /// Decodes a dialler's offer, and finds the stream expected in its place.
    pub(super) fn decode_offer(
        bytes: &MessageBytes,
        expected_for: impl FnOnce(&StreamId) -> Option<StreamId>,
    ) -> Result<(Self, StreamId), Rejection> {
        let offer = Self::decode(bytes, MessageKind::Offer)?;
        if offer.tag != [0; TAG_LEN] {
            return Err(Rejection::Malformed);
        }
        let expected = expected_for(&offer.identity).ok_or(Rejection::Unexpected)?;
        Ok((offer, expected))
    }

    pub(crate) fn decode(bytes: &MessageBytes, kind: MessageKind) -> Result<Self, Rejection> {
        let mut fields = Decoder(bytes);
        if fields.array()? != MAGIC {
            return Err(Rejection::Malformed);
        }
        let versions = (fields.u16()?, fields.u16()?);
        if versions.1 < VERSION_MIN || versions.0 > VERSION_MAX || versions.0 > versions.1 {
            return Err(Rejection::VersionMismatch(versions.0, versions.1));
        }
        if fields.u8()? != kind as u8 {
            return Err(Rejection::OutOfOrder);
        }
        let role = match fields.u8()? {
            1 => StreamRole::Shm,
            2 => StreamRole::Tcp,
            3 => StreamRole::Store,
            4 => StreamRole::Launcher,
            _ => return Err(Rejection::Malformed),
        };
        let (secret, encrypted) = (fields.u8()?, fields.u8()?);
        let (epoch, job) = (fields.u32()?, fields.u64()?);
        let (from, to) = (fields.u32()?, fields.u32()?);
        if secret > 1 || encrypted > 1 || fields.array()? != [0; RESERVED_BYTES] {
            return Err(Rejection::Malformed);
        }
        let (nonce, tag) = (fields.array()?, fields.array()?);
        let encrypted = encrypted == 1;
        let identity = StreamId { job, epoch, from, to, role, encrypted };
        Ok(Self { kind, versions, identity, secret: secret == 1, nonce, tag })
    }
}

/// Hash over all messages so far.
#[derive(Clone)]
struct Transcript(Sha256);

impl Transcript {
    fn new() -> Self {
        Self(Sha256::new())
    }

    fn append(&mut self, bytes: &MessageBytes) {
        self.0.update(bytes);
    }

    /// The digest if `bytes` come next, with zeros in place of their tag.
    fn digest_with(&self, bytes: &MessageBytes) -> Tag {
        let mut next = self.0.clone();
        next.update(&bytes[..TAG_AT]);
        next.update([0; TAG_LEN]);
        digest(next)
    }

    /// Appends the next message of `side`, with its tag.
    fn append_tagged(&mut self, keys: &Keys, side: Side, mut message: Message) -> MessageBytes {
        message.tag = keys.tag(side, &self.digest_with(&message.encode()));
        let bytes = message.encode();
        self.append(&bytes);
        bytes
    }

    /// Appends a message of `side` if its tag is right.
    fn append_verified(
        &mut self,
        keys: &Keys,
        side: Side,
        bytes: &MessageBytes,
    ) -> Result<(), Rejection> {
        let tag = bytes.last_chunk().unwrap_or(&[0; TAG_LEN]);
        if !keys.verify(side, &self.digest_with(bytes), tag) {
            return Err(Rejection::BadTag);
        }
        self.append(bytes);
        Ok(())
    }
}

fn digest(transcript: Sha256) -> Tag {
    transcript.finalize().into()
}

/// Result of a handshake: the input of key derivation besides the own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The peer's nonce.
    pub(super) peer_nonce: Nonce,
    /// The digest of all messages.
    pub(super) transcript: Tag,
}

/// State of the dialler.
pub(in crate::bootstrap) struct Dialler {
    identity: StreamId,
    transcript: Transcript,
    peer_nonce: Nonce,
    expected_kind: MessageKind,
}

impl Dialler {
    /// The state, and the offer to send first. A nonce must be used once only.
    pub(crate) fn new(keys: &Keys, identity: StreamId, nonce: Nonce) -> (Self, MessageBytes) {
        let offer = Message::new(MessageKind::Offer, identity, keys, nonce).encode();
        let mut transcript = Transcript::new();
        transcript.append(&offer);
        let peer_nonce = [0; NONCE_LEN];
        (Self { identity, transcript, peer_nonce, expected_kind: MessageKind::Answer }, offer)
    }

    /// Processes a message. Returns the next message to send, or none once the stream is open.
    pub(crate) fn receive(
        &mut self,
        keys: &Keys,
        bytes: &MessageBytes,
    ) -> Result<Option<MessageBytes>, Rejection> {
        let message = Message::decode(bytes, self.expected_kind)?;
        if message.versions.0 != message.versions.1 {
            // The answer names one version, the chosen one.
            return Err(Rejection::VersionMismatch(message.versions.0, message.versions.1));
        }
        if message.secret != keys.has_secret() {
            return Err(secret_on_one_side(keys));
        }
        if message.identity != self.identity {
            return Err(self.identity.mismatch_with(&message.identity));
        }
        self.transcript.append_verified(keys, Side::Acceptor, bytes)?;
        if self.expected_kind == MessageKind::Welcome {
            return Ok(None);
        }
        (self.expected_kind, self.peer_nonce) = (MessageKind::Welcome, message.nonce);
        let confirm = Message::new(MessageKind::Confirm, self.identity, keys, [0; NONCE_LEN]);
        Ok(Some(self.transcript.append_tagged(keys, Side::Dialler, confirm)))
    }

    /// The result, once the stream is open.
    pub(super) fn agreed(&self) -> Agreement {
        Agreement { peer_nonce: self.peer_nonce, transcript: digest(self.transcript.0.clone()) }
    }
}

/// State of the acceptor.
pub(in crate::bootstrap) struct Acceptor {
    nonce: Nonce,
    transcript: Transcript,
    offered: Option<Message>,
    /// The reason to reject the offered stream, if it is not the expected one.
    mismatch: Option<Rejection>,
}

/// The acceptor's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Reply {
    /// The answer to an offer.
    Answer(MessageBytes),
    /// The welcome: the dialler is authenticated as this stream.
    Welcome(MessageBytes, StreamId),
}

impl Acceptor {
    /// A nonce must be used once only.
    pub(crate) fn new(nonce: Nonce) -> Self {
        Self { nonce, transcript: Transcript::new(), offered: None, mismatch: None }
    }

    /// Processes a message. `expected_for` gives the stream that is expected in place of the
    /// offered one, if any. A dialler that offers a different one is answered, so that it learns of
    /// the mismatch and closes.
    pub(crate) fn receive(
        &mut self,
        keys: &Keys,
        bytes: &MessageBytes,
        expected_for: impl FnOnce(&StreamId) -> Option<StreamId>,
    ) -> Result<Reply, Rejection> {
        let Some(offered) = self.offered else {
            let (offer, expected) = Message::decode_offer(bytes, expected_for)?;
            self.transcript.append(bytes);
            self.offered = Some(offer);
            self.mismatch =
                (expected != offer.identity).then(|| expected.mismatch_with(&offer.identity));
            let mut answer = Message::new(MessageKind::Answer, expected, keys, self.nonce);
            answer.versions = chosen_version(offer.versions);
            let answer = self.transcript.append_tagged(keys, Side::Acceptor, answer);
            return Ok(Reply::Answer(answer));
        };
        let confirm = Message::decode(bytes, MessageKind::Confirm)?;
        if confirm.secret != keys.has_secret() || offered.secret != confirm.secret {
            return Err(secret_on_one_side(keys));
        }
        let identity = confirm.identity;
        if identity != offered.identity || expected_for(&identity) != Some(identity) {
            return Err(Rejection::Unexpected);
        }
        if confirm.nonce != [0; NONCE_LEN] {
            return Err(Rejection::Malformed);
        }
        self.transcript.append_verified(keys, Side::Dialler, bytes)?;
        let mut welcome = Message::new(MessageKind::Welcome, identity, keys, [0; NONCE_LEN]);
        welcome.versions = chosen_version(offered.versions);
        Ok(Reply::Welcome(self.transcript.append_tagged(keys, Side::Acceptor, welcome), identity))
    }

    /// Why a dialler has closed the connection.
    pub(super) fn close_reason(&self, keys: &Keys) -> Rejection {
        match self.offered {
            None => Rejection::ClosedEarly,
            Some(offer) if offer.secret != keys.has_secret() => secret_on_one_side(keys),
            Some(_) => self.mismatch.unwrap_or(Rejection::ClosedAfterAnswer),
        }
    }

    /// The result, once the stream is open.
    pub(super) fn agreed(&self) -> Option<Agreement> {
        let peer_nonce = self.offered?.nonce;
        Some(Agreement { peer_nonce, transcript: digest(self.transcript.0.clone()) })
    }

    /// True after a valid offer.
    pub(super) fn has_offered(&self) -> bool {
        self.offered.is_some()
    }
}

/// The reason to reject a peer that differs in having a secret.
fn secret_on_one_side(keys: &Keys) -> Rejection {
    Rejection::SecretOnOneSide { peer_has: !keys.has_secret() }
}

/// The highest version that both ends support.
fn chosen_version(offered: (u16, u16)) -> (u16, u16) {
    let version = offered.1.min(VERSION_MAX);
    (version, version)
}
