//! Reduction on the host: `out = local op incoming`, element by element. Chosen once per process
//! for this CPU; every implementation gives the bits of `scalar`, the oracle (NaN payloads aside).
//! May touch: element, memory. Unsafe: the files of this room only.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod generic;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::ptr::null_mut;
use std::sync::LazyLock;

use crate::element::{DataType, ReduceOp};
use crate::memory::{Dst, Src};
use generic::Run;

/// A set of instructions that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One element at a time, on any CPU: the oracle of the others.
    Scalar,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with AVX-512 BF16.
    Avx512Bf16,
    /// AArch64, whose vectors are always there.
    Neon,
}

impl Level {
    /// The levels of this CPU, the best one last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Neon];
        all.into_iter().filter(|level| level.is_available()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2(),
            Self::Avx512 => avx2() && avx512(),
            Self::Avx512Bf16 => avx2() && avx512() && is_x86_feature_detected!("avx512bf16"),
            Self::Neon => false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Scalar || (self == Self::Neon && cfg!(target_arch = "aarch64"))
    }

    /// What this level runs; a level of another architecture is never available.
    fn select(self, dtype: DataType, op: ReduceOp) -> Run {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => generic::select::<x86_64::avx2::Avx2>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 if dtype == DataType::BF16 => {
                generic::select_bf16::<x86_64::avx512_bf16::Avx512Bf16>(op)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => generic::select::<x86_64::avx512::Avx512>(dtype, op),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => generic::select::<aarch64::neon::Neon>(dtype, op),
            _ => generic::select::<scalar::Scalar>(dtype, op),
        }
    }
}

/// The best level of this CPU.
static BEST: LazyLock<Level> = LazyLock::new(|| Level::available().pop().unwrap_or(Level::Scalar));

/// The reduction of one data type by one operation, ready to run.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Every reduction but the last.
    step: Run,
    /// The one that brings the last contribution.
    last: Run,
    world: u64,
    element_size: usize,
}

impl Kernel {
    /// The kernel for `dtype` and `op` on this CPU; the average divides by `world`.
    ///
    /// # Panics
    /// If `world` is 0 or above 2^31.
    #[must_use]
    pub fn select(dtype: DataType, op: ReduceOp, world: usize) -> Self {
        Self::of(*BEST, dtype, op, world)
    }

    /// The kernel of one level, for comparing them; `None` where this CPU lacks it.
    ///
    /// # Panics
    /// As [`Kernel::select`].
    #[must_use]
    pub fn select_for(level: Level, dtype: DataType, op: ReduceOp, world: usize) -> Option<Self> {
        level.is_available().then(|| Self::of(level, dtype, op, world))
    }

    fn of(level: Level, dtype: DataType, op: ReduceOp, world: usize) -> Self {
        assert!((1..=1 << 31).contains(&world), "a world of {world} ranks");
        let before = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        Self {
            step: level.select(dtype, before),
            last: level.select(dtype, op),
            world: world as u64,
            element_size: dtype.size(),
        }
    }

    /// `out = local op incoming`, and the same to `also`. `last` marks the reduction that brings
    /// the last contribution: there the average divides. `out`, `also` and `local` may be the
    /// very same memory, `incoming` is apart from all; no pointer needs to be aligned.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements: a bug of the caller, caught here.
    #[inline]
    pub fn reduce(
        &self,
        last: bool,
        mut out: Dst<'_>,
        also: Option<Dst<'_>>,
        local: Src<'_>,
        incoming: Src<'_>,
    ) {
        let len = out.len();
        assert!(len & (self.element_size - 1) == 0, "{len} bytes are not whole elements");
        assert!(local.len() == len && incoming.len() == len, "lengths differ from {len}");
        let also = second(also, len);
        let run = if last { self.last } else { self.step };
        // SAFETY: the views vouch for `len` bytes each, which are whole elements, and for
        // coinciding exactly or not at all; `of` took the kernel of a level that this CPU has.
        unsafe { run(out.ptr(), also, local.ptr(), incoming.ptr(), len, self.world) };
    }
}

/// Where the second output is, or null.
#[inline]
fn second(also: Option<Dst<'_>>, len: usize) -> *mut u8 {
    also.map_or(null_mut(), |mut also| {
        assert!(also.len() == len, "lengths differ from {len}");
        also.ptr()
    })
}

/// `out = from`, and the same to `also`; each may be `from` itself.
///
/// # Panics
/// If the lengths differ: a bug of the caller, caught here.
pub fn copy(mut out: Dst<'_>, also: Option<Dst<'_>>, from: Src<'_>) {
    let len = out.len();
    assert!(from.len() == len, "lengths differ from {len}");
    let (out, also, from) = (out.ptr(), second(also, len), from.ptr());
    if also.is_null() {
        // SAFETY: both views are valid for `len` bytes.
        return unsafe { from.copy_to(out, len) };
    }
    // Piece by piece, so that the second copy reads what the first left in the nearest cache.
    const PIECE: usize = 4096;
    for at in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - at);
        let from = from.wrapping_add(at);
        // SAFETY: the views are valid for `len` bytes, and the piece lies in them.
        unsafe { from.copy_to(out.wrapping_add(at), piece) };
        // SAFETY: as above.
        unsafe { from.copy_to(also.wrapping_add(at), piece) };
    }
}
