//! Links over TCP: k connected sockets carry one link, slot i on socket i % k, each slot behind a
//! 64-byte header (`frame`), both sealed if the link is. Sockets never block; what the network does
//! not take at once stays in the sender's slots. May touch: memory, partition, error, OS crates.
//! Laws: those of the link contract; nothing that a peer sends makes this side panic, read past
//! its slot or allocate.

mod frame;
pub mod interface;
mod raw;
mod rx;
mod socket;
mod tx;

use std::io::{self, ErrorKind};
use std::net::TcpStream;

use super::Fault;
use super::aead::TAG;
use crate::error::{Error, Result};
use crate::partition::SlotShape;

pub use rx::Rx;
pub use socket::{Settings, tune};
pub use tx::Tx;

/// Bytes that payloads are aligned to in memory: a cache line, and a vector register.
const ALIGN: usize = 64;

/// Where the parts of a frame lie, on the wire and in the memory of its slot: header, payload, and
/// behind each its tag, if the link is sealed.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tag: usize,
}

impl Layout {
    fn of(sealed: bool) -> Self {
        Self { tag: if sealed { TAG } else { 0 } }
    }

    fn is_sealed(self) -> bool {
        self.tag > 0
    }

    /// Bytes before the payload.
    fn head(self) -> usize {
        frame::HEADER + self.tag
    }

    /// Bytes of a frame with so many of payload.
    fn whole(self, len: usize) -> usize {
        self.head() + len + self.tag
    }

    /// Where in a slot's memory the frame begins, so that the payload is aligned.
    fn begin(self) -> usize {
        self.head().next_multiple_of(ALIGN) - self.head()
    }

    /// Bytes from one slot's memory to the next one's.
    fn stride(self, shape: SlotShape) -> usize {
        (self.begin() + self.whole(shape.bytes)).next_multiple_of(ALIGN)
    }

    /// Memory for `slots` slots, and where in it the first one's frame begins.
    fn slots(self, shape: SlotShape, slots: usize) -> Result<(Box<[u8]>, usize)> {
        let len = slots * self.stride(shape) + ALIGN;
        let failed =
            |()| Error::io(format!("allocating {len} bytes for a link"), ErrorKind::OutOfMemory);
        let memory: Box<[u8]> = bytemuck::try_zeroed_slice_box(len).map_err(failed)?;
        let start = memory.as_ptr().align_offset(ALIGN) + self.begin();
        Ok((memory, start))
    }
}

/// Refuses what no link can be made of, and makes the sockets non-blocking.
fn prepare(call: &'static str, streams: &[TcpStream], keys: usize, shape: SlotShape) -> Result<()> {
    let wrong = |argument, given, expected: &str| Error::Argument {
        call,
        argument,
        given,
        expected: expected.into(),
    };
    if streams.is_empty() {
        return Err(wrong("streams", "none".into(), "at least one connected socket"));
    }
    if keys > 0 && keys != streams.len() {
        return Err(wrong("keys", keys.to_string(), "one for each socket, or none"));
    }
    if shape.capacity == 0
        || !shape.bytes.is_multiple_of(ALIGN)
        || u32::try_from(shape.bytes).is_err()
    {
        let expected = "at least one slot, of a multiple of 64 bytes, less than 4 GiB";
        return Err(wrong("shape", format!("{shape:?}"), expected));
    }
    for stream in streams {
        stream.set_nonblocking(true).map_err(|e| Error::io("making a socket non-blocking", e))?;
    }
    Ok(())
}

/// What an answer of a non-blocking socket means: bytes moved, none now (`None`), or the end.
fn moved(answer: io::Result<usize>) -> Result<Option<usize>, Fault> {
    match answer {
        Ok(0) => Err(Fault::Lost("it closed the connection".into())),
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(Fault::Lost(e.to_string())),
    }
}

/// A look at a socket that takes nothing from it: bytes still unread mean that it is alive.
fn look(stream: &TcpStream) -> Result<(), Fault> {
    loop {
        match stream.peek(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            answer => return moved(answer).map(|_| ()),
        }
    }
}

/// A header whatever its bytes are, beside the one that is expected.
#[cfg(fuzzing)]
pub fn fuzz_header(data: &[u8]) {
    let Some((theirs, len)) = data.split_first_chunk().zip(Some(data.len())) else { return };
    let frame = super::Frame { len: len as u32, sequence: 7, fingerprint: 9 };
    let ours = frame::encode(3, &frame);
    let (theirs, _) = theirs;
    assert_eq!(frame::check(&ours, theirs).is_ok(), &ours == theirs);
    let _ = (frame::crc(theirs), frame::call(theirs));
}
