//! The sending end of a TCP link: `capacity` slots, each behind its header in memory, so that one
//! write carries both.
//! Law: `commit` never waits; a slot is free again when the system has taken all its bytes, and
//! slots become free in the order of their commits.

use std::os::fd::RawFd;
use std::time::Duration;

use super::frame::{HEADER, encode, with_crc};
use super::opening::DialStreams;
use super::tx_stream::SharedStream;
use super::{FrameLayout, RESUME_POLL, StreamCount, check_parameters, raw};
use crate::error::Result;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use crate::transport::aead::SealingKey;
use crate::transport::linger::linger;
use crate::transport::{self, Fault, Frame, poll};

/// One stream, and what it sends.
#[derive(Default)]
struct Lane {
    stream: SharedStream,
    is_dialled: bool,
    /// The key, on an encrypted link.
    sealer: Option<SealingKey>,
    /// The number of the slot that the socket sends now, or next.
    slot: u64,
    /// Bytes of that slot's frame that the system has taken.
    sent: usize,
}

/// The sending end of a TCP link. After a fault the link is unusable.
pub struct Tx {
    lanes: Vec<Lane>,
    dialler: Box<dyn DialStreams>,
    /// `capacity` frames: header, payload, and their tags. Empty before the first slot.
    memory: Box<[u8]>,
    /// The offset of the first frame in `memory`.
    start: usize,
    shape: SlotShape,
    /// Bytes of payload in each slot.
    lens: Box<[u32]>,
    stride: usize,
    layout: FrameLayout,
    /// Slots committed so far.
    committed: u64,
    /// The number of the slot that has the first place in memory.
    base: u64,
    has_checksums: bool,
    /// The peer's slots come on the same socket.
    has_receiver_beside: bool,
    /// The link has waited for its peer and is about to be dropped.
    is_lingered: bool,
}

impl Tx {
    /// A link over as many streams as `count` says, each of which `dialler` opens with its first
    /// slot.
    ///
    /// # Errors
    /// Without streams, or with a slot shape that no link can have.
    pub fn new(
        dialler: Box<dyn DialStreams>,
        count: StreamCount,
        shape: SlotShape,
    ) -> Result<Self> {
        check_parameters("tcp::Tx::new", count, shape)?;
        let layout = FrameLayout::new(count.is_sealed);
        Ok(Self {
            lanes: (0..count.streams as u64).map(|slot| Lane { slot, ..Lane::default() }).collect(),
            dialler,
            memory: Box::default(),
            start: 0,
            shape,
            lens: vec![0; shape.capacity].into_boxed_slice(),
            stride: layout.stride(shape),
            layout,
            committed: 0,
            base: 0,
            has_checksums: !layout.is_sealed(),
            has_receiver_beside: false,
            is_lingered: false,
        })
    }

    /// Allocates the slots at the first use.
    fn make_slots(&mut self) -> Result<(), Fault> {
        if self.memory.is_empty() {
            (self.memory, self.start) = self.layout.slots(self.shape, self.shape.capacity)?;
        }
        Ok(())
    }

    /// Dials the stream of the next slot, unless it is open: a connection whose hello no slot
    /// follows would hold a place of the receiver's.
    fn open(&mut self) -> Result<(), Fault> {
        self.make_slots()?;
        let at = (self.committed % self.lanes.len() as u64) as usize;
        let lane = &mut self.lanes[at];
        if !lane.is_dialled {
            let mut opened = self.dialler.dial(at)?;
            (lane.is_dialled, lane.sealer) = (true, opened.key.take());
            lane.stream.open(opened)?;
        }
        Ok(())
    }

    /// Turns checksums on or off, as at the other end. Without this call, slots of a plain link
    /// have them; slots of an encrypted link never do, because their tags say more.
    #[must_use]
    pub fn with_checksums(mut self, checks: bool) -> Self {
        self.has_checksums = checks && !self.layout.is_sealed();
        self
    }

    /// For a socket on which the peer's slots come too: before it is closed the peer has got all of
    /// this link's. A socket that is closed with unread bytes resets its connection.
    #[must_use]
    pub(crate) fn with_receiver_beside(mut self) -> Self {
        self.has_receiver_beside = true;
        self
    }

    /// The lane of the oldest slot that the system has not taken wholly.
    fn oldest(&self) -> Option<&Lane> {
        self.lanes.iter().min_by_key(|lane| lane.slot).filter(|lane| lane.slot < self.committed)
    }

    fn has_free_slot(&self) -> bool {
        let capacity = self.lens.len() as u64;
        self.oldest().is_none_or(|lane| self.committed - lane.slot < capacity)
    }

    /// The index of slot number `slot`.
    fn index(&self, slot: u64) -> usize {
        ((slot - self.base) % self.lens.len() as u64) as usize
    }

    /// The offset in memory of the frame of slot number `slot`.
    fn frame_at(&self, slot: u64) -> usize {
        self.start + self.index(slot) * self.stride
    }

    /// Gives the next slot the first place in memory if no slot waits to be sent. A link whose
    /// bytes the system takes at once thus fills the same memory each time, which stays in the
    /// cache.
    fn reuse_first_place(&mut self) {
        if self.oldest().is_none() {
            self.base = self.committed;
        }
    }

    /// Writes the header of the next slot, for `payload` or else for the payload in the slot.
    /// Returns the offset of the frame.
    fn write_header(&mut self, frame: &Frame, payload: Option<Src<'_>>) -> usize {
        let (at, index) = (self.frame_at(self.committed), self.index(self.committed));
        let crc = match payload {
            _ if !self.has_checksums => 0,
            Some(payload) => raw::checksum(raw::slice(&payload)),
            None => raw::checksum(&self.memory[at + HEADER..at + HEADER + frame.len as usize]),
        };
        let header = with_crc(encode(self.committed, frame), crc);
        self.memory[at..at + HEADER].copy_from_slice(&header);
        self.lens[index] = frame.len;
        at
    }

    /// On an encrypted link, seals the frame at this offset, with `payload` or else the payload in
    /// the slot. The header is a piece of its own, because the receiver reads it first.
    fn seal(&mut self, at: usize, len: usize, payload: Option<Src<'_>>) -> Result<(), Fault> {
        let lane = (self.committed % self.lanes.len() as u64) as usize;
        let Some(sealer) = &mut self.lanes[lane].sealer else { return Ok(()) };
        let frame = &mut self.memory[at..at + self.layout.frame_len(len)];
        let (header, piece) = frame.split_at_mut(self.layout.header_len());
        sealer.seal(header)?;
        match payload {
            Some(payload) => sealer.seal_from(raw::slice(&payload), piece),
            None => sealer.seal(piece),
        }
    }

    /// Commits the finished frame, and sends what the system takes at once.
    fn commit_frame(&mut self) -> Result<(), Fault> {
        let lane = (self.committed % self.lanes.len() as u64) as usize;
        self.committed += 1;
        self.send_lane(lane)
    }

    /// Sends the committed slots of lane `i`, until none is left or the system takes no more.
    fn send_lane(&mut self, i: usize) -> Result<(), Fault> {
        while self.lanes[i].slot < self.committed {
            let slot = self.lanes[i].slot;
            let at = self.frame_at(slot);
            let frame_len = self.layout.frame_len(self.lens[self.index(slot)] as usize);
            let lanes = self.lanes.len() as u64;
            let lane = &mut self.lanes[i];
            let rest = &self.memory[at + lane.sent..at + frame_len];
            let sent = lane.stream.lock().send(rest, Src::from(&[][..]))?;
            let Some(bytes) = sent else { return Ok(()) };
            lane.sent += bytes;
            if lane.sent == frame_len {
                lane.slot += lanes;
                lane.sent = 0;
            }
        }
        Ok(())
    }
}

impl transport::Tx for Tx {
    fn ready(&mut self) -> Result<bool, Fault> {
        Ok(self.has_free_slot() || self.flush()? || self.has_free_slot())
    }

    fn make_room(&mut self, _len: usize) -> Result<(), Fault> {
        self.open()
    }

    fn reserve(&mut self, len: usize) -> Result<Dst<'_>, Fault> {
        self.make_slots()?;
        self.reuse_first_place();
        let payload = self.frame_at(self.committed) + self.layout.header_len();
        Ok(Dst::from(&mut self.memory[payload..payload + len]))
    }

    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        self.open()?;
        let at = self.write_header(frame, None);
        self.seal(at, frame.len as usize, None)?;
        self.commit_frame()
    }

    /// Bytes that the system takes at once go straight from the payload; only the rest is copied to
    /// the slot. On an encrypted link the payload is sealed into the slot.
    fn send_from(&mut self, frame: &Frame, payload: Src<'_>) -> Result<(), Fault> {
        self.open()?;
        self.reuse_first_place();
        let at = self.write_header(frame, Some(payload));
        if self.layout.is_sealed() {
            self.seal(at, payload.len(), Some(payload))?;
            return self.commit_frame();
        }
        let count = self.lanes.len() as u64;
        let lane = &mut self.lanes[(self.committed % count) as usize];
        self.committed += 1;
        let frame_len = HEADER + payload.len();
        while lane.slot + 1 == self.committed && lane.sent < frame_len {
            let header = &self.memory[at + lane.sent.min(HEADER)..at + HEADER];
            let rest = payload.part(lane.sent.saturating_sub(HEADER)..payload.len());
            match lane.stream.lock().send(header, rest)? {
                Some(bytes) => lane.sent += bytes,
                None => break,
            }
        }
        if lane.slot + 1 == self.committed && lane.sent == frame_len {
            (lane.slot, lane.sent) = (lane.slot + count, 0);
            return Ok(());
        }
        let is_current = lane.slot + 1 == self.committed;
        let sent = if is_current { lane.sent.saturating_sub(HEADER) } else { 0 };
        let slot = &mut self.memory[at + HEADER + sent..at + frame_len];
        Dst::from(slot).fill(payload.part(sent..payload.len()));
        Ok(())
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn is_syscall_backed(&self) -> bool {
        true
    }

    fn discard_unsent(&mut self) {
        for lane in &mut self.lanes {
            lane.slot = self.committed.max(lane.slot);
            lane.stream.lock().give_up();
        }
    }

    fn is_delivered(&self) -> bool {
        !self.lanes.iter().any(|lane| {
            let stream = lane.stream.lock();
            stream.may_deliver() || self.has_receiver_beside && !stream.is_acknowledged()
        })
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        for lane in 0..self.lanes.len() {
            let mut stream = self.lanes[lane].stream.lock();
            if stream.owes_bytes() {
                let checked = stream.check();
                // A peer that has got all may leave without an answer to a stream that broke after
                // the system had taken all its slots.
                if self.lanes[lane].slot < self.committed {
                    checked?;
                }
            }
            drop(stream);
            self.send_lane(lane)?;
        }
        Ok(self.oldest().is_none())
    }

    fn set_lingered(&mut self) {
        self.is_lingered = true;
    }

    fn sent_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.stream.lock().sent_bytes).sum()
    }

    fn outgoing(&self) -> Option<RawFd> {
        self.oldest()?.stream.lock().descriptor()
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        let lacks_events = self.lanes.iter().any(|lane| lane.stream.lock().lacks_events());
        let limit = if lacks_events { limit.min(RESUME_POLL) } else { limit };
        match self.outgoing() {
            Some(own) if !outgoing.contains(&own) => poll::sleep(limit, None, &[own]),
            _ => poll::sleep(limit, None, outgoing),
        };
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        self.dialler.check_receiver()?;
        self.lanes.iter().try_for_each(|lane| lane.stream.lock().check())
    }
}

impl Drop for Tx {
    /// Sends all committed bytes, then shuts the streams down, so that the peer reads every byte
    /// before the end.
    fn drop(&mut self) {
        if !self.is_lingered {
            linger(&mut [self]);
        }
        self.lanes.iter().for_each(|lane| lane.stream.lock().shut_down());
    }
}
