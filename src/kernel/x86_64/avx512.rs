//! AVX-512 (F, BW, DQ, VL): the generic loop compiled for them, and f16 by their conversions.
//! May touch: generic, scalar. Law: nothing here runs before the level was detected.

use core::arch::x86_64::{__m256i, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtph_ps, _mm512_cvtps_ph};

use super::avx2::OneHalf;
use crate::kernel::generic::{Bfloats, Block, Halves, Isa, Many, Portable, Run, Widen, reduce};
use crate::kernel::scalar::{Lines, Op};

pub(in crate::kernel) struct Avx512;

impl Isa for Avx512 {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<__m256i, 2>;
    type BF16 = Bfloats<Portable>;
    fn run<B: Block, O: Op>() -> Run {
        run::<B, O>
    }
}

/// # Safety
/// As [`Run`] says.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run<B: Block, O: Op>(
    out: *mut u8,
    also: *mut u8,
    local: *const u8,
    incoming: *const u8,
    len: usize,
    world: u64,
) {
    // SAFETY: the caller's promise.
    unsafe { reduce::<B, O>(out, also, local, incoming, len, world) }
}

impl Widen for __m256i {
    type Wide = Many<f32, 16>;
    type Single = OneHalf;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        // SAFETY: only `run` gets here, on a CPU that has AVX-512.
        Many(bytemuck::cast(unsafe { _mm512_cvtph_ps(self) }))
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide.0)) }
    }
}
