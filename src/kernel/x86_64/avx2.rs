//! AVX2 with F16C: the generic loop compiled for these, and f16 by their conversions. Law: no code
//! here runs before the level was detected.

use core::arch::x86_64::{__m128i, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use crate::kernel::Params;
use crate::kernel::block::{Bfloats, Block, Halves, Many, One, Portable, Widen, item_by_item};
use crate::kernel::scalar::Op;
use crate::kernel::select::{Isa, Lines};

/// `Isa::run` and `Isa::conversions` of an instruction set that has these features.
macro_rules! run_with {
    ($features:literal) => {
        fn run<B: $crate::kernel::block::Block, O: $crate::kernel::scalar::Op<B::Lane>>()
        -> $crate::kernel::pass::Run {
            use $crate::kernel::{block::Block, pass, scalar::Op};

            /// # Safety
            /// As `Run` says.
            #[target_feature(enable = $features)]
            unsafe fn pair<B: Block, O: Op<B::Lane>>(operands: &pass::Pair<'_>) {
                // SAFETY: the caller's promise.
                unsafe { pass::pair::<B, O>(operands) }
            }
            /// # Safety
            /// As `Run` says.
            #[target_feature(enable = $features)]
            unsafe fn fold<B: Block, O: Op<B::Lane>>(operands: &pass::Fold<'_>) {
                // SAFETY: the caller's promise.
                unsafe { pass::fold::<B, O>(operands) }
            }
            pass::Run { pair: pair::<B, O>, fold: fold::<B, O> }
        }

        fn conversions<C: $crate::kernel::scaled::Code>() -> $crate::kernel::scaled::Conversions {
            use $crate::kernel::scaled::{self, Code};

            #[target_feature(enable = $features)]
            fn widen<C: Code>(from: &[u8], to: &mut [f32]) {
                scaled::widen::<C>(from, to);
            }
            #[target_feature(enable = $features)]
            fn narrow<C: Code>(from: &[f32], to: &mut [u8]) {
                scaled::narrow::<C>(from, to);
            }
            scaled::Conversions { widen: widen::<C>, narrow: narrow::<C> }
        }
    };
}
pub(super) use run_with;

pub(in crate::kernel) struct Avx2;

impl Isa for Avx2 {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<__m128i, 4>;
    type BF16 = Bfloats<Portable>;
    type Rare = Self;
    run_with!("avx2,f16c");
}

impl Widen for __m128i {
    type Wide = Many<f32, 8>;
    type Single = OneHalf;
    #[inline(always)]
    fn widen(self) -> [f32; 8] {
        // SAFETY: only `run` gets here, on a CPU that has F16C.
        bytemuck::cast(unsafe { _mm256_cvtph_ps(self) })
    }
    #[inline(always)]
    fn narrow(wide: [f32; 8]) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide)) }
    }
}

/// One f16, by the same conversions.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::kernel) struct OneHalf(u16);

impl OneHalf {
    #[inline(always)]
    fn register(self) -> __m128i {
        bytemuck::cast([self.0, 0, 0, 0, 0, 0, 0, 0])
    }
}

/// Only the first lane counts; the others are zeros.
impl Block for OneHalf {
    type Lane = f32;
    type Wide = [f32; 8];
    type Single = Self;
    #[inline(always)]
    fn widen(self) -> [f32; 8] {
        self.register().widen()
    }
    #[inline(always)]
    fn narrow(wide: [f32; 8]) -> Self {
        Self(bytemuck::cast::<_, [u16; 8]>(<__m128i as Widen>::narrow(wide))[0])
    }
    item_by_item!(One<f32>);
}
