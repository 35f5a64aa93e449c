//! The memory that the pointer of a communicator points to. Its 200 bytes stay for the life of the
//! process, so a call on a closed communicator is an error and no access to freed memory.
//! Unsafe: a caller's handle is followed.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of C")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringreduce::{Communicator, Messenger, Monitor, Process, Registered};

use crate::failure::{Failure, Outcome};

/// The mark that tells a handle from other memory.
const MAGIC: u64 = u64::from_le_bytes(*b"rr_comm\0");

/// Every handle that was ever made, which keeps them from being leaks.
static HANDLES: Mutex<Vec<&'static rr_comm>> = Mutex::new(Vec::new());

/// A communicator: this rank, and its links to the others.
#[derive(Debug)]
pub struct rr_comm {
    magic: AtomicU64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    /// The process of this rank. In a forked child the locks below may never be given back.
    process: Process,
    /// `None` once it is closed.
    state: Mutex<Option<Box<State>>>,
    messenger: Mutex<Option<Messenger>>,
    monitor: Mutex<Option<Monitor>>,
}

/// A communicator, for the thread that is in a call, and what its rank owns.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) comm: Communicator,
    pub(crate) has_device: bool,
    /// Registered memory, by its address.
    pub(crate) memory: HashMap<usize, Registered<'static, u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> Failure {
    Failure::argument("comm was closed")
}

impl rr_comm {
    /// A handle of `comm`.
    pub(crate) fn new(comm: Communicator) -> *mut Self {
        let handle: &'static Self = Box::leak(Box::new(Self {
            magic: AtomicU64::new(MAGIC),
            rank: comm.rank(),
            size: comm.size(),
            local_rank: comm.local_rank(),
            local_size: comm.local_size(),
            process: Process::default(),
            messenger: Mutex::default(),
            monitor: Mutex::new(Some(comm.monitor())),
            state: Mutex::new(Some(Box::new(State {
                comm,
                has_device: false,
                memory: HashMap::new(),
            }))),
        }));
        lock(&HANDLES).push(handle);
        std::ptr::from_ref(handle).cast_mut()
    }

    /// # Safety
    /// `comm` is null, or points to as many readable bytes as a handle has.
    #[inline]
    pub(crate) unsafe fn of(comm: *const Self) -> Outcome<&'static Self> {
        if comm.is_null() {
            return Err(Failure::argument("comm is NULL"));
        }
        // SAFETY: the bytes are readable, and no handle is ever freed.
        if !comm.is_aligned() || unsafe { &(*comm).magic }.load(Ordering::Relaxed) != MAGIC {
            return Err(Failure::argument("comm is no communicator of this library"));
        }
        // SAFETY: it is a handle.
        Ok(unsafe { &*comm })
    }

    /// Makes a call, after that of another thread.
    #[inline]
    pub(crate) fn with(&self, call: impl FnOnce(&mut State) -> Outcome) -> Outcome {
        self.process.check("call")?;
        match &mut *lock(&self.state) {
            Some(state) => call(state),
            None => Err(closed()),
        }
    }

    /// The messenger, by which any thread sends and receives messages.
    pub(crate) fn messenger(&self) -> Outcome<Messenger> {
        self.process.check("message")?;
        if let Some(messenger) = &*lock(&self.messenger) {
            return Ok(messenger.clone());
        }
        let state = lock(&self.state);
        let messenger = state.as_ref().ok_or_else(closed)?.comm.messenger();
        *lock(&self.messenger) = Some(messenger.clone());
        Ok(messenger)
    }

    /// The monitor, by which any thread asks and stops the communicator.
    pub(crate) fn monitor(&self) -> Outcome<Monitor> {
        self.process.check("monitor")?;
        lock(&self.monitor).clone().ok_or_else(closed)
    }

    /// Ends the communicator, after its started calls and calls of other threads, which an abort
    /// ends. A forked child leaves it as it is: threads and sockets are its parent's.
    pub(crate) fn close(&self) -> Outcome {
        if !self.process.is_current() {
            return Ok(());
        }
        let mut guard = lock(&self.state);
        let state = guard.take().ok_or_else(closed)?;
        *lock(&self.messenger) = None;
        drop(guard);
        drop(state);
        *lock(&self.monitor) = None;
        Ok(())
    }
}
