//! Links over TCP: k connected sockets carry one link, slot i on socket i % k. Each slot goes
//! behind a 64-byte header (`frame`); on an encrypted link both are sealed. Sockets are connected
//! at their first use (`opening`) and never block: bytes that the system does not take at once stay
//! in the sender's slots. A stream of calls between hosts that breaks is made anew (`attempt`), and
//! goes on with the bytes that the receiver lacks, which the sender keeps (`kept`).
//! Law: besides the laws of links, no bytes of a peer make this side panic, read past its slot or
//! allocate.

mod attempt;
mod frame;
pub mod interface;
mod kept;
mod opening;
mod raw;
mod rx;
mod rx_lane;
mod socket;
mod tx;
mod tx_stream;

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Duration;

use super::Fault;
use super::aead::TAG;
use crate::error::{Error, Result};
use crate::partition::SlotShape;

pub use attempt::{ANSWER_LEN, Redial};
pub(crate) use attempt::{Attempt, Progress, is_own_lack};
#[cfg(any(test, feature = "internals"))]
pub use opening::Connected;
pub use opening::{AcceptStreams, DialStreams, NewerStream, OpenedStream};
pub(crate) use raw::{reset, unacknowledged};
pub use rx::Rx;
pub use socket::tune;
pub(crate) use socket::{HostSigns, abandon, host_signs, is_far, is_unanswered, stop_receiving};
pub use tx::Tx;
pub(crate) use tx_stream::keep_up_streams;

/// The alignment of payloads in memory, in bytes: a cache line, and a vector register.
const ALIGN: usize = 64;

/// How long a wait for a broken stream, or for room to keep what it sends, lasts until the next
/// look: few events tell when it goes on.
const RESUME_POLL: Duration = Duration::from_millis(5);

/// The layout of a frame on the wire and in the memory of its slot: header and payload, each with
/// its tag on an encrypted link.
#[derive(Clone, Copy, Debug)]
struct FrameLayout {
    tag: usize,
}

impl FrameLayout {
    fn new(sealed: bool) -> Self {
        Self { tag: if sealed { TAG } else { 0 } }
    }

    fn is_sealed(self) -> bool {
        self.tag > 0
    }

    /// Bytes before the payload.
    fn header_len(self) -> usize {
        frame::HEADER + self.tag
    }

    /// Bytes of a frame with `len` bytes of payload.
    fn frame_len(self, len: usize) -> usize {
        self.header_len() + len + self.tag
    }

    /// The offset of the frame in the memory of a slot, which aligns the payload.
    fn frame_offset(self) -> usize {
        self.header_len().next_multiple_of(ALIGN) - self.header_len()
    }

    /// Bytes from the memory of one slot to that of the next.
    fn stride(self, shape: SlotShape) -> usize {
        (self.frame_offset() + self.frame_len(shape.bytes)).next_multiple_of(ALIGN)
    }

    /// Memory for `slots` slots, and the offset of the first frame in it.
    fn slots(self, shape: SlotShape, slots: usize) -> Result<(Box<[u8]>, usize), Fault> {
        let len = slots * self.stride(shape) + ALIGN;
        let failed = |()| {
            let doing = format!("allocating {len} bytes for a link");
            Fault::NoMemory(Box::new(Error::io(doing, ErrorKind::OutOfMemory)))
        };
        let memory: Box<[u8]> = bytemuck::try_zeroed_slice_box(len).map_err(failed)?;
        let start = memory.as_ptr().align_offset(ALIGN) + self.frame_offset();
        Ok((memory, start))
    }
}

/// The streams of a link.
#[derive(Clone, Copy, Debug)]
pub struct StreamCount {
    /// Their number.
    pub streams: usize,
    /// Each has a key.
    pub is_sealed: bool,
}

/// Checks the parameters of a link.
fn check_parameters(call: &'static str, count: StreamCount, shape: SlotShape) -> Result<()> {
    let wrong = |argument, given, expected: &str| Error::argument(call, argument, given, expected);
    if count.streams == 0 {
        return Err(wrong("streams", "none".to_owned(), "at least one"));
    }
    if shape.capacity == 0
        || !shape.bytes.is_multiple_of(ALIGN)
        || u32::try_from(shape.bytes).is_err()
    {
        let expected = "at least one slot, of a multiple of 64 bytes, less than 4 GiB";
        return Err(wrong("shape", format!("{shape:?}"), expected));
    }
    Ok(())
}

/// How a call on a socket has found its connection ended.
#[derive(Debug)]
enum End {
    /// The peer has closed it.
    Closed,
    /// The connection has broken.
    Broken(io::Error),
}

impl End {
    /// How it has ended, in words.
    fn how(&self) -> String {
        match self {
            Self::Closed => "it closed the connection".into(),
            Self::Broken(error) => loss(error),
        }
    }
}

impl From<End> for Fault {
    fn from(end: End) -> Self {
        Self::Lost(end.how())
    }
}

/// Makes a call on a non-blocking socket, again after an interruption: bytes moved, none now
/// (`None`), or the end of its connection.
fn bytes_moved(mut call: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>, End> {
    loop {
        return match call() {
            Ok(0) => Err(End::Closed),
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(End::Broken(e)),
        };
    }
}

/// How a connection has ended, in words.
pub(crate) fn loss(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            format!("its host is unreachable: {error}")
        }
        // The first connection of a stream to which this host knew no way.
        ErrorKind::NotConnected => "its host is unreachable: this host knows no way there".into(),
        ErrorKind::ConnectionRefused => {
            "it refuses connections: it has closed its communicator, or its process has ended"
                .into()
        }
        _ => error.to_string(),
    }
}

/// Checks that a connection is open, without reading from it: unread bytes count as open. True if
/// there are any.
pub(crate) fn check_open(stream: &TcpStream) -> Result<bool, Fault> {
    Ok(look(stream)?)
}

/// As [`check_open`], with the end as the system tells it.
fn look(stream: &TcpStream) -> Result<bool, End> {
    bytes_moved(|| stream.peek(&mut [0])).map(|unread| unread.is_some())
}

/// Fuzz target: a header of any bytes, compared with an expected one.
#[cfg(feature = "internals")]
pub fn fuzz_header(data: &[u8]) {
    let Some((theirs, len)) = data.split_first_chunk().zip(Some(data.len())) else { return };
    let frame = super::Frame { len: len as u32, sequence: 7, fingerprint: 9 };
    let ours = frame::encode(3, &frame);
    let (theirs, _) = theirs;
    assert_eq!(frame::check(&ours, theirs).is_ok(), &ours == theirs);
    let _ = (frame::crc(theirs), frame::call(theirs));
}
