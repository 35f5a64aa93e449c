//! AVX2 with F16C: the generic loop compiled for them, and f16 by their conversions.
//! May touch: generic, scalar. Law: nothing here runs before the level was detected.

use core::arch::x86_64::{__m128i, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use crate::kernel::generic::{Bfloats, Block, Halves, Isa, Many, Portable, Run, Widen, reduce};
use crate::kernel::scalar::{Lines, Op};

pub(in crate::kernel) struct Avx2;

impl Isa for Avx2 {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<__m128i, 4>;
    type BF16 = Bfloats<Portable>;
    fn run<B: Block, O: Op>() -> Run {
        run::<B, O>
    }
}

/// # Safety
/// As [`Run`] says.
#[target_feature(enable = "avx2,f16c")]
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

impl Widen for __m128i {
    type Wide = Many<f32, 8>;
    type Single = OneHalf;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        // SAFETY: only `run` gets here, on a CPU that has F16C.
        Many(bytemuck::cast(unsafe { _mm256_cvtph_ps(self) }))
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide.0)) }
    }
}

/// One f16, by the same conversions.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::kernel) struct OneHalf(u16);

impl Block for OneHalf {
    type Single = Self;
    #[inline(always)]
    fn apply<O: Op>(self, other: Self, world: u64) -> Self {
        let register = |half: Self| bytemuck::cast::<_, __m128i>([half.0, 0, 0, 0, 0, 0, 0, 0]);
        let wide = register(self).widen().apply::<O>(register(other).widen(), world);
        Self(bytemuck::cast::<_, [u16; 8]>(__m128i::narrow(wide))[0])
    }
}
