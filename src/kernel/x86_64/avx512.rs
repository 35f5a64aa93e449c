//! AVX-512 (F, BW, DQ, VL): the generic loop compiled for these, and f16 by their conversions. Law:
//! no code here runs before the level was detected.

use core::arch::x86_64::{__m256i, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtph_ps, _mm512_cvtps_ph};

use super::avx2::{Avx2, OneHalf, run_with};
use crate::kernel::block::{Bfloats, Halves, Many, Portable, Widen};
use crate::kernel::select::{Isa, Lines};

pub(in crate::kernel) struct Avx512;

impl Isa for Avx512 {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<__m256i, 2>;
    type BF16 = Bfloats<Portable>;
    type Rare = Avx2;
    run_with!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
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
