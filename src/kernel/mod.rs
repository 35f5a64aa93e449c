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

use core::mem::MaybeUninit;
use std::sync::LazyLock;

use crate::element::{DataType, ReduceOp};
use crate::memory::{Dst, Src};
use generic::{Operands, Run};

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
    /// very same memory, `incoming` is apart from all; no pointer needs to be aligned. An `out`
    /// that is best filled past the cache is apart from all others too.
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
        let (local, incoming) = (local.ptr(), incoming.ptr());
        let streaming = out.is_streaming();
        let operands = Operands { out: out.ptr(), also, local, incoming, len, world: self.world };
        if streaming {
            // SAFETY: as below.
            return unsafe { reduce_streaming(run, &operands) };
        }
        // SAFETY: the views vouch for `len` bytes each, which are whole elements, and for
        // coinciding exactly or not at all; `of` took the kernel of a level that this CPU has.
        unsafe { run(&operands) };
    }
}

/// Where the second output is, if there is one.
#[inline]
fn second(also: Option<Dst<'_>>, len: usize) -> Option<*mut u8> {
    also.map(|mut also| {
        assert!(also.len() == len, "lengths differ from {len}");
        also.ptr()
    })
}

/// Pieces that stay in the nearest cache between two passes over them; whole elements of any type.
const PIECE: usize = 512;

/// The offsets and lengths of the pieces of `len` bytes.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(PIECE).map(move |at| (at, PIECE.min(len - at)))
}

/// A reduction whose `out` is filled past the cache, from where its pieces are made: at the second
/// output, or beside.
///
/// # Safety
/// As [`Run`] says; and `out` is apart from the others.
unsafe fn reduce_streaming(run: Run, operands: &Operands) {
    let Operands { out, also, local, incoming, len, world } = *operands;
    let mut beside = MaybeUninit::<[u8; PIECE]>::uninit();
    for (at, len) in pieces(len) {
        let near = also.map_or(beside.as_mut_ptr().cast(), |also| also.wrapping_add(at));
        let (local, incoming) = (local.wrapping_add(at), incoming.wrapping_add(at));
        let piece = Operands { out: near, also: None, local, incoming, len, world };
        // SAFETY: a piece of what the caller vouches for.
        unsafe { run(&piece) };
        // SAFETY: the piece was just written, and `out` is apart from it.
        unsafe { stream(out.wrapping_add(at), near, len) };
    }
    settle();
}

/// `out = from`, and the same to `also`; each may be `from` itself, but not an `out` that is best
/// filled past the cache.
///
/// # Panics
/// If the lengths differ: a bug of the caller, caught here.
pub fn copy(mut out: Dst<'_>, also: Option<Dst<'_>>, from: Src<'_>) {
    let len = out.len();
    assert!(from.len() == len, "lengths differ from {len}");
    let streaming = out.is_streaming();
    let (out, also, from) = (out.ptr(), second(also, len), from.ptr());
    if also.is_none() && !streaming {
        // SAFETY: both views are valid for `len` bytes.
        return unsafe { from.copy_to(out, len) };
    }
    // Piece by piece, so that the second pass reads what the first left in the nearest cache.
    for (at, len) in pieces(len) {
        let (from, out) = (from.wrapping_add(at), out.wrapping_add(at));
        if let Some(also) = also {
            // SAFETY: the views are valid for all pieces.
            unsafe { from.copy_to(also.wrapping_add(at), len) };
        }
        if streaming {
            // SAFETY: as above, and `out` is apart from the others.
            unsafe { stream(out, from, len) };
        } else {
            // SAFETY: as above.
            unsafe { from.copy_to(out, len) };
        }
    }
    if streaming {
        settle();
    }
}

/// `out = from` past the caches, where the CPU can.
///
/// # Safety
/// Both are valid for `len` bytes.
unsafe fn stream(out: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86_64::stream::copy(out, from, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        out.copy_from(from, len);
    }
}

/// Orders what was streamed before everything that follows: a flag is seen after the bytes.
fn settle() {
    #[cfg(target_arch = "x86_64")]
    x86_64::stream::settle();
}
