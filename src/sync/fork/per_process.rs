//! Values of a process. A forked child makes its own, and never touches those of its parent: a
//! thread that the child lacks may have held a lock of it.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Process;

/// A static value that each process makes on first use, and keeps.
pub(crate) struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: Process,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// This process's value.
    pub(crate) fn get(&'static self) -> &'static T {
        let process = Process::default();
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null, or to a value that was stored below and is never freed.
            if let Some(made) = unsafe { known.as_ref() }
                && made.process == process
            {
                return &made.value;
            }
            let new = Box::into_raw(Box::new(Made { process, value: T::default() }));
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            known = match self.0.compare_exchange(known, new, success, failure) {
                Ok(_) => new,
                Err(other) => {
                    // SAFETY: the box was made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                    other
                }
            };
        }
    }
}
