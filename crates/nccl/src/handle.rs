//! Handles of communicators. The 200 bytes of a handle stay for the life of the process, so a call
//! on a destroyed communicator is an error and no access to freed memory.
//! Unsafe: a caller's handle is followed.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::collections::HashMap;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ringreduce::{Communicator, DataType, Monitor, Pending, Process, Reduction};

use crate::abi::{Comm, code};
use crate::device::Device;
use crate::failure::{Failure, Outcome, code_of};

/// Every handle that was ever made, which keeps them from being leaks.
static HANDLES: Mutex<Vec<&'static Handle>> = Mutex::new(Vec::new());

/// The mark that tells a handle from other memory.
const MAGIC: u64 = u64::from_le_bytes(*b"ringcomm");

/// A communicator, as its caller knows it.
#[derive(Debug)]
pub struct Handle {
    magic: AtomicU64,
    /// The process that made it. In a forked child the locks below may never be given back.
    process: Process,
    state: Mutex<State>,
    /// The part that is known once the ranks have met.
    ready: OnceLock<Ready>,
    /// For any thread, from then on until the communicator is destroyed.
    monitor: Mutex<Option<Monitor>>,
    pub(crate) objects: Mutex<Objects>,
}

/// The part that never changes, for any thread.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: Option<c_int>,
}

#[derive(Debug)]
enum State {
    Starting,
    Ready(Box<Rank>),
    Failed(Failure),
    Destroyed,
}

/// A communicator, for the thread that is in a call.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) device: Option<Device>,
    pub(crate) is_blocking: bool,
    pub(crate) is_suspended: bool,
}

/// The objects that a caller has made for a communicator.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// The reductions of `ncclRedOpCreatePreMulSum`, by their number beyond the plain ones.
    pub(crate) reductions: Vec<Option<(Reduction, DataType)>>,
    /// Registered buffers and windows, by their handle: start and length in bytes.
    pub(crate) buffers: HashMap<usize, (usize, usize)>,
    /// Calls that were started and not seen to end.
    pub(crate) pending: Vec<Pending<()>>,
    /// Threads that wait for calls that were pending.
    waiting: usize,
    /// The first failure of a started call.
    pub(crate) failed: Option<c_int>,
}

impl Handle {
    /// A handle of a communicator that is being made.
    pub(crate) fn new() -> &'static Self {
        let handle: &'static Self = Box::leak(Box::new(Self {
            magic: AtomicU64::new(MAGIC),
            process: Process::default(),
            state: Mutex::new(State::Starting),
            ready: OnceLock::new(),
            monitor: Mutex::default(),
            objects: Mutex::default(),
        }));
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        handle
    }

    pub(crate) fn as_raw(&'static self) -> Comm {
        std::ptr::from_ref(self).cast_mut()
    }

    /// The handle, which a forked child does not get.
    ///
    /// # Safety
    /// `comm` is null, or points to as many readable bytes as a handle has.
    pub(crate) unsafe fn of(comm: Comm) -> Outcome<&'static Self> {
        let wrong = |what| Err(Failure::argument(format_args!("comm is {what}")));
        if comm.is_null() {
            return wrong("NULL");
        }
        if !comm.is_aligned() {
            return wrong("no communicator");
        }
        // SAFETY: the bytes are readable, and no handle is ever freed.
        let magic = unsafe { &(*comm).magic };
        if magic.load(Ordering::Relaxed) != MAGIC {
            return wrong("no communicator of this library");
        }
        // SAFETY: it is a handle.
        let handle = unsafe { &*comm };
        handle.process.check("ncclComm_t")?;
        Ok(handle)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The monitor, which any thread may use; none before the ranks have met and after the end.
    pub(crate) fn monitor(&self) -> Option<Monitor> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_monitor(&self, monitor: Option<Monitor>) {
        *self.monitor.lock().unwrap_or_else(PoisonError::into_inner) = monitor;
    }

    /// Ends the making of the communicator, which is dropped if it was aborted meanwhile.
    pub(crate) fn finish(&self, made: Outcome<Rank>) -> Outcome<()> {
        let mut state = self.lock();
        if matches!(*state, State::Destroyed) {
            drop(state);
            return Err(destroyed());
        }
        match made {
            Ok(rank) => {
                let _first = self.ready.set(Ready {
                    rank: rank.comm.rank(),
                    size: rank.comm.size(),
                    device: rank.device.as_ref().map(Device::ordinal),
                });
                self.set_monitor(Some(rank.comm.monitor()));
                *state = State::Ready(Box::new(rank));
                Ok(())
            }
            Err(failure) => {
                *state = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    /// The part of the communicator that is known once the ranks have met.
    pub(crate) fn ready(&self) -> Outcome<&Ready> {
        self.ready.get().ok_or_else(|| match &*self.lock() {
            State::Failed(failure) => failure.clone(),
            State::Destroyed => destroyed(),
            _ => starting(),
        })
    }

    /// Waits for calls of other threads, and locks the communicator.
    pub(crate) fn rank(&self) -> Outcome<RankGuard<'_>> {
        let state = self.lock();
        match &*state {
            State::Ready(rank) if rank.is_suspended => {
                Err(Failure::usage("comm is suspended; call ncclCommResume first"))
            }
            State::Ready(_) => Ok(RankGuard(state)),
            State::Starting => Err(starting()),
            State::Failed(failure) => Err(failure.clone()),
            State::Destroyed => Err(destroyed()),
        }
    }

    /// As [`Self::rank`], of a communicator that may be suspended.
    pub(crate) fn set_suspended(&self, is_suspended: bool) -> Outcome<()> {
        match &mut *self.lock() {
            State::Ready(rank) if rank.is_suspended != is_suspended => {
                rank.is_suspended = is_suspended;
                Ok(())
            }
            State::Ready(_) if is_suspended => Err(Failure::usage("comm is suspended already")),
            State::Ready(_) => Err(Failure::usage("comm is not suspended")),
            State::Starting => Err(starting()),
            State::Failed(failure) => Err(failure.clone()),
            State::Destroyed => Err(destroyed()),
        }
    }

    /// Ends the communicator. Calls of other threads end first.
    pub(crate) fn destroy(&self) -> Outcome<()> {
        let state = self.lock();
        if matches!(*state, State::Starting) {
            return Err(starting());
        }
        self.end(state)
    }

    /// Ends the calls of all ranks and the communicator, which may be in the making.
    pub(crate) fn abort(&self) -> Outcome<()> {
        self.stop_calls();
        self.end(self.lock())
    }

    /// Ends the calls of all ranks, if the ranks have met.
    pub(crate) fn stop_calls(&self) {
        self.monitor().iter().for_each(Monitor::abort);
    }

    fn end(&self, mut state: MutexGuard<'_, State>) -> Outcome<()> {
        let before = std::mem::replace(&mut *state, State::Destroyed);
        drop(state);
        if matches!(before, State::Destroyed) {
            return Err(destroyed());
        }
        drop(before);
        self.set_monitor(None);
        *self.objects() = Objects::default();
        Ok(())
    }

    /// The state of the communicator, without waiting (`ncclCommGetAsyncError`).
    pub(crate) fn async_code(&self) -> c_int {
        let Some(monitor) = self.monitor() else {
            return match self.state.try_lock().as_deref() {
                Ok(State::Failed(failure)) => failure.code(),
                Ok(State::Destroyed) => code::INVALID_ARGUMENT,
                _ => code::IN_PROGRESS,
            };
        };
        let mut objects = self.objects();
        let (ended, pending) = take(&mut objects.pending).into_iter().partition(Pending::is_done);
        objects.pending = pending;
        objects.failed = objects.failed.or(first_failure(ended));
        let failed = monitor.error().map(|error| code_of(&error)).or(objects.failed);
        let is_running = !objects.pending.is_empty() || objects.waiting > 0;
        let running = is_running.then_some(code::IN_PROGRESS);
        failed.or(running).unwrap_or(code::SUCCESS)
    }

    /// Waits for the calls that were started; the first failure of any.
    pub(crate) fn wait(&self) -> Option<c_int> {
        let mut objects = self.objects();
        let pending = take(&mut objects.pending);
        objects.waiting += 1;
        drop(objects);
        let failed = first_failure(pending);
        let mut objects = self.objects();
        objects.waiting -= 1;
        objects.failed = objects.failed.or(failed);
        objects.failed
    }
}

/// Waits for all calls.
fn first_failure(calls: Vec<Pending<()>>) -> Option<c_int> {
    let results: Vec<_> = calls.into_iter().map(Pending::wait).collect();
    results.iter().find_map(|result| result.as_ref().err()).map(code_of)
}

fn starting() -> Failure {
    Failure::argument("comm is being made; ask ncclCommGetAsyncError until it is ncclSuccess")
}

fn destroyed() -> Failure {
    Failure::argument("comm was destroyed")
}

/// The locked communicator.
pub(crate) struct RankGuard<'a>(MutexGuard<'a, State>);

impl RankGuard<'_> {
    pub(crate) fn get(&mut self) -> Outcome<&mut Rank> {
        match &mut *self.0 {
            State::Ready(rank) => Ok(rank),
            _ => Err(destroyed()),
        }
    }
}
