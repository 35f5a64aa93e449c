//! The user's hold on a registered buffer: a slice, and the promise that its pages stay shared.
//! May touch: live, element. Unsafe: the slice.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::live::{Live, Part};
use crate::element::Element;
use crate::error::Result;

/// A buffer that the other ranks of the host map as well: collectives on it, or on the same part of
/// it at every rank, need no copies between the ranks. It is a slice like any other; the others
/// touch it in collectives only, and only the slice that is passed. Where one rank passes other
/// memory, or another part, all have an error before anything is overwritten.
///
/// From [`Communicator::alloc`](crate::Communicator::alloc) it owns its memory, and `'a` is
/// `'static`; from [`Communicator::register`](crate::Communicator::register) it borrows the user's,
/// which becomes ordinary memory again, with its contents, when this is dropped. Each rank drops it
/// when it likes. It may outlive its communicator, and is then a slice and nothing else.
///
/// **Never forget it** (`mem::forget`) and free the memory: that is sound, but a later buffer at
/// the same address would be taken for this one, and get wrong results. No call can tell: what
/// memory is behind an address only the system knows, and to ask it takes longer than many a call.
///
/// **fork**: parent and child share its pages, so that a child sees what the collectives of the
/// parent do there, and the parent what the child writes. A child should only read it, or better
/// run another program at once.
pub struct Registered<'a, T> {
    live: Arc<Live>,
    start: NonNull<T>,
    count: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a slice of plain numbers.
unsafe impl<T: Element> Send for Registered<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Registered<'_, T> {}

impl<T: Element> Registered<'static, T> {
    /// `count` elements at the beginning of the library's own memory.
    pub(crate) fn allocated(live: Live, count: usize) -> Self {
        assert!(count * size_of::<T>() <= live.len());
        let start = live.start().cast();
        Self { live: Arc::new(live), start, count, life: PhantomData }
    }
}

impl<'a, T: Element> Registered<'a, T> {
    /// `buf`, with its pages in `fd`, which has their contents.
    pub(crate) fn adopted(
        id: u64,
        me: usize,
        buf: &'a mut [T],
        fd: BorrowedFd<'_>,
        parts: Vec<Part>,
    ) -> Result<Self> {
        let (count, len) = (buf.len(), size_of_val(buf));
        let start = NonNull::from(buf).cast::<T>();
        // SAFETY: the buffer is borrowed for 'a, which lasts until this, and with it the
        // registration, has been dropped: `Drop` below sees to that.
        let live = unsafe { Live::adopted(id, me, start.cast(), len, fd, parts) }?;
        Ok(Self { live: Arc::new(live), start, count, life: PhantomData })
    }

    /// The registration, for as long as this lives.
    pub(crate) fn live(&self) -> Weak<Live> {
        Arc::downgrade(&self.live)
    }
}

/// It does nothing, but that it is there makes the borrow last until the registration, a field, has
/// put the buffer's own pages back. Without it the compiler takes 'a for over after the last use of
/// the guard, and lets the buffer be freed before that.
impl<T> Drop for Registered<'_, T> {
    fn drop(&mut self) {}
}

impl<T> Deref for Registered<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements of plain numbers, valid for as long as this lives; the other
        // ranks write them only in a call that has them borrowed exclusively.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.count).as_ref() }
    }
}

impl<T> DerefMut for Registered<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.count).as_mut() }
    }
}

impl<T> AsRef<[T]> for Registered<'_, T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T> AsMut<[T]> for Registered<'_, T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: fmt::Debug> fmt::Debug for Registered<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
