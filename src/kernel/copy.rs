//! Copies to one or two outputs, through the cache or past it; an output may be the input.

#[cfg(target_arch = "x86_64")]
use super::x86_64;
use crate::memory::{Dst, Src};

/// The address of the optional second output, which must have `len` bytes.
#[inline]
pub(super) fn second_ptr(second: Option<Dst<'_>>, len: usize) -> Option<*mut u8> {
    second.map(|mut second| {
        assert!(second.len() == len, "lengths differ from {len}");
        second.ptr()
    })
}

/// Bytes processed at a time, so that a second pass finds them in the nearest cache; a multiple of
/// every element size but those of a user's type and of blocks with a scale.
pub(super) const PIECE: usize = 512;

/// The offsets and lengths of the pieces of `len` bytes; `piece` must not be 0.
pub(super) fn pieces(len: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(piece).map(move |at| (at, piece.min(len - at)))
}

/// Copies `from` to `out` and to `second`. Each output may be the memory of `from` itself, except
/// an `out` that is streamed (stored past the cache).
///
/// # Panics
/// If the lengths differ: a bug of the caller.
pub fn copy(mut out: Dst<'_>, second: Option<Dst<'_>>, from: Src<'_>) {
    let len = out.len();
    assert!(from.len() == len, "lengths differ from {len}");
    let streaming = out.is_streaming();
    if second.is_none() && !streaming {
        return out.fill(from);
    }
    let (out, second, from) = (out.ptr(), second_ptr(second, len), from.ptr());
    // In pieces, so that the second copy reads from the nearest cache.
    for (at, len) in pieces(len, PIECE) {
        let (from, out) = (from.wrapping_add(at), out.wrapping_add(at));
        if let Some(second) = second {
            // SAFETY: the views are valid for all pieces.
            unsafe { from.copy_to(second.wrapping_add(at), len) };
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
        streaming_fence();
    }
}

/// Copies with stores past the caches (non-temporal stores), where the CPU has them.
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

/// Orders streamed stores before all later stores: a peer that sees a flag also sees the bytes.
pub(super) fn streaming_fence() {
    #[cfg(target_arch = "x86_64")]
    x86_64::stream::streaming_fence();
}
