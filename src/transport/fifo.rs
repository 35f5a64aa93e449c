//! The FIFO of slots, a ring buffer in memory that both ends map: threads (`loopback`) or processes
//! (`shm`).
//! Unsafe: addresses inside the mapping.
//!
//! The first cache line of a slot is its header, with the flag that the slot is filled. So flag,
//! header and a payload of up to 32 bytes cross to the other CPU as one line. The receiver counts
//! released slots in a line of its own, which the sender reads only when it knows of no empty slot.
//! Slots have memory for the longest payload so far, by powers of two: the sender makes it when a
//! payload is longer.
//! Law: a commit waits for nobody; it makes a system call only to wake a receiver that sleeps.
#![allow(unsafe_code)]

mod slot_ownership;

use std::num::NonZeroUsize;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Bell, Fault, Frame, LivenessStream, PeekedHeader, is_hung_up, poll};
use crate::memory::mapping::Region;
use crate::memory::{Dst, Src, StorePolicy};
use crate::partition::SlotShape;
use crate::sync::Sleeper;
use crate::sync::atomic::AtomicU32;
use slot_ownership::{End, Header, SharedWords, Wake};

const HEADER: usize = 64;
/// The longest payload that fits into the cache line of the header.
const INLINE_BYTES: usize = 32;

/// How often the caller looks at this link while it polls descriptors of other links: a poll cannot
/// watch a futex.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The number of the next slot after an end has used the first one. Only then does it set up its
/// sleep flag: before, the peer takes it for one that needs a fence, and the words of a link that
/// is not used take no memory.
const FIRST_USED: u32 = 1;

/// The part that both ends have in common: the position of the slots, and the next slot.
#[derive(Debug)]
pub(crate) struct Fifo {
    region: Arc<Region>,
    /// Where the words of both ends are in the region, in bytes, and where the slots begin.
    words: usize,
    slots: usize,
    shape: SlotShape,
    stride: usize,
    /// The number of the next slot, modulo 2^32, and its index in memory.
    number: u32,
    index: u32,
    /// `None` between threads.
    liveness: Option<LivenessStream>,
    /// Wakes the peer, if that sleeps at a doorbell and not at this FIFO's words.
    bell: Option<Arc<Bell>>,
}

/// The place of FIFOs in a region: the offsets of the words of all and of their slots, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct FifoMemory {
    pub(crate) region: Arc<Region>,
    pub(crate) words: usize,
    pub(crate) slots: usize,
}

impl FifoMemory {
    /// The memory of a region that is for so many FIFOs alone: see [`footprint`].
    pub(crate) fn whole(region: Arc<Region>, fifos: usize) -> Self {
        Self { region, words: 0, slots: words_len(fifos) }
    }
}

/// Bytes from one slot to the next; `None` beyond the address space.
fn stride(shape: SlotShape) -> Option<usize> {
    shape.bytes.checked_next_multiple_of(HEADER)?.checked_add(HEADER)
}

/// Bytes of the slots of a FIFO; beyond the address space, a number that no mapping can have.
fn slot_bytes(shape: SlotShape) -> usize {
    let slots = stride(shape).and_then(|stride| stride.checked_mul(shape.capacity));
    slots.unwrap_or(usize::MAX)
}

/// The words of FIFOs begin at a multiple of this.
pub(crate) const WORDS_ALIGN: usize = align_of::<SharedWords>();

/// Bytes of the words of so many FIFOs.
pub(crate) fn words_len(fifos: usize) -> usize {
    fifos * size_of::<SharedWords>()
}

/// Bytes of the slots of FIFOs of these shapes; beyond the address space, a number that no mapping
/// can have.
pub(crate) fn slots_len(shapes: &[SlotShape]) -> usize {
    shapes.iter().map(|&shape| slot_bytes(shape)).fold(0, usize::saturating_add)
}

/// Bytes of memory of FIFOs of these shapes, as [`slots_len`].
pub(crate) fn footprint(shapes: &[SlotShape]) -> NonZeroUsize {
    let all = words_len(shapes.len()).saturating_add(slots_len(shapes));
    NonZeroUsize::new(all).unwrap_or(NonZeroUsize::MIN)
}

impl Fifo {
    /// FIFO number `at` of those with these shapes, which have this memory. The peer sleeps at
    /// `bell`, or else at the FIFO's words.
    pub(crate) fn new(
        memory: &FifoMemory,
        (shapes, at): (&[SlotShape], usize),
        liveness: Option<LivenessStream>,
        bell: Option<Arc<Bell>>,
    ) -> Self {
        let FifoMemory { region, words, slots } = memory.clone();
        let shape = shapes[at];
        let words_end = words.saturating_add(words_len(shapes.len()));
        assert!(words_end <= region.len() && words.is_multiple_of(WORDS_ALIGN));
        assert!(slots.saturating_add(slots_len(shapes)) <= region.len());
        assert!(slots.is_multiple_of(HEADER));
        assert!((1..=u32::MAX as usize / 2).contains(&shape.capacity), "{shape:?}");
        // The stride fits, or there would be no such region.
        let stride = stride(shape).unwrap_or(usize::MAX);
        let (words, slots) = (words + words_len(at), slots + slots_len(&shapes[..at]));
        Self { region, words, slots, shape, stride, number: 0, index: 0, liveness, bell }
    }

    fn control(&self) -> &SharedWords {
        // SAFETY: the region is page-aligned and `words` a multiple of their size; it is large
        // enough (checked in `new`) and starts zeroed; every field of `SharedWords` is atomic, and
        // zero is valid for all.
        unsafe { &*self.region.start().as_ptr().wrapping_add(self.words).cast() }
    }

    /// How this end wakes the peer.
    fn wake(&self) -> impl Wake + use<'_> {
        |sleeper: &Sleeper, word: &AtomicU32| match &self.bell {
            None => sleeper.wake(word),
            Some(bell) if sleeper.is_asleep() => bell.ring(),
            Some(_) => {}
        }
    }

    fn slot(&self) -> *mut u8 {
        let offset = self.slots + self.index as usize * self.stride;
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
        let offset = if len <= INLINE_BYTES { size_of::<Header>() - INLINE_BYTES } else { HEADER };
        // SAFETY: header plus payload fit the stride of a slot.
        unsafe { self.slot().add(offset) }
    }

    /// Makes memory for payloads of `len` bytes in all slots.
    fn populate(&self, len: usize) -> Result<(), Fault> {
        let starts = (0..self.shape.capacity).map(|slot| self.slots + slot * self.stride);
        let slots = starts.map(|start| start..start + HEADER + len);
        self.region.populate(slots).map_err(|error| Fault::NoMemory(Box::new(error)))
    }

    fn advance(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.index += 1;
        if self.index as usize == self.shape.capacity {
            self.index = 0;
        }
    }

    fn transport(&self) -> &'static str {
        if self.liveness.is_some() { "shm" } else { "threads" }
    }

    fn check_peer(&self, peer: &End) -> Result<(), Fault> {
        if peer.is_closed() {
            return Err(Fault::Lost("it closed its communicator".into()));
        }
        if self.liveness.as_ref().is_some_and(is_hung_up) {
            return Err(Fault::Lost("its process ended".into()));
        }
        Ok(())
    }
}

/// The sending end. The alignment keeps both ends off each other's cache lines, where one
/// allocation follows the other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Tx {
    fifo: Fifo,
    policy: StorePolicy,
    /// The longest payload that the slots have memory for.
    room: usize,
    /// The receiver's count as last read. It is read again only when it shows no empty slot.
    released: u32,
}

/// An end is one per peer and kind of link in each of hundreds of communicators.
const _: () = assert!(size_of::<Tx>() == 128);

/// The receiving end.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Rx {
    fifo: Fifo,
    /// The next slot was found filled. Its flag is not read again, for the peer could still change
    /// it.
    is_ready: bool,
}

impl Tx {
    pub(crate) fn new(fifo: Fifo) -> Self {
        Self { fifo, policy: StorePolicy::default(), room: INLINE_BYTES, released: 0 }
    }

    #[cold]
    fn grow(&mut self, len: usize) -> Result<(), Fault> {
        let room = len.next_power_of_two().min(self.fifo.shape.bytes);
        self.fifo.populate(room)?;
        self.room = room;
        Ok(())
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

    fn liveness(&self) -> Option<&LivenessStream> {
        self.fifo.liveness.as_ref()
    }

    fn announce_sleep(&mut self, asleep: bool) {
        self.fifo.control().sender.announce(asleep);
    }

    #[inline]
    fn make_room(&mut self, len: usize) -> Result<(), Fault> {
        if len > self.room { self.grow(len) } else { Ok(()) }
    }

    fn reserve(&mut self, len: usize) -> Result<Dst<'_>, Fault> {
        assert!(self.has_room(), "reserve without ready");
        self.make_room(len)?;
        let streaming = self.policy.should_stream(len);
        // SAFETY: the slot is empty: the receiver does not touch it until it is
        // committed, and the region lives as long as this borrow.
        Ok(unsafe { Dst::new(self.fifo.payload(len), len) }.streaming(streaming))
    }

    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        assert!(self.has_room(), "commit without ready");
        let Self { fifo, .. } = self;
        fifo.header().fill(fifo.number, frame, fifo.control(), fifo.wake());
        // The measurement ends after the commit, when the stores have left the CPU.
        self.policy.slot_filled(frame.len as usize);
        self.fifo.advance();
        if self.fifo.number == FIRST_USED {
            self.fifo.control().sender.attach();
        }
        Ok(())
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        if !outgoing.is_empty() {
            poll::sleep(limit.min(POLL_INTERVAL), None, outgoing);
            return;
        }
        self.fifo.control().sleep_on_release(self.released, limit);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        self.fifo.check_peer(&self.fifo.control().receiver)
    }
}

impl Rx {
    pub(crate) fn new(fifo: Fifo) -> Self {
        Self { fifo, is_ready: false }
    }

    fn is_filled(&self) -> bool {
        self.fifo.header().is_filled(self.fifo.number)
    }
}

impl super::Rx for Rx {
    fn peek_header(&mut self) -> Option<PeekedHeader> {
        let frame = self.is_filled().then(|| self.fifo.header().frame())?;
        Some(PeekedHeader { sequence: frame.sequence, fingerprint: frame.fingerprint })
    }

    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        if !self.is_filled() {
            return Ok(false);
        }
        expect.check(&self.fifo.header().frame())?;
        self.is_ready = true;
        Ok(true)
    }

    fn transport(&self) -> &'static str {
        self.fifo.transport()
    }

    fn liveness(&self) -> Option<&LivenessStream> {
        self.fifo.liveness.as_ref()
    }

    fn announce_sleep(&mut self, asleep: bool) {
        self.fifo.control().receiver.announce(asleep);
    }

    fn peek(&self, len: usize) -> Src<'_> {
        assert!(self.is_ready, "peek without ready");
        // SAFETY: the slot is filled: the sender does not touch it until it is
        // released, and the region lives as long as this borrow.
        unsafe { Src::new(self.fifo.payload(len), len) }
    }

    fn release(&mut self) {
        assert!(self.is_ready, "release without ready");
        self.is_ready = false;
        self.fifo.advance();
        if self.fifo.number == FIRST_USED {
            self.fifo.control().receiver.attach();
        }
        self.fifo.control().release(self.fifo.number, self.fifo.wake());
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        if !outgoing.is_empty() {
            poll::sleep(limit.min(POLL_INTERVAL), None, outgoing);
            return;
        }
        let Fifo { number, .. } = self.fifo;
        self.fifo.header().sleep_until_filled(number, self.fifo.control(), limit);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        let lost = self.fifo.check_peer(&self.fifo.control().sender);
        // Slots that the peer sent before it ended are still good.
        if lost.is_err() && self.is_filled() { Ok(()) } else { lost }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.fifo.control().close_sender(self.fifo.header(), self.fifo.wake());
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.fifo.control().close_receiver(self.fifo.wake());
    }
}
