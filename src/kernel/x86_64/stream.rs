//! Copy past the caches, with the streaming stores that every x86-64 has.

use core::arch::x86_64::{__m128i, _mm_sfence, _mm_stream_si128};

const LINE: usize = 64;

/// `out = from`, where nobody reads `out` before it has left the caches anyway. Streaming stores
/// are not ordered with others until [`settle`].
///
/// # Safety
/// Both are valid for `len` bytes.
pub(in crate::kernel) unsafe fn copy(out: *mut u8, from: *const u8, len: usize) {
    // Whole lines of `out` only: half a line streamed costs more than it saves.
    let head = out.align_offset(LINE).min(len);
    let end = len - (len - head) % LINE;
    // SAFETY: the head lies in range.
    unsafe { out.copy_from(from, head) };
    for at in (head..end).step_by(LINE) {
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

/// Orders streaming stores before all that follows.
pub(in crate::kernel) fn settle() {
    // SAFETY: every x86-64 has it.
    unsafe { _mm_sfence() };
}
