//! Memory for secrets, of which no core file has a copy. May touch: nix. Unsafe: advice about it.
//! Law: it is left out of cores before anything is in it, and wiped before it is anybody else's.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;

use bytemuck::Zeroable;
use nix::sys::mman::{MmapAdvise, madvise};
use zeroize::Zeroize;

/// Whole pages, on every system, with nothing else in them.
#[derive(Zeroable)]
#[repr(C, align(65536))]
struct Pages<T>(T);

/// What is kept there.
pub(crate) struct Hidden<T: Zeroable + Zeroize>(Box<Pages<T>>);

impl<T: Zeroable + Zeroize> Hidden<T> {
    /// What `fill` writes, straight to where it stays.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(crate) fn filled<E>(fill: impl FnOnce(&mut T) -> Result<(), E>) -> Result<Self, E> {
        let mut hidden = Self(bytemuck::zeroed_box());
        if let Err(error) = hidden.advise(MmapAdvise::MADV_DONTDUMP) {
            tracing::warn!("a core file of this process would have the job's secret: {error}");
        }
        fill(&mut hidden.0.0)?;
        Ok(hidden)
    }

    fn advise(&mut self, advice: MmapAdvise) -> nix::Result<()> {
        let pages = NonNull::from(&mut *self.0).cast::<c_void>();
        // SAFETY: these are whole pages that nothing else is in, and such advice changes no byte.
        unsafe { madvise(pages, size_of::<Pages<T>>(), advice) }
    }
}

impl<T: Zeroable + Zeroize> Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T: Zeroable + Zeroize> Drop for Hidden<T> {
    fn drop(&mut self) {
        self.0.0.zeroize();
        // What comes to lie there is nobody's secret; if it stays out of cores, little is lost.
        let _ = self.advise(MmapAdvise::MADV_DODUMP);
    }
}
