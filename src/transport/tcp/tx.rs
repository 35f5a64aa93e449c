//! The sending end of a TCP link: `capacity` slots, each with room for its header in front of it,
//! so that one write carries both. May touch: the link contract, memory.
//! Laws: `commit` never waits; a slot is free again when the system has taken all of it, and slots
//! become free in the order in which they were committed.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::frame::{HEADER, encode, with_crc};
use super::{Layout, look, moved, prepare, raw};
use crate::error::Result;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use crate::transport::aead::Sealer;
use crate::transport::{self, Fault, Frame, poll};

/// Dropping a link waits this long for a peer that takes nothing of what was committed.
const LINGER: Duration = Duration::from_secs(2);

/// The sending end of a TCP link. After a fault it is of no more use.
pub struct Tx {
    lanes: Vec<Lane>,
    /// `capacity` frames: header, payload, and their tags.
    memory: Box<[u8]>,
    /// Where in `memory` the first frame begins.
    start: usize,
    /// Bytes of the payload in each slot.
    lens: Box<[u32]>,
    stride: usize,
    layout: Layout,
    /// Slots committed so far.
    committed: u64,
    /// Does each slot have a checksum?
    checks: bool,
}

/// One socket, and how far it is.
struct Lane {
    stream: TcpStream,
    /// What it is sealed by, if it is.
    sealer: Option<Sealer>,
    /// The number of the slot that it sends now, or next.
    slot: u64,
    /// Bytes of it that the system has taken.
    sent: usize,
}

impl Tx {
    /// A link over connected `streams`, in the order of the receiver's. The
    /// link owns them: nothing else may use them, also not for the other direction.
    ///
    /// # Errors
    /// Without sockets, or with slots that no link can have or there is no memory for.
    pub fn new(streams: Vec<TcpStream>, shape: SlotShape) -> Result<Self> {
        Self::sealed(streams, Vec::new(), shape)
    }

    /// The same, with a key for each stream by which all of it is sealed; or none at all.
    ///
    /// # Errors
    /// As [`Self::new`]; or if there is another number of keys.
    pub fn sealed(streams: Vec<TcpStream>, keys: Vec<Sealer>, shape: SlotShape) -> Result<Self> {
        prepare("tcp::Tx::new", &streams, keys.len(), shape)?;
        let layout = Layout::of(!keys.is_empty());
        let (memory, start) = layout.slots(shape, shape.capacity)?;
        let keys = keys.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let lane = |(i, (stream, sealer))| Lane { stream, sealer, slot: i as u64, sent: 0 };
        Ok(Self {
            lanes: streams.into_iter().zip(keys).enumerate().map(lane).collect(),
            memory,
            start,
            lens: vec![0; shape.capacity].into_boxed_slice(),
            stride: layout.stride(shape),
            layout,
            committed: 0,
            checks: !layout.is_sealed(),
        })
    }

    /// Slots have checksums, or not; as at the other end. They have, if nobody says, unless they
    /// are sealed, which says more.
    #[must_use]
    pub fn checked(mut self, checks: bool) -> Self {
        self.checks = checks && !self.layout.is_sealed();
        self
    }

    /// The oldest slot that is not wholly with the system, and its lane.
    fn oldest(&self) -> Option<&Lane> {
        self.lanes.iter().min_by_key(|lane| lane.slot).filter(|lane| lane.slot < self.committed)
    }

    fn free(&self) -> bool {
        let capacity = self.lens.len() as u64;
        self.oldest().is_none_or(|lane| self.committed - lane.slot < capacity)
    }

    /// Where the frame of slot number `slot` begins in memory, and its index.
    fn place(&self, slot: u64) -> (usize, usize) {
        let index = (slot % self.lens.len() as u64) as usize;
        (self.start + index * self.stride, index)
    }

    /// Writes the next slot's header, of this payload or of that which is in it; where it begins.
    fn describe(&mut self, frame: &Frame, payload: Option<Src<'_>>) -> usize {
        let (at, index) = self.place(self.committed);
        let crc = match payload {
            _ if !self.checks => 0,
            Some(payload) => raw::checksum(raw::bytes(&payload)),
            None => raw::checksum(&self.memory[at + HEADER..at + HEADER + frame.len as usize]),
        };
        let header = with_crc(encode(self.committed, frame), crc);
        self.memory[at..at + HEADER].copy_from_slice(&header);
        self.lens[index] = frame.len;
        at
    }

    /// Seals the frame that begins here and is described, with this payload or that which is in
    /// it: its header by itself, for the receiver looks at that first.
    fn seal(&mut self, at: usize, len: usize, payload: Option<Src<'_>>) -> Result<(), Fault> {
        let lane = (self.committed % self.lanes.len() as u64) as usize;
        let Some(sealer) = &mut self.lanes[lane].sealer else { return Ok(()) };
        let frame = &mut self.memory[at..at + self.layout.whole(len)];
        let (header, piece) = frame.split_at_mut(self.layout.head());
        sealer.seal(header)?;
        match payload {
            Some(payload) => sealer.seal_from(raw::bytes(&payload), piece),
            None => sealer.seal(piece),
        }
    }

    /// Hands over what was described and sealed.
    fn hand_over(&mut self) -> Result<(), Fault> {
        let lane = (self.committed % self.lanes.len() as u64) as usize;
        self.committed += 1;
        self.push(lane)
    }

    /// Moves what lane `i` has to send, until there is nothing left or the system takes no more.
    fn push(&mut self, i: usize) -> Result<(), Fault> {
        while self.lanes[i].slot < self.committed {
            let (at, index) = self.place(self.lanes[i].slot);
            let whole = self.layout.whole(self.lens[index] as usize);
            let lanes = self.lanes.len() as u64;
            let lane = &mut self.lanes[i];
            match (&lane.stream).write(&self.memory[at + lane.sent..at + whole]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                answer => match moved(answer)? {
                    Some(bytes) => lane.sent += bytes,
                    None => return Ok(()),
                },
            }
            if lane.sent == whole {
                lane.slot += lanes;
                lane.sent = 0;
            }
        }
        Ok(())
    }
}

impl transport::Tx for Tx {
    fn ready(&mut self) -> Result<bool, Fault> {
        Ok(self.free() || self.flush()? || self.free())
    }

    fn reserve(&mut self, len: usize) -> Dst<'_> {
        let payload = self.place(self.committed).0 + self.layout.head();
        Dst::from(&mut self.memory[payload..payload + len])
    }

    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        let at = self.describe(frame, None);
        self.seal(at, frame.len as usize, None)?;
        self.hand_over()
    }

    /// What the system takes at once goes straight from the payload; only the rest is copied. If it
    /// is to be sealed, that is done on its way to the slot.
    fn give(&mut self, frame: &Frame, payload: Src<'_>) -> Result<(), Fault> {
        let at = self.describe(frame, Some(payload));
        if self.layout.is_sealed() {
            self.seal(at, payload.len(), Some(payload))?;
            return self.hand_over();
        }
        let count = self.lanes.len() as u64;
        let lane = &mut self.lanes[(self.committed % count) as usize];
        self.committed += 1;
        let whole = HEADER + payload.len();
        while lane.slot + 1 == self.committed && lane.sent < whole {
            let header = &self.memory[at + lane.sent.min(HEADER)..at + HEADER];
            let rest = payload.after(lane.sent.saturating_sub(HEADER));
            match raw::send(&lane.stream, header, rest) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => match moved(answer)? {
                    Some(bytes) => lane.sent += bytes,
                    None => break,
                },
            }
        }
        if lane.slot + 1 == self.committed && lane.sent == whole {
            (lane.slot, lane.sent) = (lane.slot + count, 0);
            return Ok(());
        }
        let gone =
            if lane.slot + 1 == self.committed { lane.sent.saturating_sub(HEADER) } else { 0 };
        let slot = &mut self.memory[at + HEADER + gone..at + whole];
        Dst::from(slot).fill(payload.after(gone));
        Ok(())
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn is_dear(&self) -> bool {
        true
    }

    fn sent(&self) -> u64 {
        self.committed
    }

    fn forsake(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.slot = self.committed.max(lane.slot));
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        for lane in 0..self.lanes.len() {
            self.push(lane)?;
        }
        Ok(self.oldest().is_none())
    }

    fn outgoing(&self) -> Option<RawFd> {
        self.oldest().map(|lane| lane.stream.as_raw_fd())
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        match self.outgoing() {
            Some(own) if !outgoing.contains(&own) => poll::sleep(limit, None, &[own]),
            _ => poll::sleep(limit, None, outgoing),
        }
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        // The receiver never sends, so there is nothing to read until it closes.
        self.lanes.iter().try_for_each(|lane| look(&lane.stream))
    }
}

impl Drop for Tx {
    /// Hands over what was committed, then ends the streams: the peer reads all of it first.
    fn drop(&mut self) {
        use transport::Tx;
        while let Ok(false) = self.flush() {
            let start = Instant::now();
            self.park(LINGER, &[]);
            if start.elapsed() >= LINGER {
                break;
            }
        }
        for lane in &self.lanes {
            // Fails if the peer is gone: then there is nothing to end.
            let _ = lane.stream.shutdown(Shutdown::Write);
        }
    }
}
