//! A self-test of the driver: WSL2 and some sandboxes refuse stream memory operations, registered
//! host memory or memory handles for other processes, although the driver has every symbol. Where
//! an IOMMU redirects the requests between devices, it grants peer access and other bytes arrive.
//! Law: each ability is used once, on memory such as calls use. A refusal is a result, not an
//! error.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};

use super::driver::{Driver, check};
use super::ipc::{DeviceAllocation, HANDLE_WORDS, export_handle};
use super::pinned::Pinned;
use super::stream_order::{WaitLimit, wait_idle};
use crate::error::Result;
use crate::memory::mapping::Region;

/// Bits of the word by which a rank tells the others what its driver refuses.
pub(crate) const NO_MEMORY_OPS: u64 = 1;
pub(crate) const NO_REGISTRATION: u64 = 2;
pub(crate) const NO_HANDLES: u64 = 4;

/// The bit of a rank whose device reads other bytes than were written to another device.
pub(crate) const DAMAGED_READS: u64 = 8;

/// Bytes of the allocation that is exported.
const EXPORTED_BYTES: usize = 2 << 20;
/// Bytes of the host memory that is registered.
const REGISTERED_BYTES: NonZeroUsize = NonZeroUsize::MIN.saturating_add((64 << 10) - 1);
/// How long a stream may take for two memory operations, or for a copy of a pattern.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the pattern that other ranks read.
const PATTERN_BYTES: usize = 4096;
const READING: &str = "trying to read another device's memory";

type Pattern = [u64; PATTERN_BYTES / 8];

/// The names of the refused abilities.
pub(crate) fn missing_names(missing: u64) -> String {
    let all = [
        (NO_MEMORY_OPS, "stream memory operations"),
        (NO_REGISTRATION, "registering host memory"),
        (NO_HANDLES, "memory handles for other processes"),
    ];
    let names = all.into_iter().filter(|(bit, _)| missing & bit != 0).map(|(_, name)| name);
    names.collect::<Vec<_>>().join(", ")
}

/// The result of the self-test, and memory that other ranks open in their own.
#[derive(Debug)]
pub(crate) struct SelfTest {
    pub(crate) missing: u64,
    /// The handle of that memory; zero if none was made.
    pub(crate) handle: [u64; HANDLE_WORDS],
    /// Memory that begins with this rank's pattern. Other ranks may have it open until this is
    /// dropped.
    memory: DeviceAllocation,
    /// True if a copy into the memory did not end.
    is_in_use: bool,
}

impl SelfTest {
    /// Tries what calls need, and memory handles if this rank `exports` memory. The context is
    /// current.
    ///
    /// # Errors
    /// If there is no memory left for the test, or it can't be written.
    pub(crate) fn run(
        driver: Driver,
        context: &Arc<CudaContext>,
        rank: usize,
        exports: bool,
    ) -> Result<Self> {
        let memory = DeviceAllocation::new(driver, context, EXPORTED_BYTES)?;
        write_pattern(memory.start(), rank)?;
        let mut missing = 0;
        let mut note = |bit: u64, tried: Result<()>| {
            if let Err(error) = tried {
                tracing::info!("the driver refuses {}: {error}", missing_names(bit));
                missing |= bit;
            }
        };
        match try_registration(driver, context) {
            Ok(words) => {
                let tried = try_memory_ops(words.device_address());
                if tried.is_err() {
                    // A stream may still wait for a word there, and to unregister it would wait for
                    // the stream.
                    std::mem::forget(words);
                }
                note(NO_MEMORY_OPS, tried);
            }
            error => note(NO_REGISTRATION, error.map(drop)),
        }
        let mut exported = [0; HANDLE_WORDS];
        if exports {
            note(NO_HANDLES, export_handle(memory.start()).map(|(handle, _)| exported = handle));
        }
        Ok(Self { missing, handle: exported, memory, is_in_use: false })
    }

    /// The address of this rank's pattern.
    pub(crate) fn pattern_start(&self) -> CUdeviceptr {
        self.memory.start()
    }

    /// True if the pattern of `rank` arrives when this rank's device copies it from `from`.
    ///
    /// # Errors
    /// If the driver refuses the copy, or it does not end in time.
    pub(crate) fn pattern_arrives(&mut self, from: CUdeviceptr, rank: usize) -> Result<bool> {
        let landing = self.memory.start() + PATTERN_BYTES as CUdeviceptr;
        let copied = on_own_stream(READING, |stream| {
            // SAFETY: the memory of this rank has room for two patterns.
            check(READING, unsafe { sys::cuMemsetD8Async(landing, 0, PATTERN_BYTES, stream) })?;
            copy(stream, landing, from)
        });
        self.is_in_use |= copied.is_err();
        copied?;
        let mut found: Pattern = [0; _];
        let to = found.as_mut_ptr() as CUdeviceptr;
        on_own_stream(READING, |stream| copy(stream, to, landing))?;
        Ok(found == pattern(rank))
    }

    /// Frees the memory, unless a copy may still write it: to free would wait for the copy.
    pub(crate) fn end(self) {
        if self.is_in_use {
            std::mem::forget(self.memory);
        }
    }
}

/// Makes a stream write a word of host memory and wait for it. A driver that does this also takes
/// batches.
fn try_memory_ops(word: CUdeviceptr) -> Result<()> {
    let doing = "trying stream memory operations";
    on_own_stream(doing, |stream| {
        // SAFETY: the caller keeps the word until the stream is done.
        check(doing, unsafe { sys::cuStreamWriteValue32_v2(stream, word, 1, 0) })?;
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: as above.
        check(doing, unsafe { sys::cuStreamWaitValue32_v2(stream, word, 1, equal) })
    })
}

/// Puts work on a stream that waits for no other one, and waits for its end, or for
/// [`STREAM_TIMEOUT`]; after an error the work may still be under way.
fn on_own_stream(doing: &str, work: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
    let mut stream = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver stores a handle where it is told.
    check(doing, unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    let done = work(stream).and_then(|()| wait_idle(stream, WaitLimit::of(STREAM_TIMEOUT)));
    // SAFETY: the stream was made above; the driver keeps it until its work is done.
    let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
    done
}

/// Registers a mapping of shared memory with the device.
fn try_registration(driver: Driver, context: &Arc<CudaContext>) -> Result<Arc<Pinned>> {
    let region = Region::create(REGISTERED_BYTES)
        .and_then(|fd| Region::open(fd.as_fd(), REGISTERED_BYTES, "this process"))?;
    Pinned::register(driver, context, &Arc::new(region))
}

/// The pattern of a rank. All ranks' patterns differ, so that a device which reads its own memory
/// in place of another's is found.
fn pattern(rank: usize) -> Pattern {
    let word = |at: usize| (rank * PATTERN_BYTES + at + 1) as u64;
    std::array::from_fn(|at| word(at).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Writes the pattern of this rank into its own memory.
fn write_pattern(to: CUdeviceptr, rank: usize) -> Result<()> {
    let pattern = pattern(rank);
    on_own_stream(READING, |stream| copy(stream, to, pattern.as_ptr() as CUdeviceptr))
}

/// Puts a copy of a pattern on the stream. With memory of the host, which is not pinned, the driver
/// has ended the copy, or read all of it, when it returns.
fn copy(stream: CUstream, to: CUdeviceptr, from: CUdeviceptr) -> Result<()> {
    // SAFETY: the callers' memory is as long.
    check(READING, unsafe { sys::cuMemcpyAsync(to, from, PATTERN_BYTES, stream) })
}
