//! AVX-512 (F, BW, DQ, VL): the generic loop compiled for these, and f16 by their conversions. Law:
//! no code here runs before the level was detected.

use core::arch::x86_64::{__m256i, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtph_ps, _mm512_cvtps_ph};

use super::avx2::{Avx2, OneHalf};
use crate::kernel::block::{Bfloats, Block, Halves, Many, Portable, Widen};
use crate::kernel::pass::{self, Fold, Pair, RunFold, RunPair};
use crate::kernel::scalar::Op;
use crate::kernel::select::{Isa, Lines};

pub(in crate::kernel) struct Avx512;

impl Isa for Avx512 {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<__m256i, 2>;
    type BF16 = Bfloats<Portable>;
    type Rare = Avx2;
    fn pair<B: Block, O: Op<B::Lane>>() -> RunPair {
        pair::<B, O>
    }
    fn fold<B: Block, O: Op<B::Lane>>() -> RunFold {
        fold::<B, O>
    }
}

/// # Safety
/// As `Run` says.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair<B: Block, O: Op<B::Lane>>(operands: &Pair<'_>) {
    // SAFETY: the caller's promise.
    unsafe { pass::pair::<B, O>(operands) }
}

/// # Safety
/// As `Run` says.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn fold<B: Block, O: Op<B::Lane>>(operands: &Fold<'_>) {
    // SAFETY: the caller's promise.
    unsafe { pass::fold::<B, O>(operands) }
}

impl Widen for __m256i {
    type Wide = Many<f32, 16>;
    type Single = OneHalf;
    #[inline(always)]
    fn widen(self) -> [f32; 16] {
        // SAFETY: only `run` gets here, on a CPU that has AVX-512.
        bytemuck::cast(unsafe { _mm512_cvtph_ps(self) })
    }
    #[inline(always)]
    fn narrow(wide: [f32; 16]) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide)) }
    }
}
