//! Handles of communicators. A handle's memory stays for the life of the process, so a call on a
//! destroyed communicator is an error and no access to freed memory.
//! Unsafe: a caller's handle is followed.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ringreduce::{Communicator, DataType, Monitor, Pending, Reduction};

use crate::abi::{Comm, code};
use crate::device::Device;
use crate::failure::{Failure, Outcome, code_of};

/// What tells a handle from other memory.
const MAGIC: u64 = u64::from_le_bytes(*b"ringcomm");

/// A communicator, as its caller knows it.
#[derive(Debug)]
pub struct Handle {
    magic: AtomicU64,
    state: Mutex<State>,
    /// What is known once the ranks have met.
    ready: OnceLock<Ready>,
    pub(crate) objects: Mutex<Objects>,
}

/// What never changes, for any thread.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: Option<c_int>,
    pub(crate) monitor: Monitor,
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

/// What a caller has made for a communicator.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// The reductions of `ncclRedOpCreatePreMulSum`, by their number beyond the plain ones.
    pub(crate) reductions: Vec<Option<(Reduction, DataType)>>,
    /// Registered buffers and windows, by their handle: start and length in bytes.
    pub(crate) buffers: HashMap<usize, (usize, usize)>,
    /// Calls that were started and not seen to end.
    pub(crate) pending: Vec<Pending<()>>,
    /// The first failure of a started call.
    pub(crate) failed: Option<c_int>,
}

impl Handle {
    /// A handle of a communicator that is being made.
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            magic: AtomicU64::new(MAGIC),
            state: Mutex::new(State::Starting),
            ready: OnceLock::new(),
            objects: Mutex::default(),
        }))
    }

    pub(crate) fn as_raw(&'static self) -> Comm {
        std::ptr::from_ref(self).cast_mut()
    }

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
        Ok(unsafe { &*comm })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the making of the communicator.
    pub(crate) fn finish(&self, made: Outcome<Rank>) -> Outcome<()> {
        let mut state = self.lock();
        match made {
            Ok(rank) => {
                let _first = self.ready.set(Ready {
                    rank: rank.comm.rank(),
                    size: rank.comm.size(),
                    device: rank.device.as_ref().map(Device::ordinal),
                    monitor: rank.comm.monitor(),
                });
                *state = State::Ready(Box::new(rank));
                Ok(())
            }
            Err(failure) => {
                *state = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    /// What is known of the communicator once the ranks have met.
    pub(crate) fn ready(&self) -> Outcome<&Ready> {
        self.ready.get().ok_or_else(|| match &*self.lock() {
            State::Failed(failure) => failure.clone(),
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
            State::Destroyed => Err(Failure::argument("comm was destroyed")),
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
            State::Destroyed => Err(Failure::argument("comm was destroyed")),
        }
    }

    /// Ends the communicator. Calls of other threads end first.
    pub(crate) fn destroy(&self) -> Outcome<()> {
        let mut state = self.lock();
        if matches!(*state, State::Destroyed) {
            return Err(Failure::argument("comm was destroyed before"));
        }
        if matches!(*state, State::Starting) {
            return Err(starting());
        }
        let before = std::mem::replace(&mut *state, State::Destroyed);
        drop(state);
        drop(before);
        *self.objects() = Objects::default();
        Ok(())
    }

    /// The state of the communicator, without waiting (`ncclCommGetAsyncError`).
    pub(crate) fn async_code(&self) -> c_int {
        let Some(ready) = self.ready.get() else {
            return match self.state.try_lock().as_deref() {
                Ok(State::Failed(failure)) => failure.code(),
                _ => code::IN_PROGRESS,
            };
        };
        let mut objects = self.objects();
        objects.collect(false);
        let failed = ready.monitor.error().map(|error| code_of(&error)).or(objects.failed);
        let running = (!objects.pending.is_empty()).then_some(code::IN_PROGRESS);
        failed.or(running).unwrap_or(code::SUCCESS)
    }
}

impl Objects {
    /// Takes the results of started calls that have ended, or of all, for which it waits.
    pub(crate) fn collect(&mut self, waits: bool) {
        for pending in std::mem::take(&mut self.pending) {
            if !waits && !pending.is_done() {
                self.pending.push(pending);
            } else if let Err(error) = pending.wait() {
                self.failed = self.failed.or(Some(code_of(&error)));
            }
        }
    }
}

fn starting() -> Failure {
    Failure::argument("comm is being made; ask ncclCommGetAsyncError until it is ncclSuccess")
}

/// The locked communicator.
pub(crate) struct RankGuard<'a>(MutexGuard<'a, State>);

impl RankGuard<'_> {
    pub(crate) fn get(&mut self) -> Outcome<&mut Rank> {
        match &mut *self.0 {
            State::Ready(rank) => Ok(rank),
            _ => Err(Failure::argument("comm was destroyed")),
        }
    }
}
