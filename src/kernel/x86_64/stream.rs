//! Copy past the caches by the non-temporal stores that every x86-64 CPU has.

use core::arch::x86_64::{__m128i, _mm_sfence, _mm_stream_si128};

const LINE: usize = 64;

/// Copies `from` to `out`, for an output that leaves the caches before it is read. Non-temporal
/// stores are not ordered with other stores until [`streaming_fence`].
///
/// # Safety
/// Both are valid for `len` bytes.
pub(in crate::kernel) unsafe fn copy(out: *mut u8, from: *const u8, len: usize) {
    // Only whole lines of `out` are streamed: half a line costs more than it saves.
    let first = out.align_offset(LINE).min(len);
    let end = len - (len - first) % LINE;
    // SAFETY: the start lies in range.
    unsafe { out.copy_from(from, first) };
    for at in (first..end).step_by(LINE) {
        // SAFETY: a whole line of both lies in range.
        let line = unsafe { from.wrapping_add(at).cast::<[u8; LINE]>().read_unaligned() };
        let registers = bytemuck::cast::<_, [__m128i; 4]>(line);
        for (i, register) in registers.into_iter().enumerate() {
            // SAFETY: as above, and `out + at` begins a line.
            unsafe {
                _mm_stream_si128(out.wrapping_add(at).cast::<__m128i>().wrapping_add(i), register)
            };
        }
    }
    // SAFETY: the rest lies in range.
    unsafe { out.wrapping_add(end).copy_from(from.wrapping_add(end), len - end) };
}

/// Orders non-temporal stores before all later stores.
pub(in crate::kernel) fn streaming_fence() {
    // SAFETY: every x86-64 has it.
    unsafe { _mm_sfence() };
}
