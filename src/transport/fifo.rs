//! The FIFO of slots in memory that both ends map: threads (`loopback`) or processes (`shm`).
//! May touch: memory, partition, sync, region. Unsafe: addresses inside the region.
//!
//! A slot's first cache line is its header; `ready` in it says that the slot is filled, so that
//! flag, description and a payload of up to 32 bytes cross to the other CPU as one line. The
//! receiver counts released slots in a line of its own, which the sender reads only when it knows
//! of no empty slot. The law of `link` holds: commit is stores alone.
#![allow(unsafe_code)]

mod slot_ownership;

use std::num::NonZeroUsize;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::store_policy::Way;
use super::{Fault, Frame, hung_up, poll};
use crate::memory::mapping::Region;
use crate::memory::{Dst, Src};
use crate::partition::SlotShape;
use slot_ownership::{Control, End, Header};

const HEADER: usize = 64;
/// Payloads up to this length travel in the header's line, behind the header itself.
const INLINE: usize = 32;

/// A poll can't watch a futex: while other links have bytes to move on, this one is looked at as
/// often as that.
const GLANCE: Duration = Duration::from_micros(100);

/// Both ends' common part: where the slots are and which is next.
#[derive(Debug)]
struct Fifo {
    region: Arc<Region>,
    shape: SlotShape,
    stride: usize,
    /// The number of the next slot, modulo 2^32, and where it is.
    number: u32,
    index: usize,
    /// Ends when the peer's process does; none between threads.
    life: Option<UnixStream>,
}

/// From one slot to the next, if there is so much address space.
fn stride(shape: SlotShape) -> Option<usize> {
    shape.bytes.checked_next_multiple_of(HEADER)?.checked_add(HEADER)
}

/// Bytes of memory that a FIFO of this shape takes; more than there can be where they don't fit
/// the address space.
pub(crate) fn footprint(shape: SlotShape) -> NonZeroUsize {
    let control = NonZeroUsize::MIN.saturating_add(size_of::<Control>() - 1);
    let slots = stride(shape).and_then(|stride| stride.checked_mul(shape.capacity));
    control.saturating_add(slots.unwrap_or(usize::MAX))
}

impl Fifo {
    fn new(region: Arc<Region>, shape: SlotShape, life: Option<UnixStream>) -> Self {
        assert!(region.len() >= footprint(shape).get());
        assert!((1..=u32::MAX as usize / 2).contains(&shape.capacity), "{shape:?}");
        // It fits: else there was no such region.
        let stride = stride(shape).unwrap_or(usize::MAX);
        Self { region, shape, stride, number: 0, index: 0, life }
    }

    fn control(&self) -> &Control {
        // SAFETY: the region is page-aligned, large enough (checked in `new`) and starts zeroed;
        // every field of `Control` is atomic, and zero is valid for all.
        unsafe { self.region.start().cast().as_ref() }
    }

    fn slot(&self) -> *mut u8 {
        let offset = size_of::<Control>() + self.index * self.stride;
        // SAFETY: `index < capacity`, so the offset lies inside the region (checked in `new`).
        unsafe { self.region.start().as_ptr().add(offset) }
    }

    fn header(&self) -> &Header {
        // SAFETY: every slot starts at a multiple of 64 inside the region, and a header is atomics
        // only, for which any bytes are valid.
        unsafe { &*self.slot().cast::<Header>() }
    }

    fn payload(&self, len: usize) -> *mut u8 {
        assert!(len <= self.shape.bytes);
        let offset = if len <= INLINE { size_of::<Header>() - INLINE } else { HEADER };
        // SAFETY: header plus payload fit the stride of a slot.
        unsafe { self.slot().add(offset) }
    }

    fn advance(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.index += 1;
        if self.index == self.shape.capacity {
            self.index = 0;
        }
    }

    fn transport(&self) -> &'static str {
        if self.life.is_some() { "shm" } else { "threads" }
    }

    fn check_peer(&self, peer: &End) -> Result<(), Fault> {
        if peer.is_closed() {
            return Err(Fault::Lost("it closed its communicator".into()));
        }
        if self.life.as_ref().is_some_and(hung_up) {
            return Err(Fault::Lost("its process ended".into()));
        }
        Ok(())
    }
}

/// The sending end. Both ends stay off each other's cache lines, where one allocation follows the
/// other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Tx {
    fifo: Fifo,
    way: Way,
    /// The receiver's count as last read: it is looked at only when that shows no empty slot.
    released: u32,
}

/// The receiving end.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Rx {
    fifo: Fifo,
    /// The next slot was found filled. It is not read again: the peer could still change that word.
    lent: bool,
}

impl Tx {
    pub(crate) fn new(region: Arc<Region>, shape: SlotShape, life: Option<UnixStream>) -> Self {
        let fifo = Fifo::new(region, shape, life);
        fifo.control().sender.attach();
        Self { fifo, way: Way::default(), released: 0 }
    }

    fn has_room(&self) -> bool {
        (self.fifo.number.wrapping_sub(self.released) as usize) < self.fifo.shape.capacity
    }
}

impl super::Tx for Tx {
    fn ready(&mut self) -> Result<bool, Fault> {
        if self.has_room() {
            return Ok(true);
        }
        self.released = self.fifo.control().released();
        Ok(self.has_room())
    }

    fn transport(&self) -> &'static str {
        self.fifo.transport()
    }

    fn life(&self) -> Option<&UnixStream> {
        self.fifo.life.as_ref()
    }

    fn reserve(&mut self, len: usize) -> Dst<'_> {
        assert!(self.has_room(), "reserve without ready");
        let streaming = self.way.choose(len);
        // SAFETY: the slot is empty: the receiver does not touch it until it is
        // committed, and the region lives as long as this borrow.
        unsafe { Dst::new(self.fifo.payload(len), len) }.streaming(streaming)
    }

    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        assert!(self.has_room(), "commit without ready");
        self.fifo.header().fill(self.fifo.number, frame, self.fifo.control());
        // Stores count when they have left the CPU, as they have now.
        self.way.filled(frame.len as usize);
        self.fifo.advance();
        Ok(())
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        if !outgoing.is_empty() {
            return poll::sleep(limit.min(GLANCE), None, outgoing);
        }
        self.fifo.control().sleep_on_release(self.released, limit);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        self.fifo.check_peer(&self.fifo.control().receiver)
    }
}

impl Rx {
    pub(crate) fn new(region: Arc<Region>, shape: SlotShape, life: Option<UnixStream>) -> Self {
        let fifo = Fifo::new(region, shape, life);
        fifo.control().receiver.attach();
        Self { fifo, lent: false }
    }

    fn filled(&self) -> bool {
        self.fifo.header().is_filled(self.fifo.number)
    }
}

impl super::Rx for Rx {
    fn glimpse(&mut self) -> Option<(u64, u64)> {
        let frame = self.filled().then(|| self.fifo.header().frame())?;
        Some((frame.sequence, frame.fingerprint))
    }

    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        if !self.filled() {
            return Ok(false);
        }
        expect.check(&self.fifo.header().frame())?;
        self.lent = true;
        Ok(true)
    }

    fn transport(&self) -> &'static str {
        self.fifo.transport()
    }

    fn life(&self) -> Option<&UnixStream> {
        self.fifo.life.as_ref()
    }

    fn peek(&self, len: usize) -> Src<'_> {
        assert!(self.lent, "peek without ready");
        // SAFETY: the slot is filled: the sender does not touch it until it is
        // released, and the region lives as long as this borrow.
        unsafe { Src::new(self.fifo.payload(len), len) }
    }

    fn release(&mut self) {
        assert!(self.lent, "release without ready");
        self.lent = false;
        self.fifo.advance();
        self.fifo.control().release(self.fifo.number);
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        if !outgoing.is_empty() {
            return poll::sleep(limit.min(GLANCE), None, outgoing);
        }
        let Fifo { number, .. } = self.fifo;
        self.fifo.header().sleep_until_filled(number, self.fifo.control(), limit);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        let lost = self.fifo.check_peer(&self.fifo.control().sender);
        // What it sent before it went is still good.
        if lost.is_err() && self.filled() { Ok(()) } else { lost }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.fifo.control().close_sender(self.fifo.header());
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.fifo.control().close_receiver();
    }
}
