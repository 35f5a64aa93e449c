//! Copies to one or two outputs, through the cache or past it.
//! May touch: memory. Law: an output may be the very memory that is read.

#[cfg(target_arch = "x86_64")]
use super::x86_64;
use crate::memory::{Dst, Src};

/// Where the second output is, if there is one.
#[inline]
pub(super) fn second(also: Option<Dst<'_>>, len: usize) -> Option<*mut u8> {
    also.map(|mut also| {
        assert!(also.len() == len, "lengths differ from {len}");
        also.ptr()
    })
}

/// Bytes that stay in the nearest cache between two passes over them; whole elements of any type
/// but the user's.
pub(super) const PIECE: usize = 512;

/// The offsets and lengths of the pieces of `len` bytes; `piece` is not 0.
pub(super) fn pieces(len: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(piece).map(move |at| (at, piece.min(len - at)))
}

/// `out = from`, and the same to `also`; each may be `from` itself, but not an `out` that is best
/// filled past the cache.
///
/// # Panics
/// If the lengths differ: a bug of the caller, caught here.
pub fn copy(mut out: Dst<'_>, also: Option<Dst<'_>>, from: Src<'_>) {
    let len = out.len();
    assert!(from.len() == len, "lengths differ from {len}");
    let streaming = out.is_streaming();
    let (out, also, from) = (out.ptr(), second(also, len), from.ptr());
    if also.is_none() && !streaming {
        // SAFETY: both views are valid for `len` bytes.
        return unsafe { from.copy_to(out, len) };
    }
    // Piece by piece, so that the second pass reads what the first left in the nearest cache.
    for (at, len) in pieces(len, PIECE) {
        let (from, out) = (from.wrapping_add(at), out.wrapping_add(at));
        if let Some(also) = also {
            // SAFETY: the views are valid for all pieces.
            unsafe { from.copy_to(also.wrapping_add(at), len) };
        }
        if streaming {
            // SAFETY: as above.
            unsafe { stream(out, from, len) };
        } else {
            // SAFETY: as above.
            unsafe { from.copy_to(out, len) };
        }
    }
    if streaming {
        settle();
    }
}

/// `out = from` past the caches, where the CPU can.
///
/// # Safety
/// Both are valid for `len` bytes.
pub(super) unsafe fn stream(out: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86_64::stream::copy(out, from, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        out.copy_from(from, len);
    }
}

/// Orders what was streamed before everything that follows: a flag is seen after the bytes.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    x86_64::stream::settle();
}
