//! NEON, which every AArch64 CPU has: the generic loop as it is, and f16 by the CPU's conversions.
//! Conversions are inline assembly, since the intrinsics need an unstable type.

use core::arch::aarch64::{float32x4_t, uint16x4_t};
use core::arch::asm;

use crate::element::f16;
use crate::kernel::block::{Bfloats, Halves, Many, One, Portable, Widen};
use crate::kernel::select::{Isa, Lines};

pub(in crate::kernel) struct Neon;

impl Isa for Neon {
    type Line<T: Lines> = T::Line;
    type F16 = Halves<uint16x4_t, 8>;
    type BF16 = Bfloats<Portable>;
    type Rare = Self;
}

impl Widen for uint16x4_t {
    type Wide = Many<f32, 4>;
    type Single = One<f16>;
    #[inline(always)]
    fn widen(self) -> [f32; 4] {
        let register: float32x4_t;
        // SAFETY: converts registers, and touches nothing else.
        unsafe {
            asm!("fcvtl {wide:v}.4s, {narrow:v}.4h", wide = out(vreg) register,
                narrow = in(vreg) self, options(pure, nomem, nostack, preserves_flags));
        }
        bytemuck::cast(register)
    }
    #[inline(always)]
    fn narrow(wide: [f32; 4]) -> Self {
        let register: float32x4_t = bytemuck::cast(wide);
        let narrow: Self;
        // SAFETY: converts registers, and touches nothing else.
        unsafe {
            asm!("fcvtn {narrow:v}.4h, {wide:v}.4s", narrow = out(vreg) narrow,
                wide = in(vreg) register, options(pure, nomem, nostack, preserves_flags));
        }
        narrow
    }
}
