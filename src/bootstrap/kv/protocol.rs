//! What travels between a store and its clients, sealed wherever a handshake came before; and how
//! records are packed. May touch: socket, link's seals.
//! Law: lengths are checked before anything is allocated, an unknown kind or version is an error,
//! and no byte beyond the present frame is read.

use std::io;

use socket2::Socket;

use crate::bootstrap::socket::recv_now;
use crate::transport::aead::{self, Opener, Sealer};

/// The version of the store's frames and of the records in them.
pub(crate) const PROTOCOL: u16 = 1;
const MAGIC: [u8; 4] = *b"RRST";
const HEADER: usize = 24;
/// The most that a key, and that a value, may take.
const MAX_KEY: usize = 1024;
pub(crate) const MAX_VALUE: usize = 64 << 10;
/// Before a sealed message, sealed by itself: how long it is without its tag.
const LENGTH: usize = 4;
const PREFIX: usize = LENGTH + aead::TAG;
const MAX_FRAME: usize = HEADER + MAX_KEY + MAX_VALUE;
/// The most characters of a text in a record.
const MAX_TEXT: usize = 4096;

/// What a frame asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new meeting begins on this connection: older keys are out of sight.
    Begin = 1,
    /// Store a value at a key that has none.
    SetNew = 2,
    /// Wait for the first of several keys (one a line) to have a value.
    Get = 3,
    /// Wait outside a job that runs until a member invites; the value says who waits.
    Enter = 4,
    /// Who waits outside?
    Outside = 5,
    /// Answer the one with this ticket (the key) with the value.
    Invite = 6,
    /// The one who waited has been let in.
    Joined = 7,
    /// The members went on without these processes (the value), which may live.
    Behind = 8,
    /// Answer to what was done: `Begin`, `Invite`, `Joined`, `Behind`, and a `SetNew` that stored.
    Done = 0x81,
    /// The value that the key has (already), or what was asked for.
    Value = 0x82,
    /// No value came in time.
    Absent = 0x83,
    /// The request can't be served; the value says why.
    Refused = 0x84,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{
            Absent, Begin, Behind, Done, Enter, Get, Invite, Joined, Outside, Refused, SetNew,
            Value,
        };
        let asks = [Begin, SetNew, Get, Enter, Outside, Invite, Joined, Behind];
        let mut all = asks.into_iter().chain([Done, Value, Absent, Refused]);
        all.find(|&kind| kind as u8 == byte)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// The client's number of the request; the answer repeats it.
    pub(super) id: u32,
    /// How long the server may wait for a value.
    pub(super) wait_ms: u32,
    pub(super) key: String,
    pub(crate) value: Vec<u8>,
}

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.key.len() + self.value.len());
        out.extend(MAGIC);
        out.extend(PROTOCOL.to_le_bytes());
        out.extend([self.kind as u8, 0]);
        out.extend(self.id.to_le_bytes());
        out.extend(self.wait_ms.to_le_bytes());
        out.extend((self.key.len() as u32).to_le_bytes());
        out.extend((self.value.len() as u32).to_le_bytes());
        out.extend(self.key.as_bytes());
        out.extend(&self.value);
        out
    }
}

impl Frame {
    /// As it goes over a stream, sealed if that is; none if the key is used up.
    pub(super) fn travelling(&self, sealer: Option<&mut Sealer>) -> Option<Vec<u8>> {
        let clear = self.encode();
        let Some(sealer) = sealer else { return Some(clear) };
        let mut out = Vec::with_capacity(PREFIX + clear.len() + aead::TAG);
        out.extend((clear.len() as u32).to_le_bytes());
        out.extend([0; aead::TAG]);
        sealer.seal(&mut out).ok()?;
        out.extend(clear);
        out.extend([0; aead::TAG]);
        sealer.seal(&mut out[PREFIX..]).ok()?;
        Some(out)
    }
}

/// Why nothing more will come from a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It was closed or reset.
    Closed,
    /// There is no sign of its host any more.
    Unreachable,
    /// It speaks something else.
    Garbage(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::Closed,
        }
    }
}

/// The bytes of a frame that is on its way.
#[derive(Debug, Default)]
pub(in crate::bootstrap) struct Inbox(Vec<u8>, Option<Sealed>);

/// What it is opened by, if it is sealed, and how long it is, once that was opened.
#[derive(Debug)]
struct Sealed {
    opener: Opener,
    length: Option<usize>,
}

impl Inbox {
    /// What has come already, and the bytes of a header.
    #[cfg(fuzzing)]
    pub(crate) fn of(bytes: &[u8]) -> (Self, usize) {
        (Self(bytes.to_vec(), None), HEADER)
    }

    /// For what is sealed.
    pub(super) fn sealed(opener: Opener) -> Self {
        Self(Vec::new(), Some(Sealed { opener, length: None }))
    }

    /// Takes what has arrived; a frame if it is complete.
    pub(super) fn pull(&mut self, socket: &Socket) -> Result<Option<Frame>, Broken> {
        let mut piece = [0; 4096];
        loop {
            let whole = self.whole()?;
            if self.0.len() == whole {
                self.open()?;
                let (kind, key, _) = self.header()?.ok_or_else(cut)?;
                return self.take(kind, key).map(Some);
            }
            let missing = (whole - self.0.len()).min(piece.len());
            match recv_now(socket, &mut piece[..missing])? {
                Some(0) => return Err(Broken::Closed),
                Some(count) => self.0.extend(&piece[..count]),
                None => return Ok(None),
            }
        }
    }

    /// Has part of a frame arrived?
    pub(super) fn is_partial(&self) -> bool {
        !self.0.is_empty()
    }

    /// How long the present message is, as far as is known.
    fn whole(&mut self) -> Result<usize, Broken> {
        let Some(sealed) = &mut self.1 else {
            return Ok(self.header()?.map_or(HEADER, |(_, key, value)| HEADER + key + value));
        };
        if sealed.length.is_none() && self.0.len() == PREFIX {
            sealed.opener.open(&mut self.0).map_err(|_| forged())?;
            let length = self.0.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            sealed.length = Some(length as usize).filter(|length| *length <= MAX_FRAME);
            sealed.length.ok_or_else(cut)?;
        }
        Ok(sealed.length.map_or(PREFIX, |length| PREFIX + length + aead::TAG))
    }

    /// Leaves of a sealed message the one frame that was sealed.
    fn open(&mut self) -> Result<(), Broken> {
        let Some(sealed) = &mut self.1 else { return Ok(()) };
        sealed.length = None;
        sealed.opener.open(&mut self.0[PREFIX..]).map_err(|_| forged())?;
        self.0.drain(..PREFIX);
        self.0.truncate(self.0.len() - aead::TAG);
        match self.header()? {
            Some((_, key, value)) if HEADER + key + value == self.0.len() => Ok(()),
            _ => Err(cut()),
        }
    }

    /// Kind, length of the key and of the value, once the header is here.
    pub(crate) fn header(&self) -> Result<Option<(Kind, usize, usize)>, Broken> {
        let garbage = |text: String| Err(Broken::Garbage(text));
        let seen = self.0.len().min(MAGIC.len());
        if self.0[..seen] != MAGIC[..seen] {
            return garbage("it does not speak ringreduce's protocol".into());
        }
        let Some(header) = self.0.first_chunk::<HEADER>() else { return Ok(None) };
        let mut fields = Reader(&header[4..]);
        let (version, kind, zero) = (fields.u16()?, fields.u8()?, fields.u8()?);
        let (_id, _wait) = (fields.u32()?, fields.u32()?);
        let (key, value) = (fields.u32()? as usize, fields.u32()? as usize);
        if version != PROTOCOL {
            return garbage(format!("it speaks version {version}, this is version {PROTOCOL}"));
        }
        let Some(kind) = Kind::from_byte(kind).filter(|_| zero == 0) else {
            return garbage(format!("unknown message {kind}"));
        };
        if key > MAX_KEY || value > MAX_VALUE {
            return garbage(format!("a message of {key} + {value} bytes is too long"));
        }
        Ok(Some((kind, key, value)))
    }

    pub(crate) fn take(&mut self, kind: Kind, key: usize) -> Result<Frame, Broken> {
        let bytes = std::mem::take(&mut self.0);
        let mut fields = Reader(&bytes[8..]);
        let (id, wait_ms) = (fields.u32()?, fields.u32()?);
        let (key, value) = bytes[HEADER..].split_at(key);
        let key = String::from_utf8(key.to_vec())
            .map_err(|_| Broken::Garbage("a key that is no text".into()))?;
        Ok(Frame { kind, id, wait_ms, key, value: value.to_vec() })
    }
}

/// What is wrong with a message that the other end has not sent so.
fn forged() -> Broken {
    Broken::Garbage("what it sends was changed on its way".into())
}

fn cut() -> Broken {
    Broken::Garbage("a message is cut short".into())
}

/// Packs fields, little endian.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    /// Bytes, and before them how many.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut out = self.u32(bytes.len() as u32);
        out.0.extend(bytes);
        out
    }
    /// Text; cut where it is absurdly long.
    pub(crate) fn text(self, text: &str) -> Self {
        let text: String = text.chars().take(MAX_TEXT).collect();
        let mut out = self.u16(text.len() as u16);
        out.0.extend(text.as_bytes());
        out
    }
}

/// Unpacks fields; running out of bytes is an error.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(cut)?;
        self.0 = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        self.bytes(N)?.first_chunk().copied().ok_or_else(cut)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Broken> {
        self.array().map(u8::from_le_bytes)
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Broken> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Broken> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Broken> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn text(&mut self) -> Result<String, Broken> {
        let length = self.u16()? as usize;
        let text = String::from_utf8(self.bytes(length)?.to_vec())
            .map_err(|_| Broken::Garbage("text that is not UTF-8".into()))?;
        match text.chars().nth(MAX_TEXT) {
            None => Ok(text),
            Some(_) => Err(Broken::Garbage("text that is absurdly long".into())),
        }
    }
}
