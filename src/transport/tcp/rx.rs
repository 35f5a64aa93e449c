//! The receiving end of a TCP link: memory for one frame, filled by non-blocking reads of exactly
//! the next frame. On a plain link, `recv_into` reads payloads of 16 KiB or more straight to their
//! destination.
//! Law: no payload byte is used before the header was compared with the expected one; `ready` and
//! `recv_into` return true only once the payload is complete and verified: by its checksum, if the
//! link has checksums, or by its tag on an encrypted link.

use std::io::Read;
use std::os::fd::RawFd;
use std::time::Duration;

use super::frame::{HEADER, call, check, crc, encode, with_crc};
use super::opening::AcceptStreams;
use super::rx_lane::Lane;
use super::{FrameLayout, RESUME_POLL, StreamCount, check_parameters, raw};
use crate::error::Result;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use crate::transport::{self, Fault, Frame, PeekedHeader, poll};

/// Bytes that a look reads after a header; fewer than `MIN_DIRECT_BYTES`, and than each slot has.
const READ_AHEAD: usize = 2 << 10;

/// The longest short frame, in bytes with its header and tags. An Ethernet carries it in one
/// segment, of 1,448 bytes at most.
const MAX_SHORT_FRAME: usize = 1400;

/// Shorter payloads are copied, which costs less than the second system call of a direct receive.
const MIN_DIRECT_BYTES: usize = 16 << 10;

/// The receiving end of a TCP link. After a fault the link is unusable.
pub struct Rx {
    lanes: Vec<Lane>,
    acceptor: Box<dyn AcceptStreams>,
    /// One frame: header, payload, and their tags. Empty before a stream has come.
    memory: Box<[u8]>,
    /// The offset of the header in `memory`.
    start: usize,
    shape: SlotShape,
    layout: FrameLayout,
    /// Bytes of the frame, and of what follows it, that have been received.
    received: usize,
    /// Bytes of the frame, once its header was compared.
    frame_len: usize,
    /// The header has passed `open_header`, which decrypts it on an encrypted link.
    header_opened: bool,
    /// The header could not be opened by a look at it, which tells no fault.
    is_forged: bool,
    /// How the connection has ended, if a look at the header found that: the system says so once.
    lost: Option<String>,
    /// The header was compared with the expected one.
    header_checked: bool,
    /// The number of the slot, from 0.
    slot: u64,
    /// True if the slots of this link have checksums.
    has_checksums: bool,
    /// The checksum that the header of this slot gives; 0 without checksums.
    crc: u32,
    /// The payload was compared with its checksum, or opened.
    payload_verified: bool,
    /// A look at the next header reads what follows it as well.
    reads_ahead: bool,
    /// The system acknowledges short frames late.
    delays_acknowledgements: bool,
    /// The received bytes of the payload are in the memory of a `recv_into`, not in this one.
    is_elsewhere: bool,
}

impl Rx {
    /// A link over as many streams as `count` says, which `acceptor` gives once the peer has opened
    /// them.
    ///
    /// # Errors
    /// Without streams, or with a slot shape that no link can have.
    pub fn new(
        acceptor: Box<dyn AcceptStreams>,
        count: StreamCount,
        shape: SlotShape,
    ) -> Result<Self> {
        check_parameters("tcp::Rx::new", count, shape)?;
        let layout = FrameLayout::new(count.is_sealed);
        Ok(Self {
            lanes: (0..count.streams).map(|_| Lane::default()).collect(),
            acceptor,
            memory: Box::default(),
            start: 0,
            shape,
            layout,
            received: 0,
            frame_len: 0,
            header_opened: false,
            is_forged: false,
            lost: None,
            header_checked: false,
            slot: 0,
            has_checksums: !layout.is_sealed(),
            crc: 0,
            payload_verified: false,
            reads_ahead: false,
            delays_acknowledgements: false,
            is_elsewhere: false,
        })
    }

    /// Turns checksums on or off, as at the other end: see `Tx::with_checksums`.
    #[must_use]
    pub fn with_checksums(mut self, checks: bool) -> Self {
        self.has_checksums = checks && !self.layout.is_sealed();
        self
    }

    /// Makes a look at the next header read what follows it, the next frames of short payloads
    /// among it: a short message then costs one system call instead of two. For a plain link over
    /// one socket whose slots are all looked at.
    #[must_use]
    pub(crate) fn with_read_ahead(mut self) -> Self {
        self.reads_ahead = !self.layout.is_sealed() && self.lanes.len() == 1;
        self
    }

    /// Lets the system acknowledge short frames late, two or more at once. The sockets of this link
    /// carry nothing to the sender, so each acknowledgement is a segment of its own, which costs
    /// both hosts more than the frame's bytes do.
    #[must_use]
    pub(crate) fn with_delayed_acknowledgements(mut self) -> Self {
        self.delays_acknowledgements = true;
        self
    }

    /// The index of the socket of the next slot.
    fn lane(&self) -> usize {
        (self.slot % self.lanes.len() as u64) as usize
    }

    /// Accepts the stream of the next slot, if the peer has opened it since.
    fn accept_stream(&mut self) -> Result<(), Fault> {
        let at = self.lane();
        if self.lanes[at].accept(at, &mut *self.acceptor)? && self.memory.is_empty() {
            (self.memory, self.start) = self.layout.slots(self.shape, 1)?;
        }
        Ok(())
    }

    /// The descriptor of the stream of the next slot, if it is open.
    fn descriptor(&self) -> Option<RawFd> {
        self.lanes[self.lane()].descriptor()
    }

    /// Reads more of the first `want` bytes of the frame, if anything has come.
    fn read_more(&mut self, want: usize) -> Result<Option<usize>, Fault> {
        let at = self.lane();
        if self.memory.is_empty() {
            return Ok(None);
        }
        let rest = &mut self.memory[self.start + self.received..self.start + want];
        self.lanes[at].read(&mut *self.acceptor, |mut stream| stream.read(rest))
    }

    /// Reads the first `want` bytes of the frame, and checks the header as soon as it is complete.
    /// True when the bytes have been received.
    fn read_until(&mut self, expect: &Frame, want: usize) -> Result<bool, Fault> {
        self.check_lost()?;
        self.accept_stream()?;
        loop {
            if self.received >= self.layout.header_len() && !self.header_checked {
                self.open_header()?;
                self.check_header(expect)?;
                self.header_checked = true;
            }
            if self.received >= want {
                return Ok(true);
            }
            let Some(bytes) = self.read_more(want)? else { return Ok(false) };
            self.received += bytes;
        }
    }

    /// Reads up to the first `want` bytes of the frame.
    fn read_ahead(&mut self, want: usize) -> Result<Option<usize>, Fault> {
        self.accept_stream()?;
        self.read_more(want)
    }

    /// The fault of a connection that a look at the header found ended.
    fn check_lost(&self) -> Result<(), Fault> {
        self.lost.clone().map_or(Ok(()), |lost| Err(Fault::Lost(lost)))
    }

    /// Opens the received header, once.
    fn open_header(&mut self) -> Result<(), Fault> {
        if !self.header_opened {
            self.open(0, self.layout.header_len())?;
            self.header_opened = true;
        }
        Ok(())
    }

    /// On an encrypted link, opens the part of the frame from `begin` to `end`.
    fn open(&mut self, begin: usize, end: usize) -> Result<(), Fault> {
        let (lane, slot) = (self.lane(), self.slot);
        let Some(opener) = &mut self.lanes[lane].opener else { return Ok(()) };
        let part = &mut self.memory[self.start + begin..self.start + end];
        opener.open(part).map_err(|_| Fault::Forged { slot })
    }

    /// On an encrypted link, opens the received payload into `out`.
    fn open_to(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        let (lane, slot) = (self.lane(), self.slot);
        let Some(opener) = &mut self.lanes[lane].opener else { return Ok(()) };
        let (begin, end) = (self.layout.header_len(), self.layout.frame_len(out.len()));
        let piece = &self.memory[self.start + begin..self.start + end];
        opener.open_to(piece, out).map_err(|_| Fault::Forged { slot })
    }

    /// Compares the received header with the expected one.
    fn check_header(&mut self, expect: &Frame) -> Result<(), Fault> {
        let Some(theirs) = self.memory[self.start..].first_chunk() else { return Ok(()) };
        self.frame_len = self.layout.frame_len(expect.len as usize);
        self.crc = if self.has_checksums { crc(theirs) } else { 0 };
        check(&with_crc(encode(self.slot, expect), self.crc), theirs)
    }

    /// Compares the checksum of the received payload with the sender's, once.
    fn verify_checksum(&mut self, found: impl FnOnce(&Self) -> u32) -> Result<(), Fault> {
        if self.has_checksums && !self.payload_verified {
            let found = found(self);
            if found != self.crc {
                let (slot, sent) = (self.slot, self.crc);
                return Err(Fault::Corrupt { slot, sent, found });
            }
            self.payload_verified = true;
        }
        Ok(())
    }
}

impl transport::Rx for Rx {
    fn peek_header(&mut self) -> Option<PeekedHeader> {
        if self.is_forged {
            return None;
        }
        let header_len = self.layout.header_len();
        let ahead = if self.reads_ahead { READ_AHEAD } else { 0 };
        let want = (header_len + ahead).min(self.layout.frame_len(self.shape.bytes));
        while self.received < header_len {
            // A fault shows when the caller waits for the slot, or asks whether the peer lives.
            match self.read_ahead(want) {
                Ok(Some(bytes)) => self.received += bytes,
                Ok(None) => return None,
                Err(fault) => {
                    if let (Fault::Lost(how), None) = (fault, &self.lost) {
                        self.lost = Some(how);
                    }
                    return None;
                }
            }
        }
        if self.open_header().is_err() {
            self.is_forged = true;
            return None;
        }
        self.memory[self.start..].first_chunk().map(call)
    }

    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        let len = expect.len as usize;
        let is_here = self.read_until(expect, self.layout.frame_len(len))?;
        if is_here && !self.layout.is_sealed() {
            self.verify_checksum(|link| {
                raw::checksum(raw::slice(&transport::Rx::peek(link, len)))
            })?;
        } else if is_here && !self.payload_verified {
            self.open(self.layout.header_len(), self.layout.frame_len(len))?;
            self.payload_verified = true;
        }
        Ok(is_here)
    }

    /// Reads the header by itself, so that the payload of a wrong frame never reaches `out`. An
    /// encrypted payload is opened from the link's memory into `out`.
    fn recv_into(&mut self, expect: &Frame, mut out: Dst<'_>) -> Result<bool, Fault> {
        let len = expect.len as usize;
        if self.layout.is_sealed() {
            let is_here = self.read_until(expect, self.layout.frame_len(len))?;
            if is_here {
                self.open_to(raw::slice_mut(&mut out))?;
            }
            return Ok(is_here);
        }
        if len < MIN_DIRECT_BYTES {
            let is_here = self.ready(expect)?;
            if is_here {
                out.fill(self.peek(len));
            }
            return Ok(is_here);
        }
        if !self.read_until(expect, HEADER)? {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.is_elsewhere, true) {
            // A look at the header may have read the first bytes.
            let ahead = &self.memory[self.start + HEADER..self.start + self.received];
            out.part(0..ahead.len()).fill(Src::from(ahead));
        }
        while self.received < HEADER + len {
            let (filled, at) = (self.received - HEADER, self.lane());
            let receive = |stream: &_| raw::receive(stream, &mut out, filled);
            let moved = self.lanes[at].read(&mut *self.acceptor, receive)?;
            let Some(bytes) = moved else { return Ok(false) };
            self.received += bytes;
        }
        self.verify_checksum(|_| raw::checksum(raw::slice_mut(&mut out)))?;
        Ok(true)
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn is_syscall_backed(&self) -> bool {
        true
    }

    fn incoming(&self, fds: &mut Vec<RawFd>) {
        match self.descriptor() {
            Some(stream) => fds.push(stream),
            None => self.acceptor.incoming(fds),
        }
    }

    fn peek(&self, len: usize) -> Src<'_> {
        let payload = self.start + self.layout.header_len();
        Src::from(&self.memory[payload..payload + len])
    }

    fn peek_mut(&mut self, len: usize) -> Option<(Src<'_>, Dst<'_>)> {
        let payload = self.start + self.layout.header_len();
        Some(raw::both_views(&mut self.memory[payload..payload + len]))
    }

    fn has_read_ahead(&self) -> bool {
        self.received > 0
    }

    fn take_over(&mut self, out: Src<'_>) {
        if std::mem::take(&mut self.is_elsewhere) {
            let received = self.received - HEADER;
            let payload = &mut self.memory[self.start + HEADER..][..received];
            Dst::from(payload).fill(out.part(0..received));
        }
    }

    fn release(&mut self) {
        if self.delays_acknowledgements {
            let lane = self.lane();
            self.lanes[lane].note_frame(self.frame_len <= MAX_SHORT_FRAME);
        }
        let ahead = self.received - self.frame_len.min(self.received);
        let next = self.start + self.received - ahead;
        self.memory.copy_within(next..next + ahead, self.start);
        (self.received, self.is_elsewhere) = (ahead, false);
        (self.header_opened, self.header_checked, self.payload_verified) = (false, false, false);
        self.slot += 1;
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        match self.descriptor() {
            Some(stream) => {
                poll::sleep(limit, Some(stream), outgoing);
            }
            None if self.lanes[self.lane()].is_broken() => {
                self.acceptor.sleep(limit.min(RESUME_POLL), outgoing);
            }
            None => self.acceptor.sleep(limit, outgoing),
        }
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        if self.is_forged {
            return Err(Fault::Forged { slot: self.slot });
        }
        self.check_lost()?;
        // Only the socket of the next slot counts: another one may have ended while the last bytes
        // of this one are on their way.
        self.accept_stream()?;
        let at = self.lane();
        self.lanes[at].check(at, &mut *self.acceptor)
    }
}
