//! A registered buffer as the user holds it: a slice whose whole pages other ranks of the host map.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::host_region::HostFile;
use super::registration::Registration;
use crate::element::Element;
use crate::error::Result;

/// A buffer that the other ranks of the host can map. A collective for which all ranks pass such
/// buffers, or parts of them, copies nothing between ranks; each rank may pass any of its own. If a
/// rank passes other memory, the call is made as on other memory, and so are short calls. It is
/// used like any other slice; the other ranks access it only in collectives, and only the slice
/// that is passed.
///
/// From [`Communicator::alloc`](crate::Communicator::alloc) it owns its memory, and `'a` is
/// `'static`. From [`Communicator::register`](crate::Communicator::register) it holds the user's
/// vector and gives it back when it is dropped, with its contents and as ordinary memory. A rank
/// drops it when it likes. It may outlive its communicator, and is then an ordinary slice. If it
/// is forgotten (`mem::forget`), its memory is never freed: a call recognises registered memory by
/// its address, so no other buffer may ever be placed there.
///
/// **fork**: parent and child share its pages. The child sees what the parent's collectives write,
/// and the parent sees what the child writes. A child should only read it, or better `exec` another
/// program at once.
pub struct Registered<'a, T> {
    registration: Arc<Registration>,
    start: NonNull<T>,
    count: usize,
    /// The user's vector, which owns the memory, and the variable that it goes back to.
    lent: Option<(&'a mut Vec<T>, Vec<T>)>,
}

// SAFETY: the registration is `Send`, and the elements are plain numbers.
unsafe impl<T: Element> Send for Registered<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Registered<'_, T> {}

impl<T: Element> Registered<'static, T> {
    /// `count` elements, all zero, in the file of the host's region if there is one.
    pub(crate) fn allocated(count: usize, file: Option<&Arc<HostFile>>) -> Result<Self> {
        let registration = Registration::allocated(count * size_of::<T>(), file)?;
        let start = registration.start().cast();
        Ok(Self { registration: Arc::new(registration), start, count, lent: None })
    }
}

impl<'a, T: Element> Registered<'a, T> {
    /// Registers the memory of `buf`. If this fails, `buf` keeps its memory.
    pub(crate) fn adopted(buf: &'a mut Vec<T>, file: Option<&Arc<HostFile>>) -> Result<Self> {
        let (count, len) = (buf.len(), size_of_val(&buf[..]));
        let start = NonNull::from(&mut buf[..]).cast::<T>();
        // SAFETY: the vector is moved out of the user's variable below and comes back when this is
        // dropped, and the registration with it: 'a lasts until then. If this is never dropped, the
        // vector is never freed.
        let registration = unsafe { Registration::adopted(start.cast(), len, file) }?;
        let memory = take(buf);
        Ok(Self { registration: Arc::new(registration), start, count, lent: Some((buf, memory)) })
    }

    /// The registration, which lasts as long as this buffer and the calls on it.
    pub(crate) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }
}

impl<T> Drop for Registered<'_, T> {
    /// Gives the vector back first. The user cannot access it before the registration, a field that
    /// is dropped afterwards, has restored the vector's own pages: the borrow lasts that long.
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
