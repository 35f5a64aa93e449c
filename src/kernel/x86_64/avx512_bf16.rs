//! AVX-512 with BF16: bfloat16 rounded by its conversion, which takes subnormals for zeros: where
//! one turns up, the portable rounding does that line. All other types are those of AVX-512.
//! May touch: generic, scalar. Law: nothing here runs before the level was detected.

use core::arch::x86_64::{__m512bh, _mm512_cvtne2ps_pbh, _mm512_fpclass_ps_mask};
use core::array;

use super::avx512::Avx512;
use crate::kernel::generic::{Bfloats, Block, Isa, Many, Pack, Pairs, Portable, Run, reduce};
use crate::kernel::scalar::{Lines, Op};

#[derive(Clone, Copy)]
pub(in crate::kernel) struct Avx512Bf16;

impl Isa for Avx512Bf16 {
    type Line<T: Lines> = T::Line;
    type F16 = <Avx512 as Isa>::F16;
    type BF16 = Bfloats<Self>;
    fn run<B: Block, O: Op>() -> Run {
        run::<B, O>
    }
}

/// # Safety
/// As [`Run`] says.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
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

impl Pack for Avx512Bf16 {
    #[inline(always)]
    fn pack(lower: Many<f32, 16>, upper: Many<f32, 16>) -> Pairs {
        const SUBNORMAL: i32 = 0x20;
        let (low, high) = (bytemuck::cast(lower.0), bytemuck::cast(upper.0));
        // SAFETY: only `run` gets here, on a CPU of this level.
        let low_subnormal = unsafe { _mm512_fpclass_ps_mask::<SUBNORMAL>(low) };
        // SAFETY: as above.
        let high_subnormal = unsafe { _mm512_fpclass_ps_mask::<SUBNORMAL>(high) };
        if low_subnormal | high_subnormal != 0 {
            return Portable::pack(lower, upper);
        }
        // SAFETY: as above.
        let rounded = unsafe { _mm512_cvtne2ps_pbh(high, low) };
        // SAFETY: plain bits of one size.
        let rounded = unsafe { core::mem::transmute::<__m512bh, [u16; 32]>(rounded) };
        Many(array::from_fn(|i| u32::from(rounded[i]) | u32::from(rounded[16 + i]) << 16))
    }
}
