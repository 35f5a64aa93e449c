//! Protocol of the rendezvous store: frames with a key and a value, encrypted after a handshake;
//! and the codec of the records in them.
//! Law: lengths are checked before memory is allocated, unknown kinds and versions are errors, and
//! no byte after the present frame is read.

use std::io;

use socket2::Socket;

use crate::bootstrap::socket::try_recv;
use crate::codec::Malformed;
pub(crate) use crate::codec::{Decoder, Encoder};
use crate::transport::aead::{self, OpeningKey, SealingKey};

/// Version of frames and records.
pub(crate) const PROTOCOL: u16 = 2;
const MAGIC: [u8; 4] = *b"RRST";
const HEADER_LEN: usize = 24;
/// Longest key and value.
const MAX_KEY_LEN: usize = 1024;
/// Room for the table of 256 ranks with the longest names of hosts, which each joiner gets.
pub(crate) const MAX_VALUE_LEN: usize = 128 << 10;
/// Before an encrypted frame comes its length without the tag, encrypted by itself.
const LENGTH_LEN: usize = 4;
const PREFIX_LEN: usize = LENGTH_LEN + aead::TAG;
const MAX_FRAME_LEN: usize = HEADER_LEN + MAX_KEY_LEN + MAX_VALUE_LEN;

/// Requests (below 0x80) and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Begins a new rendezvous on this connection; older keys are out of sight.
    Begin = 1,
    /// Stores a value at a key that has none.
    SetNew = 2,
    /// Waits until one of several keys (one per line) has a value.
    Get = 3,
    /// Enters the join queue; the value is the joiner's record. The answer comes when a member
    /// admits it.
    Join = 4,
    /// Lists the join queue.
    ListJoiners = 5,
    /// Answers the join request whose number is the key, with the value.
    Admit = 6,
    /// The sender was admitted and has links to the members.
    Joined = 7,
    /// The members go on without the processes in the value.
    Excluded = 8,
    /// Asks which of the first ranks (their number is the value) have no value under a topic, which
    /// is the key.
    ListMissing = 9,
    /// The sender is done with the rendezvous: its end is no failure.
    Leave = 10,
    /// Answer: done.
    Done = 0x81,
    /// Answer: the key's value, or a list.
    Value = 0x82,
    /// Answer: no value came in time, or no such join request waits.
    Absent = 0x83,
    /// Answer: refused; the value is the reason.
    Refused = 0x84,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::{
            Absent, Admit, Begin, Done, Excluded, Get, Join, Joined, Leave, ListJoiners,
            ListMissing, Refused, SetNew, Value,
        };
        let requests =
            [Begin, SetNew, Get, Join, ListJoiners, Admit, Joined, Excluded, ListMissing, Leave];
        let mut all = requests.into_iter().chain([Done, Value, Absent, Refused]);
        all.find(|&kind| kind as u8 == byte)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreFrame {
    pub(crate) kind: FrameKind,
    /// The client's number of the request, repeated by the answer.
    pub(super) id: u32,
    /// How long the server may wait for a value, in milliseconds.
    pub(super) wait_ms: u32,
    pub(super) key: String,
    pub(crate) value: Vec<u8>,
}

impl StoreFrame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let header = Encoder(MAGIC.to_vec()).u16(PROTOCOL).u8(self.kind as u8).u8(0);
        let header = header.u32(self.id).u32(self.wait_ms);
        let header = header.u32(self.key.len() as u32).u32(self.value.len() as u32);
        [&header.0, self.key.as_bytes(), &self.value].concat()
    }

    /// Bytes to send, encrypted if the stream is; none if the key is used up.
    pub(super) fn to_wire(&self, sealer: Option<&mut SealingKey>) -> Option<Vec<u8>> {
        let clear = self.encode();
        let Some(sealer) = sealer else { return Some(clear) };
        let mut out = Vec::with_capacity(PREFIX_LEN + clear.len() + aead::TAG);
        out.extend((clear.len() as u32).to_le_bytes());
        out.extend([0; aead::TAG]);
        sealer.seal(&mut out).ok()?;
        out.extend(clear);
        out.extend([0; aead::TAG]);
        sealer.seal(&mut out[PREFIX_LEN..]).ok()?;
        Some(out)
    }
}

/// Why a stream gives no further frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// The peer closed or reset the connection.
    Closed,
    /// The peer's host gives no sign of life.
    Unreachable,
    /// The peer sent bytes that are no valid frame.
    Malformed(String),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::Closed,
        }
    }
}

impl From<Malformed> for StreamError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.to_string())
    }
}

/// Bytes of a frame that has partly arrived.
#[derive(Debug, Default)]
pub(in crate::bootstrap) struct FrameBuffer {
    bytes: Vec<u8>,
    encryption: Option<Encryption>,
}

/// Decryption of an encrypted frame, and the frame's length once that was decrypted.
#[derive(Debug)]
struct Encryption {
    opener: OpeningKey,
    plain_len: Option<usize>,
}

impl FrameBuffer {
    /// A buffer with these bytes, and the length of a header.
    #[cfg(feature = "internals")]
    pub(crate) fn of(bytes: &[u8]) -> (Self, usize) {
        (Self { bytes: bytes.to_vec(), encryption: None }, HEADER_LEN)
    }

    /// A buffer for an encrypted stream.
    pub(super) fn encrypted(opener: OpeningKey) -> Self {
        let encryption = Some(Encryption { opener, plain_len: None });
        Self { bytes: Vec::new(), encryption }
    }

    /// Reads what has arrived; returns a frame once it is complete.
    pub(super) fn try_read(&mut self, socket: &Socket) -> Result<Option<StoreFrame>, StreamError> {
        let mut piece = [0; 4096];
        loop {
            let message_len = self.message_len()?;
            if self.bytes.len() == message_len {
                self.decrypt()?;
                let (kind, key, _) = self.header()?.ok_or_else(truncated)?;
                return self.take_frame(kind, key).map(Some);
            }
            let wanted = (message_len - self.bytes.len()).min(piece.len());
            match try_recv(socket, &mut piece[..wanted])? {
                Some(0) => return Err(StreamError::Closed),
                Some(count) => self.bytes.extend(&piece[..count]),
                None => return Ok(None),
            }
        }
    }

    /// True if part of a frame has arrived.
    pub(super) fn is_partial(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Length of the present message, as far as it is known.
    fn message_len(&mut self) -> Result<usize, StreamError> {
        let Some(encryption) = &mut self.encryption else {
            let (_, key, value) = self.header()?.unwrap_or((FrameKind::Begin, 0, 0));
            return Ok(HEADER_LEN + key + value);
        };
        if encryption.plain_len.is_none() && self.bytes.len() == PREFIX_LEN {
            encryption.opener.open(&mut self.bytes).map_err(|_| tampered())?;
            let length = self.bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            encryption.plain_len = Some(length as usize).filter(|length| *length <= MAX_FRAME_LEN);
            encryption.plain_len.ok_or_else(truncated)?;
        }
        Ok(encryption.plain_len.map_or(PREFIX_LEN, |length| PREFIX_LEN + length + aead::TAG))
    }

    /// Replaces an encrypted message in the buffer by its frame.
    fn decrypt(&mut self) -> Result<(), StreamError> {
        let Some(encryption) = &mut self.encryption else { return Ok(()) };
        encryption.plain_len = None;
        encryption.opener.open(&mut self.bytes[PREFIX_LEN..]).map_err(|_| tampered())?;
        self.bytes.drain(..PREFIX_LEN);
        self.bytes.truncate(self.bytes.len() - aead::TAG);
        match self.header()? {
            Some((_, key, value)) if HEADER_LEN + key + value == self.bytes.len() => Ok(()),
            _ => Err(truncated()),
        }
    }

    /// Kind, length of the key and length of the value, once the header has arrived.
    pub(crate) fn header(&self) -> Result<Option<(FrameKind, usize, usize)>, StreamError> {
        let malformed = |text: String| Err(StreamError::Malformed(text));
        let seen = self.bytes.len().min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return malformed("it does not speak ringreduce's protocol".into());
        }
        let Some(header) = self.bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let mut fields = Decoder(&header[4..]);
        let (version, kind, zero) = (fields.u16()?, fields.u8()?, fields.u8()?);
        let (_id, _wait) = (fields.u32()?, fields.u32()?);
        let (key, value) = (fields.u32()? as usize, fields.u32()? as usize);
        if version != PROTOCOL {
            return malformed(format!("it speaks version {version}, this is version {PROTOCOL}"));
        }
        let Some(kind) = FrameKind::from_byte(kind).filter(|_| zero == 0) else {
            return malformed(format!("unknown message {kind}"));
        };
        if key > MAX_KEY_LEN || value > MAX_VALUE_LEN {
            return malformed(format!("a message of {key} + {value} bytes is too long"));
        }
        Ok(Some((kind, key, value)))
    }

    pub(crate) fn take_frame(
        &mut self,
        kind: FrameKind,
        key: usize,
    ) -> Result<StoreFrame, StreamError> {
        let bytes = std::mem::take(&mut self.bytes);
        let mut fields = Decoder(&bytes[8..]);
        let (id, wait_ms) = (fields.u32()?, fields.u32()?);
        let (key, value) = bytes[HEADER_LEN..].split_at(key);
        let key = String::from_utf8(key.to_vec())
            .map_err(|_| StreamError::Malformed("a key that is no text".into()))?;
        Ok(StoreFrame { kind, id, wait_ms, key, value: value.to_vec() })
    }
}

/// The error of a message whose tag is wrong.
fn tampered() -> StreamError {
    StreamError::Malformed("what it sends was changed on its way".into())
}

fn truncated() -> StreamError {
    Malformed::Truncated.into()
}
