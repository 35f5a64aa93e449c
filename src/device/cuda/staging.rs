//! Staging buffers: pinned host memory through which calls by way of the host go. A staging ticket
//! is one use of a block: the stream copies in, the host does its part, the stream copies out.
//! Law: dropping a ticket ends the host's part, whatever happened, so that no stream waits for
//! ever.
//!
//! The three flags of a block lie in the same memory. The stream writes and waits for them by
//! stream memory operations: no kernel spins, and the host calls no driver to read them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

use super::context::CurrentContext;
use super::driver::{Driver, check};
use super::stream_order::{WaitLimit, pause, wait_idle};
use crate::error::{Error, Result};
use crate::sync::Instant;

/// Bytes of a block, and how many blocks a call goes through: enough that the copies of both
/// directions and the host's part overlap.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
pub(crate) const BLOCK_COUNT: usize = 8;
/// Tickets of a block that may be under way. A device's queue holds about 1,000 operations, of
/// which a ticket has up to two for each rank; a full queue blocks the thread that adds to it, and
/// with it every thread rank of the context.
const TICKETS_PER_BLOCK: u32 = 2;
/// The flags are at the beginning of a block, each on a cache line of its own.
const CACHE_LINE: usize = 64;
const FLAGS: usize = 3 * CACHE_LINE;
/// Pinned memory that all contexts share, mapped for devices.
const HOST_ALLOC: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
/// How long a drop waits for streams that still use blocks. Blocks still in use after that are
/// leaked.
const DROP_GRACE: Duration = Duration::from_secs(10);
/// How often that drop looks at the flags.
const DROP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Answers of a driver that refuses stream memory operations.
const UNSUPPORTED: [CUresult; 2] =
    [CUresult::CUDA_ERROR_NOT_SUPPORTED, CUresult::CUDA_ERROR_NOT_PERMITTED];

/// A flag of a block. Its value is the number of the last ticket that has reached it.
#[derive(Clone, Copy)]
enum BlockFlag {
    /// The stream has copied in.
    CopiedIn = 0,
    /// The host has done its part.
    HostDone = 1,
    /// The stream has copied out.
    CopiedOut = 2,
}

#[derive(Debug)]
struct StagingBlock {
    driver: Driver,
    context: Arc<CudaContext>,
    start: NonNull<u8>,
    /// The address for devices.
    device: CUdeviceptr,
    /// The number of the newest ticket.
    last_ticket: AtomicU32,
    /// True if no stream will say that the newest ticket has ended.
    is_lost: AtomicBool,
}

// SAFETY: the flags are atomics, and by them the bytes pass from stream to host and back.
unsafe impl Send for StagingBlock {}
// SAFETY: as above.
unsafe impl Sync for StagingBlock {}

impl StagingBlock {
    fn new(driver: Driver, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let mut start = null_mut();
        // SAFETY: the driver allocates, and stores the address where it is told.
        let made = unsafe { sys::cuMemHostAlloc(&raw mut start, FLAGS + bytes, HOST_ALLOC) };
        check("allocating pinned memory", made)?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let reason = "the driver returned a null pointer".into();
            return Err(Error::Device { doing: "allocating pinned memory".into(), reason });
        };
        let context = Arc::clone(context);
        let (last_ticket, is_lost) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut block = Self { driver, context, start, device: 0, last_ticket, is_lost };
        // SAFETY: the memory is this block's alone, and long enough.
        unsafe { start.as_ptr().write_bytes(0, FLAGS) };
        let start = start.as_ptr().cast::<c_void>();
        // SAFETY: the memory was just allocated as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut block.device, start, 0) };
        check("finding the device address of pinned memory", seen)?;
        Ok(block)
    }

    fn flag(&self, flag: BlockFlag) -> &AtomicU32 {
        let word = self.start.as_ptr().wrapping_add(flag as usize * CACHE_LINE).cast::<AtomicU32>();
        // SAFETY: the word lies in the memory, which is aligned to pages, and is only used as a
        // word.
        unsafe { &*word }
    }

    /// True if the ticket has reached a flag. Numbers of tickets wrap.
    fn has_reached(&self, flag: BlockFlag, ticket: u32) -> bool {
        self.flag(flag).load(Ordering::Acquire).wrapping_sub(ticket).cast_signed() >= 0
    }

    fn address(&self, flag: BlockFlag) -> CUdeviceptr {
        self.device + (flag as usize * CACHE_LINE) as CUdeviceptr
    }

    /// Makes the stream write a flag. With a driver without stream memory operations, the host
    /// waits for the stream and writes it.
    fn signal(
        &self,
        flag: BlockFlag,
        ticket: u32,
        stream: CUstream,
        limit: WaitLimit<'_>,
    ) -> Result<()> {
        // SAFETY: the word is mapped for the device.
        let said = unsafe { sys::cuStreamWriteValue32_v2(stream, self.address(flag), ticket, 0) };
        if !UNSUPPORTED.contains(&said) {
            return check("writing a flag on the stream", said);
        }
        wait_idle(stream, limit)?;
        self.flag(flag).store(ticket, Ordering::Release);
        Ok(())
    }

    /// Makes the stream wait for a flag, or the host in its place.
    fn wait_for(
        &self,
        flag: BlockFlag,
        ticket: u32,
        stream: CUstream,
        limit: WaitLimit<'_>,
    ) -> Result<()> {
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let address = self.address(flag);
        // SAFETY: the word is mapped for the device.
        let waits = unsafe { sys::cuStreamWaitValue32_v2(stream, address, ticket, at_least) };
        if !UNSUPPORTED.contains(&waits) {
            return check("waiting for a flag on the stream", waits);
        }
        self.host_waits_for(flag, ticket, limit)
    }

    fn host_waits_for(&self, flag: BlockFlag, ticket: u32, limit: WaitLimit<'_>) -> Result<()> {
        let (began, mut round) = (Instant::now(), 0);
        while !self.has_reached(flag, ticket) {
            limit.check(began)?;
            pause(&mut round);
        }
        Ok(())
    }

    fn bytes(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(FLAGS)
    }

    /// True if the newest ticket has ended.
    fn is_over(&self) -> bool {
        self.has_reached(BlockFlag::CopiedOut, self.last_ticket.load(Ordering::Relaxed))
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for StagingBlock {
    fn drop(&mut self) {
        if !self.is_over() {
            tracing::warn!("a stream still uses pinned memory, which is leaked");
            return;
        }
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: the memory is this block's own, and no stream uses it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
        }
    }
}

/// The blocks of one context, used in turn. A stream that gets the next ticket of a block waits for
/// the end of the last one.
#[derive(Debug)]
pub(crate) struct StagingBuffers {
    context: Arc<CudaContext>,
    blocks: Vec<Arc<StagingBlock>>,
    bytes: usize,
    next: usize,
}

impl Drop for StagingBuffers {
    /// Waits for streams that still use blocks, up to [`DROP_GRACE`].
    fn drop(&mut self) {
        let began = Instant::now();
        let done = |block: &Arc<StagingBlock>| block.is_over() || block.is_lost();
        while began.elapsed() < DROP_GRACE && !self.blocks.iter().all(done) {
            thread::sleep(DROP_POLL_INTERVAL);
        }
    }
}

/// A contiguous part of a user's buffer that is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyArea {
    pub(crate) device: CUdeviceptr,
    /// The byte offset in the block.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// True if it is copied into the block, and if it is copied out.
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl StagingBuffers {
    /// Blocks of so many bytes, fewer if they are large. The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let block = |_| Ok(Arc::new(StagingBlock::new(driver, context, bytes)?));
        let count = if bytes > BLOCK_BYTES { 2 } else { BLOCK_COUNT };
        let blocks = (0..count).map(block).collect::<Result<_>>()?;
        Ok(Self { context: Arc::clone(context), blocks, bytes, next: 0 })
    }

    /// True if these blocks are of the context, long enough, and none is lost.
    pub(crate) fn serves(&self, context: &CudaContext, bytes: usize) -> bool {
        let is_lost = self.blocks.iter().any(|block| block.is_lost());
        self.context.cu_ctx() == context.cu_ctx() && self.bytes >= bytes && !is_lost
    }

    /// A ticket on a stream of the context, which is current: puts the copies into the block on the
    /// stream. The areas fit a block.
    pub(crate) fn begin(
        &mut self,
        stream: CUstream,
        limit: WaitLimit<'_>,
        areas: impl Iterator<Item = CopyArea>,
    ) -> Result<StagingTicket> {
        let block = Arc::clone(&self.blocks[self.next]);
        let last = block.last_ticket.load(Ordering::Relaxed);
        // No more is put behind a wait for other ranks than a queue of the device holds.
        let before = last.wrapping_sub(TICKETS_PER_BLOCK - 1);
        block.host_waits_for(BlockFlag::CopiedOut, before, limit)?;
        if !block.has_reached(BlockFlag::CopiedOut, last) {
            block.wait_for(BlockFlag::CopiedOut, last, stream, limit)?;
        }
        self.next = (self.next + 1) % self.blocks.len();
        let mut len = 0;
        for CopyArea { device, at, len: bytes, reads, .. } in areas {
            len = len.max(at + bytes);
            assert!(len <= self.bytes, "{len} bytes in a block of {}", self.bytes);
            if !reads || bytes == 0 {
                continue;
            }
            let to = block.bytes().wrapping_add(at).cast();
            // SAFETY: the caller vouches for the device memory; the block is long enough, and the
            // stream waits for the end of its last ticket before it copies.
            let begun = unsafe { sys::cuMemcpyDtoHAsync_v2(to, device, bytes, stream) };
            check("copying from the device", begun)?;
        }
        let number = last.wrapping_add(1);
        block.signal(BlockFlag::CopiedIn, number, stream, limit)?;
        block.last_ticket.store(number, Ordering::Relaxed);
        Ok(StagingTicket { block, number, len })
    }

    /// Makes the stream wait for the host's part of a ticket, then copy out.
    pub(crate) fn end(
        &self,
        stream: CUstream,
        ticket: &CopyOutTicket,
        limit: WaitLimit<'_>,
        areas: impl Iterator<Item = CopyArea>,
    ) -> Result<()> {
        let CopyOutTicket { block, number } = ticket;
        block.wait_for(BlockFlag::HostDone, *number, stream, limit).inspect_err(|_| {
            // The host may still write the block when the stream reaches this place.
            block.is_lost.store(true, Ordering::Relaxed);
        })?;
        let mut done = Ok(());
        for CopyArea { device, at, len, .. } in areas.filter(|area| area.writes && area.len > 0) {
            let from = block.bytes().wrapping_add(at).cast();
            // SAFETY: as in `begin`.
            let begun = unsafe { sys::cuMemcpyHtoDAsync_v2(device, from, len, stream) };
            done = done.and(check("copying to the device", begun));
        }
        // The next ticket of the block waits for this flag, so that it is written after a failure,
        // too.
        let said = block.signal(BlockFlag::CopiedOut, *number, stream, limit);
        block.is_lost.fetch_or(said.is_err(), Ordering::Relaxed);
        done.and(said)
    }
}

/// The stream's part of a ticket that is still to be enqueued: the copies out.
#[derive(Debug)]
pub(crate) struct CopyOutTicket {
    block: Arc<StagingBlock>,
    number: u32,
}

/// The host's part of a staging ticket. Dropping it ends that part.
#[derive(Debug)]
pub(crate) struct StagingTicket {
    block: Arc<StagingBlock>,
    number: u32,
    len: usize,
}

impl StagingTicket {
    pub(crate) fn copy_out(&self) -> CopyOutTicket {
        CopyOutTicket { block: Arc::clone(&self.block), number: self.number }
    }

    /// The bytes, after the stream has copied in.
    ///
    /// # Errors
    /// If the stream does not reach the call within the limit.
    pub(crate) fn bytes(&mut self, limit: WaitLimit<'_>) -> Result<&mut [u8]> {
        self.block.host_waits_for(BlockFlag::CopiedIn, self.number, limit)?;
        // SAFETY: the bytes are the host's until this ticket ends, and no other ticket is this one.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.block.bytes(), self.len) })
    }
}

impl Drop for StagingTicket {
    fn drop(&mut self) {
        self.block.flag(BlockFlag::HostDone).store(self.number, Ordering::Release);
    }
}
