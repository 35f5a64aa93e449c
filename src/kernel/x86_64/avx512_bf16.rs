//! AVX-512 with BF16: bfloat16 is rounded by its conversion. The conversion treats subnormals as
//! zeros, so a line with a subnormal is rounded by the portable code. All other types are those of
//! AVX-512. Law: no code here runs before the level was detected.

use core::arch::x86_64::{__m512bh, _mm512_cvtne2ps_pbh, _mm512_fpclass_ps_mask};
use core::array;

use super::avx2::run_with;
use super::avx512::Avx512;
use crate::kernel::block::{Bfloats, Pack, Pairs, Portable};
use crate::kernel::select::{Isa, Lines};

#[derive(Clone, Copy)]
pub(in crate::kernel) struct Avx512Bf16;

impl Isa for Avx512Bf16 {
    type Line<T: Lines> = T::Line;
    type F16 = <Avx512 as Isa>::F16;
    type BF16 = Bfloats<Self>;
    type Rare = <Avx512 as Isa>::Rare;
    run_with!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");
}

impl Pack for Avx512Bf16 {
    #[inline(always)]
    fn pack(lower: [f32; 16], upper: [f32; 16]) -> Pairs {
        const SUBNORMAL: i32 = 0x20;
        let (low, high) = (bytemuck::cast(lower), bytemuck::cast(upper));
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
        array::from_fn(|i| u32::from(rounded[i]) | u32::from(rounded[16 + i]) << 16)
    }
}
