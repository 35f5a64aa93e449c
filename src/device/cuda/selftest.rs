//! A self-test of the driver: WSL2 and some sandboxes refuse stream memory operations, registered
//! host memory or memory handles for other processes, although the driver has every symbol.
//! May touch: error, link. Unsafe: calls of the driver.
//! Law: each ability is used once, on memory such as calls use; a refusal is a fact and no error.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

use super::driver::{Driver, check};
use super::ipc::{Memory, WORDS, handle};
use super::pinned::Pinned;
use crate::error::{Error, Result};
use crate::memory::mapping::Region;

/// The bits of the word in which a rank tells the others what its driver refuses.
pub(crate) const OPERATIONS: u64 = 1;
pub(crate) const REGISTRATION: u64 = 2;
pub(crate) const HANDLES: u64 = 4;

/// Bytes of what a handle is of, at least.
const EXPORTED: usize = 2 << 20;
/// Bytes of host memory that are registered.
const REGISTERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add((64 << 10) - 1);
/// How long a stream may take for two words.
const PATIENCE: Duration = Duration::from_secs(5);

/// The names of what is missing.
pub(crate) fn names(missing: u64) -> String {
    let all = [
        (OPERATIONS, "stream memory operations"),
        (REGISTRATION, "registering host memory"),
        (HANDLES, "memory handles for other processes"),
    ];
    let names = all.into_iter().filter(|(bit, _)| missing & bit != 0).map(|(_, name)| name);
    names.collect::<Vec<_>>().join(", ")
}

/// The result of the self-test, and memory that other ranks open as part of theirs.
#[derive(Debug)]
pub(crate) struct SelfTest {
    pub(crate) missing: u64,
    /// The handle of the memory; zero if none was made.
    pub(crate) handle: [u64; WORDS],
    /// Other ranks may have it open as long as this lives.
    _memory: Memory,
}

impl SelfTest {
    /// Tries what calls need, and handles if this rank `exports` memory. The context is current.
    ///
    /// # Errors
    /// If there is no memory left to try it with.
    pub(crate) fn run(driver: Driver, context: &Arc<CudaContext>, exports: bool) -> Result<Self> {
        let memory = Memory::new(driver, context, EXPORTED)?;
        let mut missing = 0;
        let mut note = |bit: u64, tried: Result<()>| {
            if let Err(error) = tried {
                tracing::info!("the driver refuses {}: {error}", names(bit));
                missing |= bit;
            }
        };
        match registration(driver, context) {
            Ok(words) => {
                let tried = operations(words.device());
                if tried.is_err() {
                    // A stream may wait for a word there, and to take it back would wait for that.
                    std::mem::forget(words);
                }
                note(OPERATIONS, tried);
            }
            error => note(REGISTRATION, error.map(drop)),
        }
        let mut told = [0; WORDS];
        if exports {
            note(HANDLES, handle(memory.start()).map(|(handle, _)| told = handle));
        }
        Ok(Self { missing, handle: told, _memory: memory })
    }
}

/// A stream sets a word of the host and waits for it. Drivers that do so do many at a time, too.
fn operations(word: CUdeviceptr) -> Result<()> {
    let doing = "trying stream memory operations";
    let mut stream = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: it stores a handle where it is told.
    check(doing, unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    // SAFETY: the caller keeps the word until the stream is done.
    let written = unsafe { sys::cuStreamWriteValue32_v2(stream, word, 1, 0) };
    let done = check(doing, written).and_then(|()| {
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: as above.
        check(doing, unsafe { sys::cuStreamWaitValue32_v2(stream, word, 1, equal) })?;
        idle(stream, PATIENCE, || false)
    });
    // SAFETY: it was made above; the driver keeps it until its work is done.
    let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
    done
}

/// Waits until a stream has done all of its work.
///
/// # Errors
/// If that takes longer than `patience`, the work failed, or `stop` says so.
pub(super) fn idle(stream: CUstream, patience: Duration, stop: impl Fn() -> bool) -> Result<()> {
    let (began, doing) = (Instant::now(), "waiting for the stream");
    loop {
        if stop() {
            return Err(Error::Device { doing: doing.into(), reason: "aborted".into() });
        }
        // SAFETY: the stream is the caller's.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUresult::CUDA_ERROR_NOT_READY if began.elapsed() < patience => {
                std::thread::sleep(Duration::from_micros(20));
            }
            CUresult::CUDA_ERROR_NOT_READY => {
                let reason = format!("it did not get to this call for {patience:.1?}");
                return Err(Error::Device { doing: doing.into(), reason });
            }
            answer => return check(doing, answer),
        }
    }
}

/// The device sees a mapping of shared memory.
fn registration(driver: Driver, context: &Arc<CudaContext>) -> Result<Arc<Pinned>> {
    let region = Region::create(REGISTERED)
        .and_then(|fd| Region::open(fd.as_fd(), REGISTERED, "this process"))?;
    Pinned::of(driver, context, &Arc::new(region))
}
