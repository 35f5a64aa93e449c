//! Memory for secrets, which the kernel leaves out of core files. All secrets of a process lie side
//! by side there, because each communicator has some of its own.
//! Law: memory is excluded from core files before a secret is written to it, and wiped before it is
//! used again.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use bytemuck::{Pod, Zeroable, from_bytes, from_bytes_mut, zeroed_box};
use nix::sys::mman::{MmapAdvise, madvise};
use zeroize::Zeroize;

use crate::sync::{PerProcess, Process};

/// Whole pages on every system, with nothing else in them.
#[derive(Zeroable)]
#[repr(C, align(65536))]
struct Pages([[u8; PLACE_LEN]; PAGES_LEN / PLACE_LEN]);

const PAGES_LEN: usize = 65536;
/// Room for the longest secret, the keys of a job.
const PLACE_LEN: usize = 128;

/// Places for secrets, all of which are zero.
static FREE: PerProcess<Mutex<Vec<&'static mut [u8]>>> = PerProcess::new();

/// Takes a free place, or one of new pages, which are never freed.
fn take_place() -> &'static mut [u8] {
    let mut free = FREE.get().lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(place) = free.pop() {
            return place;
        }
        free.extend(hidden_pages().0.iter_mut().map(|place| &mut place[..]));
    }
}

fn hidden_pages() -> &'static mut Pages {
    let pages: &'static mut Pages = Box::leak(zeroed_box());
    let start = NonNull::from(&mut *pages).cast::<c_void>();
    // SAFETY: the range is whole pages that belong to this box alone, and this advice changes no
    // byte.
    if let Err(error) = unsafe { madvise(start, PAGES_LEN, MmapAdvise::MADV_DONTDUMP) } {
        tracing::warn!("a core file of this process would have the job's secret: {error}");
    }
    pages
}

/// A value in memory that no core file holds.
pub(crate) struct HiddenMemory<T: Pod> {
    place: &'static mut [u8],
    process: Process,
    value: PhantomData<T>,
}

impl<T: Pod> HiddenMemory<T> {
    const FITS: () = assert!(size_of::<T>() <= PLACE_LEN && align_of::<T>() <= PLACE_LEN);

    /// Makes a value that `fill` writes in place, so that no copy exists elsewhere.
    ///
    /// # Errors
    /// The error of `fill`.
    pub(crate) fn fill_in_place<E>(fill: impl FnOnce(&mut T) -> Result<(), E>) -> Result<Self, E> {
        let () = Self::FITS;
        let (place, process) = (take_place(), Process::default());
        let hidden = Self { place, process, value: PhantomData };
        fill(from_bytes_mut(&mut hidden.place[..size_of::<T>()]))?;
        Ok(hidden)
    }
}

impl<T: Pod> Deref for HiddenMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        from_bytes(&self.place[..size_of::<T>()])
    }
}

impl<T: Pod> Drop for HiddenMemory<T> {
    fn drop(&mut self) {
        let place = std::mem::take(&mut self.place);
        place.zeroize();
        // A forked child wipes its copy, and leaves it.
        if self.process.is_current() {
            FREE.get().lock().unwrap_or_else(PoisonError::into_inner).push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    type Hidden = HiddenMemory<[u8; 96]>;

    #[test]
    fn secrets_share_pages_and_leave_nothing_in_their_places() {
        for _ in 0..2 {
            let fill = |bytes: &mut [u8; 96]| {
                assert_eq!(*bytes, [0; 96]);
                bytes.fill(7);
                Ok::<_, Infallible>(())
            };
            let secrets: Vec<Hidden> =
                (0..2000).map(|_| Hidden::fill_in_place(fill).unwrap()).collect();
            let mut pages: Vec<_> =
                secrets.iter().map(|it| it.place.as_ptr().addr() / PAGES_LEN).collect();
            pages.sort_unstable();
            pages.dedup();
            // Other tests have secrets too.
            assert!(pages.len() < 40, "{} pages", pages.len());
            assert!(secrets.iter().all(|it| **it == [7; 96]));
        }
    }
}
