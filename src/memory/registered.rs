//! The user's hold on a registered buffer: a slice, and the promise that its pages stay shared.
//! May touch: live, element. Unsafe: the slice.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::registration::{Live, Part};
use crate::element::Element;
use crate::error::Result;

/// A buffer that the other ranks of the host map as well: collectives on it, or on the same part of
/// it at every rank, need no copies between the ranks. It is a slice like any other; the others
/// touch it in collectives only, and only the slice that is passed. Where one rank passes other
/// memory, or another part, all have an error before anything is overwritten.
///
/// From [`Communicator::alloc`](crate::Communicator::alloc) it owns its memory, and `'a` is
/// `'static`; from [`Communicator::register`](crate::Communicator::register) it holds the user's
/// vector and gives it back, with its contents and as ordinary memory, when this is dropped. Each
/// rank drops it when it likes. It may outlive its communicator, and is then a slice and nothing
/// else. If it is forgotten (`mem::forget`), its memory is never freed: a call knows registered
/// memory by its address, so no other buffer may ever come to lie there.
///
/// **fork**: parent and child share its pages, so that a child sees what the collectives of the
/// parent do there, and the parent what the child writes. A child should only read it, or better
/// run another program at once.
pub struct Registered<'a, T> {
    live: Arc<Live>,
    start: NonNull<T>,
    count: usize,
    /// The user's vector, which is the memory, and the place that it goes back to.
    lent: Option<(&'a mut Vec<T>, Vec<T>)>,
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
        Self { live: Arc::new(live), start, count, lent: None }
    }
}

impl<'a, T: Element> Registered<'a, T> {
    /// The memory of `buf`, with its pages in `fd`, which has their contents. If this fails, `buf`
    /// keeps it.
    pub(crate) fn adopted(
        id: u64,
        me: usize,
        buf: &'a mut Vec<T>,
        fd: BorrowedFd<'_>,
        parts: Vec<Part>,
    ) -> Result<Self> {
        let (count, len) = (buf.len(), size_of_val(&buf[..]));
        let start = NonNull::from(&mut buf[..]).cast::<T>();
        // SAFETY: the vector is taken out of the user's hands below, and comes back when this is
        // dropped, and with it the registration: 'a lasts until then. If this is never dropped, the
        // vector is never freed.
        let live = unsafe { Live::adopted(id, me, start.cast(), len, fd, parts) }?;
        let memory = take(buf);
        Ok(Self { live: Arc::new(live), start, count, lent: Some((buf, memory)) })
    }

    /// The registration, for as long as this lives.
    pub(crate) fn live(&self) -> Weak<Live> {
        Arc::downgrade(&self.live)
    }
}

impl<T> Drop for Registered<'_, T> {
    /// The user can't touch what is back before the registration, a field, has put the vector's own
    /// pages back: the borrow lasts until all of this has been dropped.
    fn drop(&mut self) {
        if let Some((home, memory)) = self.lent.take() {
            *home = memory;
        }
    }
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
