//! The receiving end of a TCP link: one slot of memory, filled by non-blocking reads of exactly the
//! frame that is expected next. May touch: the link contract, memory.
//! Law: bytes of a frame are lent only when its header was as expected and its payload is complete,
//! and both are what the sender has sealed, if the link is.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::frame::{HEADER, call, check, crc, encode, with_crc};
use super::{Layout, look, moved, prepare, raw};
use crate::error::Result;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use crate::transport::aead::Opener;
use crate::transport::{self, Fault, Frame, poll};

/// A copy of fewer bytes costs less than the second system call that saves it.
const WORTHWHILE: usize = 16 << 10;

/// The receiving end of a TCP link. After a fault it is of no more use.
pub struct Rx {
    streams: Vec<TcpStream>,
    /// What each of them is opened by, if they are sealed.
    openers: Vec<Opener>,
    /// One frame: header, payload, and their tags.
    memory: Box<[u8]>,
    /// Where in `memory` the header begins.
    start: usize,
    layout: Layout,
    /// Bytes of the frame that are here.
    have: usize,
    /// Was its header opened, and as expected?
    opened: bool,
    checked: bool,
    /// Its number, from 0.
    slot: u64,
    /// Has each slot a checksum? That of this one; and was its payload found to have it, or opened?
    checks: bool,
    crc: u32,
    whole: bool,
}

impl Rx {
    /// A link over connected `streams`, in the order of the sender's. The
    /// link owns them: nothing else may use them, also not for the other direction.
    ///
    /// # Errors
    /// Without sockets, or with slots that no link can have or there is no memory for.
    pub fn new(streams: Vec<TcpStream>, shape: SlotShape) -> Result<Self> {
        Self::sealed(streams, Vec::new(), shape)
    }

    /// The same, with a key for each stream by which all of it is opened; or none at all.
    ///
    /// # Errors
    /// As [`Self::new`]; or if there is another number of keys.
    pub fn sealed(streams: Vec<TcpStream>, openers: Vec<Opener>, shape: SlotShape) -> Result<Self> {
        prepare("tcp::Rx::new", &streams, openers.len(), shape)?;
        let layout = Layout::of(!openers.is_empty());
        let (memory, start) = layout.slots(shape, 1)?;
        Ok(Self {
            streams,
            openers,
            memory,
            start,
            layout,
            have: 0,
            opened: false,
            checked: false,
            slot: 0,
            checks: !layout.is_sealed(),
            crc: 0,
            whole: false,
        })
    }

    /// As at the other end: see [`Tx::checked`](super::tx::Tx::checked).
    #[must_use]
    pub fn checked(mut self, checks: bool) -> Self {
        self.checks = checks && !self.layout.is_sealed();
        self
    }

    /// Which socket carries the next slot.
    fn lane(&self) -> usize {
        (self.slot % self.streams.len() as u64) as usize
    }

    /// That socket.
    fn stream(&self) -> &TcpStream {
        &self.streams[self.lane()]
    }

    /// Reads the frame up to `want` bytes, the header first of all; true when they are here.
    fn fetch(&mut self, expect: &Frame, want: usize) -> Result<bool, Fault> {
        loop {
            if self.have >= self.layout.head() && !self.checked {
                self.open_header()?;
                self.check(expect)?;
                self.checked = true;
            }
            if self.have >= want {
                return Ok(true);
            }
            let stream = &self.streams[self.lane()];
            let rest = &mut self.memory[self.start + self.have..self.start + want];
            match (&*stream).read(rest) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => match moved(answer)? {
                    Some(bytes) => self.have += bytes,
                    None => return Ok(false),
                },
            }
        }
    }

    /// Opens the header, which is here, once.
    fn open_header(&mut self) -> Result<(), Fault> {
        if !self.opened {
            self.open(0, self.layout.head())?;
            self.opened = true;
        }
        Ok(())
    }

    /// Opens the part of the frame from `begin` to `end`, if it is sealed.
    fn open(&mut self, begin: usize, end: usize) -> Result<(), Fault> {
        let (lane, slot) = (self.lane(), self.slot);
        let Some(opener) = self.openers.get_mut(lane) else { return Ok(()) };
        let part = &mut self.memory[self.start + begin..self.start + end];
        opener.open(part).map_err(|_| Fault::Forged { slot })
    }

    /// Opens the payload, which is here, on its way to `out`.
    fn open_to(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        let (lane, slot) = (self.lane(), self.slot);
        let Some(opener) = self.openers.get_mut(lane) else { return Ok(()) };
        let (begin, end) = (self.layout.head(), self.layout.whole(out.len()));
        let piece = &self.memory[self.start + begin..self.start + end];
        opener.open_to(piece, out).map_err(|_| Fault::Forged { slot })
    }

    /// Compares the header that is here with what it must be.
    fn check(&mut self, expect: &Frame) -> Result<(), Fault> {
        let Some(theirs) = self.memory[self.start..].first_chunk() else { return Ok(()) };
        self.crc = if self.checks { crc(theirs) } else { 0 };
        check(&with_crc(encode(self.slot, expect), self.crc), theirs)
    }

    /// Has the payload, of this checksum, come as it was sent?
    fn compare(&mut self, found: impl FnOnce(&Self) -> u32) -> Result<(), Fault> {
        if self.checks && !self.whole {
            let found = found(self);
            if found != self.crc {
                let (slot, sent) = (self.slot, self.crc);
                return Err(Fault::Corrupt { slot, sent, found });
            }
            self.whole = true;
        }
        Ok(())
    }
}

impl transport::Rx for Rx {
    fn glimpse(&mut self) -> Option<(u64, u64)> {
        let head = self.layout.head();
        while self.have < head {
            let stream = &self.streams[self.lane()];
            let rest = &mut self.memory[self.start + self.have..self.start + head];
            match (&*stream).read(rest) {
                Ok(bytes @ 1..) => self.have += bytes,
                // What is wrong shows when the slot is waited for.
                _ => return None,
            }
        }
        self.open_header().ok()?;
        self.memory[self.start..].first_chunk().map(call)
    }

    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        let len = expect.len as usize;
        let here = self.fetch(expect, self.layout.whole(len))?;
        if here && !self.layout.is_sealed() {
            self.compare(|link| raw::checksum(raw::bytes(&transport::Rx::peek(link, len))))?;
        } else if here && !self.whole {
            self.open(self.layout.head(), self.layout.whole(len))?;
            self.whole = true;
        }
        Ok(here)
    }

    /// The header is read by itself, so that a wrong frame's payload never gets to `out`. What is
    /// sealed is opened on its way there from the link's memory.
    fn land(&mut self, expect: &Frame, mut out: Dst<'_>) -> Result<bool, Fault> {
        let len = expect.len as usize;
        if self.layout.is_sealed() {
            let here = self.fetch(expect, self.layout.whole(len))?;
            if here {
                self.open_to(raw::room(&mut out))?;
            }
            return Ok(here);
        }
        if len < WORTHWHILE {
            let here = self.ready(expect)?;
            if here {
                out.fill(self.peek(len));
            }
            return Ok(here);
        }
        if !self.fetch(expect, HEADER)? {
            return Ok(false);
        }
        while self.have < HEADER + len {
            match raw::receive(self.stream(), &mut out, self.have - HEADER) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => match moved(answer)? {
                    Some(bytes) => self.have += bytes,
                    None => return Ok(false),
                },
            }
        }
        self.compare(|_| raw::checksum(raw::room(&mut out)))?;
        Ok(true)
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn is_dear(&self) -> bool {
        true
    }

    fn taken(&self) -> Option<u64> {
        Some(self.slot)
    }

    fn peek(&self, len: usize) -> Src<'_> {
        let payload = self.start + self.layout.head();
        Src::from(&self.memory[payload..payload + len])
    }

    fn release(&mut self) {
        self.have = 0;
        (self.opened, self.checked, self.whole) = (false, false, false);
        self.slot += 1;
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        let readable = self.stream().as_raw_fd();
        poll::sleep(limit, Some(readable), outgoing);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        // Only the socket of the next slot: another one may have ended while this one's last bytes
        // are on their way.
        look(self.stream())
    }
}
