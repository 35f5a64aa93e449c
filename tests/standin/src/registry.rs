//! Handles: numbers that look like pointers, and the values that they stand for. Law: a handle that
//! was destroyed, or never made, is an error and never a crash; no handle is used twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::code::{Code, Done};

/// As C sees it: a pointer.
pub(crate) type Handle = u64;

pub(crate) fn new_handle() -> Handle {
    // Far from 0 and 1, the handles of the legacy stream, and from all mappings.
    static NEXT: AtomicU64 = AtomicU64::new(0xf5 << 56);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// All values of one kind that are not destroyed.
pub(crate) struct Registry<T>(LazyLock<Mutex<HashMap<Handle, Arc<T>>>>);

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Handle, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, handle: Handle, value: Arc<T>) {
        self.all().insert(handle, value);
    }

    pub(crate) fn get(&self, handle: Handle) -> Done<Arc<T>> {
        self.all().get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Done<Arc<T>> {
        self.all().remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Removes and answers some values.
    pub(crate) fn take_where(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.all().extract_if(|_, value| which(value)).map(|(_, value)| value).collect()
    }
}

/// Locks. A panic of another thread is reported in that thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
