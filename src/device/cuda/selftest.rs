//! A self-test of the driver: WSL2 and some sandboxes refuse stream memory operations, registered
//! host memory or memory handles for other processes, although the driver has every symbol.
//! Law: each ability is used once, on memory such as calls use. A refusal is a result, not an
//! error.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr};

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

/// Bytes of the allocation that is exported.
const EXPORTED_BYTES: usize = 2 << 20;
/// Bytes of the host memory that is registered.
const REGISTERED_BYTES: NonZeroUsize = NonZeroUsize::MIN.saturating_add((64 << 10) - 1);
/// How long a stream may take for two memory operations.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Other ranks may have the memory open until this is dropped.
    _memory: DeviceAllocation,
}

impl SelfTest {
    /// Tries what calls need, and memory handles if this rank `exports` memory. The context is
    /// current.
    ///
    /// # Errors
    /// If there is no memory left for the test.
    pub(crate) fn run(driver: Driver, context: &Arc<CudaContext>, exports: bool) -> Result<Self> {
        let memory = DeviceAllocation::new(driver, context, EXPORTED_BYTES)?;
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
        Ok(Self { missing, handle: exported, _memory: memory })
    }
}

/// Makes a stream write a word of host memory and wait for it. A driver that does this also takes
/// batches.
fn try_memory_ops(word: CUdeviceptr) -> Result<()> {
    let doing = "trying stream memory operations";
    let mut stream = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver stores a handle where it is told.
    check(doing, unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    // SAFETY: the caller keeps the word until the stream is done.
    let written = unsafe { sys::cuStreamWriteValue32_v2(stream, word, 1, 0) };
    let done = check(doing, written).and_then(|()| {
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: as above.
        check(doing, unsafe { sys::cuStreamWaitValue32_v2(stream, word, 1, equal) })?;
        wait_idle(stream, WaitLimit::of(STREAM_TIMEOUT))
    });
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
