//! Memory for secrets, which the kernel leaves out of core files.
//! Law: memory is excluded from core files before a secret is written to it, and wiped before it is
//! freed.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;

use bytemuck::Zeroable;
use nix::sys::mman::{MmapAdvise, madvise};
use zeroize::Zeroize;

/// Whole pages on every system, with nothing else in them.
#[derive(Zeroable)]
#[repr(C, align(65536))]
struct Pages<T>(T);

/// A value on pages of its own that no core file holds.
pub(crate) struct HiddenMemory<T: Zeroable + Zeroize>(Box<Pages<T>>);

impl<T: Zeroable + Zeroize> HiddenMemory<T> {
    /// Makes a value that `fill` writes in place, so that no copy exists elsewhere.
    ///
    /// # Errors
    /// The error of `fill`.
    pub(crate) fn fill_in_place<E>(fill: impl FnOnce(&mut T) -> Result<(), E>) -> Result<Self, E> {
        let mut hidden = Self(bytemuck::zeroed_box());
        if let Err(error) = hidden.advise(MmapAdvise::MADV_DONTDUMP) {
            tracing::warn!("a core file of this process would have the job's secret: {error}");
        }
        fill(&mut hidden.0.0)?;
        Ok(hidden)
    }

    fn advise(&mut self, advice: MmapAdvise) -> nix::Result<()> {
        let pages = NonNull::from(&mut *self.0).cast::<c_void>();
        // SAFETY: the range is whole pages that belong to this box alone, and this advice changes
        // no byte.
        unsafe { madvise(pages, size_of::<Pages<T>>(), advice) }
    }
}

impl<T: Zeroable + Zeroize> Deref for HiddenMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T: Zeroable + Zeroize> Drop for HiddenMemory<T> {
    fn drop(&mut self) {
        self.0.0.zeroize();
        // Later contents of these pages are no secret; if they stay out of core files, little is
        // lost.
        let _ = self.advise(MmapAdvise::MADV_DODUMP);
    }
}
