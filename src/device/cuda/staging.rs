//! Pinned host memory that a stream and the host use by turns: the stream copies in and says so,
//! the host works, says so, and the stream copies out. May touch: error.
//! Law: whatever happens to the host's turn it ends, so that no stream waits for ever.
//!
//! The flags are words of the same memory, which the stream writes and waits for by stream memory
//! operations: no kernel spins, and the host makes no call of the driver to look at them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

use super::context::Current;
use super::driver::{Driver, check};
use super::selftest::idle;
use crate::error::{Error, Result};

/// Bytes of a block, and how many of them calls go through: enough that copies both ways and the
/// host's work overlap.
pub(crate) const SLOT: usize = 1 << 20;
pub(crate) const SLOTS: usize = 8;
/// Turns of a block that may be under way. A device's queue holds about 1,000 pieces of work, of
/// which a turn has up to two for each rank; a full one blocks whoever adds to it, and with it all
/// thread ranks of its context.
const TURNS: u32 = 2;
/// The flags come first, each on a line of its own.
const LINE: usize = 64;
const FLAGS: usize = 3 * LINE;
/// Shared by all contexts, and mapped for devices.
const HOST_ALLOC: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
/// How long blocks that are no longer needed are waited for before they are left to the system.
const LINGER: Duration = Duration::from_secs(10);
/// How often it is looked at.
const GLANCE: Duration = Duration::from_millis(1);

/// How long the host waits at most for a stream, and what ends that wait before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'a> {
    pub(crate) patience: Duration,
    pub(crate) abort: &'a AtomicBool,
}

impl Limit<'_> {
    fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed)
    }
}

/// Answers of a driver that refuses stream memory operations.
const REFUSED: [CUresult; 2] =
    [CUresult::CUDA_ERROR_NOT_SUPPORTED, CUresult::CUDA_ERROR_NOT_PERMITTED];

/// Which word of a block.
#[derive(Clone, Copy)]
enum Flag {
    /// The stream has copied in.
    Ready = 0,
    /// The host has done its part.
    Done = 1,
    /// The stream has copied out.
    Over = 2,
}

/// One piece of pinned memory.
#[derive(Debug)]
struct Block {
    driver: Driver,
    context: Arc<CudaContext>,
    start: NonNull<u8>,
    /// Where devices see it.
    device: CUdeviceptr,
    /// The number of its last turn.
    turns: AtomicU32,
    /// No stream says that this is over.
    lost: AtomicBool,
}

// SAFETY: the flags are atomics, and its bytes are handed from stream to host and back by them.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(driver: Driver, context: &Arc<CudaContext>, room: usize) -> Result<Self> {
        let mut start = null_mut();
        // SAFETY: asks for memory, and says where to put its address.
        let made = unsafe { sys::cuMemHostAlloc(&raw mut start, FLAGS + room, HOST_ALLOC) };
        check("allocating pinned memory", made)?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let reason = "the driver gave none".into();
            return Err(Error::Device { doing: "allocating pinned memory".into(), reason });
        };
        let context = Arc::clone(context);
        let (turns, lost) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut block = Self { driver, context, start, device: 0, turns, lost };
        // SAFETY: the memory is ours alone, and long enough.
        unsafe { start.as_ptr().write_bytes(0, FLAGS) };
        let start = start.as_ptr().cast::<c_void>();
        // SAFETY: it was just allocated as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut block.device, start, 0) };
        check("finding pinned memory's address", seen)?;
        Ok(block)
    }

    fn flag(&self, flag: Flag) -> &AtomicU32 {
        let word = self.start.as_ptr().wrapping_add(flag as usize * LINE).cast::<AtomicU32>();
        // SAFETY: it lies in the memory, which is aligned to pages, and is written as words alone.
        unsafe { &*word }
    }

    /// Has this turn got so far? Numbers wrap.
    fn has_reached(&self, flag: Flag, turn: u32) -> bool {
        self.flag(flag).load(Ordering::Acquire).wrapping_sub(turn).cast_signed() >= 0
    }

    fn address(&self, flag: Flag) -> CUdeviceptr {
        self.device + (flag as usize * LINE) as CUdeviceptr
    }

    /// The stream says that this turn has got so far. A driver without stream memory operations
    /// makes the host wait for the stream instead.
    fn say(&self, flag: Flag, turn: u32, stream: CUstream, limit: Limit<'_>) -> Result<()> {
        // SAFETY: the word is mapped for the device.
        let said = unsafe { sys::cuStreamWriteValue32_v2(stream, self.address(flag), turn, 0) };
        if !REFUSED.contains(&said) {
            return check("writing a flag on the stream", said);
        }
        idle(stream, limit.patience, || limit.is_aborted())?;
        self.flag(flag).store(turn, Ordering::Release);
        Ok(())
    }

    /// The stream waits for that, or else the host.
    fn wait_for(&self, flag: Flag, turn: u32, stream: CUstream, limit: Limit<'_>) -> Result<()> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let address = self.address(flag);
        // SAFETY: the word is mapped for the device.
        let waits = unsafe { sys::cuStreamWaitValue32_v2(stream, address, turn, at_least) };
        if !REFUSED.contains(&waits) {
            return check("waiting for a flag on the stream", waits);
        }
        self.host_waits_for(flag, turn, limit.patience, || limit.is_aborted())
    }

    /// The host waits for that.
    ///
    /// # Errors
    /// If it does not come in time, or `stop` says so.
    fn host_waits_for(
        &self,
        flag: Flag,
        turn: u32,
        patience: Duration,
        stop: impl Fn() -> bool,
    ) -> Result<()> {
        let (began, mut round) = (Instant::now(), 0_u32);
        while !self.has_reached(flag, turn) {
            let failed = |reason: String| {
                Err(Error::Device { doing: "waiting for the stream".into(), reason })
            };
            if stop() {
                return failed("aborted".into());
            }
            if began.elapsed() >= patience {
                return failed(format!("it did not get to this call for {patience:.1?}"));
            }
            round = round.saturating_add(1);
            match round {
                0..200 => std::hint::spin_loop(),
                200..2000 => thread::yield_now(),
                // Nobody wakes the host when a device writes a word.
                _ => thread::sleep(Duration::from_micros(20)),
            }
        }
        Ok(())
    }

    fn bytes(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(FLAGS)
    }

    /// Is its last turn over?
    fn is_over(&self) -> bool {
        self.has_reached(Flag::Over, self.turns.load(Ordering::Relaxed))
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.is_over() {
            tracing::warn!("a stream still uses pinned memory; it is left to the system");
            return;
        }
        if let Ok(_current) = Current::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: it is ours, and no stream uses it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
        }
    }
}

/// The blocks of one context. Each has one turn at a time: the stream of the next one waits for its
/// end.
#[derive(Debug)]
pub(crate) struct Stages {
    context: Arc<CudaContext>,
    blocks: Vec<Arc<Block>>,
    /// Bytes of each.
    room: usize,
    next: usize,
}

impl Drop for Stages {
    /// Waits for streams that still use blocks, for a while.
    fn drop(&mut self) {
        let began = Instant::now();
        let done = |block: &Arc<Block>| block.is_over() || block.is_lost();
        while began.elapsed() < LINGER && !self.blocks.iter().all(done) {
            thread::sleep(GLANCE);
        }
    }
}

/// A piece of a buffer, which is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) device: CUdeviceptr,
    /// Where in the block.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Is it copied in, and is it copied out?
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl Stages {
    /// Blocks of so many bytes each, fewer if they are large. The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>, room: usize) -> Result<Self> {
        let block = |_| Ok(Arc::new(Block::new(driver, context, room)?));
        let count = if room > SLOT { 2 } else { SLOTS };
        let blocks = (0..count).map(block).collect::<Result<_>>()?;
        Ok(Self { context: Arc::clone(context), blocks, room, next: 0 })
    }

    /// Are they of this context, as large, and sound?
    pub(crate) fn serves(&self, context: &CudaContext, room: usize) -> bool {
        let lost = self.blocks.iter().any(|block| block.is_lost());
        self.context.cu_ctx() == context.cu_ctx() && self.room >= room && !lost
    }

    /// A turn on a stream of the context, which is current, with what is to be copied in under way.
    /// The areas have room in a block.
    pub(crate) fn begin(
        &mut self,
        stream: CUstream,
        limit: Limit<'_>,
        areas: impl Iterator<Item = Area>,
    ) -> Result<Turn> {
        let block = Arc::clone(&self.blocks[self.next]);
        let last = block.turns.load(Ordering::Relaxed);
        // Behind a wait for other ranks no more is put than a queue of the device holds.
        let before = last.wrapping_sub(TURNS - 1);
        block.host_waits_for(Flag::Over, before, limit.patience, || limit.is_aborted())?;
        if !block.has_reached(Flag::Over, last) {
            block.wait_for(Flag::Over, last, stream, limit)?;
        }
        self.next = (self.next + 1) % self.blocks.len();
        let mut len = 0;
        for Area { device, at, len: bytes, reads, .. } in areas {
            len = len.max(at + bytes);
            assert!(len <= self.room, "{len} bytes in a block of {}", self.room);
            if !reads || bytes == 0 {
                continue;
            }
            let to = block.bytes().wrapping_add(at).cast();
            // SAFETY: the caller vouches for the device memory; the block is long enough, and this
            // stream is done with its turn before it copies.
            let begun = unsafe { sys::cuMemcpyDtoHAsync_v2(to, device, bytes, stream) };
            check("copying from the device", begun)?;
        }
        let number = last.wrapping_add(1);
        block.say(Flag::Ready, number, stream, limit)?;
        block.turns.store(number, Ordering::Relaxed);
        Ok(Turn { block, number, len })
    }

    /// The stream waits for the host's part of the turn and copies out.
    pub(crate) fn end(
        &self,
        stream: CUstream,
        ticket: &Ticket,
        limit: Limit<'_>,
        areas: impl Iterator<Item = Area>,
    ) -> Result<()> {
        let Ticket { block, number } = ticket;
        block.wait_for(Flag::Done, *number, stream, limit).inspect_err(|_| {
            // The host may be at work there when the stream gets here.
            block.lost.store(true, Ordering::Relaxed);
        })?;
        let mut done = Ok(());
        for Area { device, at, len, .. } in areas.filter(|area| area.writes && area.len > 0) {
            let from = block.bytes().wrapping_add(at).cast();
            // SAFETY: as in `begin`.
            let begun = unsafe { sys::cuMemcpyHtoDAsync_v2(device, from, len, stream) };
            done = done.and(check("copying to the device", begun));
        }
        // Whatever failed, the next turn would wait for this.
        let said = block.say(Flag::Over, *number, stream, limit);
        block.lost.fetch_or(said.is_err(), Ordering::Relaxed);
        done.and(said)
    }
}

/// What the stream still has to do of a turn.
#[derive(Debug)]
pub(crate) struct Ticket {
    block: Arc<Block>,
    number: u32,
}

/// The host's part of a turn. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Turn {
    block: Arc<Block>,
    number: u32,
    len: usize,
}

impl Turn {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { block: Arc::clone(&self.block), number: self.number }
    }

    /// The bytes, once the stream has copied in.
    ///
    /// # Errors
    /// If it does not get there in time, or `stop` says so.
    pub(crate) fn bytes(
        &mut self,
        timeout: Duration,
        stop: impl Fn() -> bool,
    ) -> Result<&mut [u8]> {
        self.block.host_waits_for(Flag::Ready, self.number, timeout, stop)?;
        // SAFETY: they are the host's until this turn ends, and nobody else has this turn.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.block.bytes(), self.len) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.block.flag(Flag::Done).store(self.number, Ordering::Release);
    }
}
