//! Reductions on the host, element by element: of two operands, of many, and the preparation of a
//! contribution that is only copied. A kernel is selected for this CPU once per call.
//! Law: every implementation gives the bits of the scalar one (NaN payloads aside), as
//! docs/numerics.md describes them.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod block;
mod convert;
mod copy;
mod level;
mod pass;
mod scalar;
mod scaled;
mod select;
mod user;
mod wide;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use crate::element::{
    BlockFormat, DataType, LARGEST, Order, ReduceOp, Reduction, ReductionKind, Wire,
};
use crate::memory::{Dst, Src};
pub use convert::{CONVERTED, narrow, widen};
pub use copy::copy;
use copy::{PIECE, pieces, second_ptr, stream, streaming_fence};
pub use level::Level;
use pass::{Fold, Pair, Run};
use select::Arithmetic;
pub use user::CFunction;
use user::UserFunction;

/// Parameters of a reduction, besides its operands.
#[derive(Clone, Copy, Debug)]
struct Params {
    /// The world size, which the average divides by.
    world: u64,
    /// The factor of `premul_sum`, in the type in which elements are reduced; zeros otherwise.
    scalar: [u8; 16],
    user: Option<UserFunction>,
}

/// One reduction of a collective's several: its part in the whole fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldStep {
    /// True if it brings the last contribution; an average divides then.
    pub is_last: bool,
    /// Which operand is the left one.
    pub order: Order,
    /// True if the local operand is this rank's own contribution, not a partial result.
    /// `premul_sum` multiplies it then; what comes from a peer has been multiplied there.
    pub is_own: bool,
}

/// The reduction of one data type by one operation. The lifetime is that of a user's function.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'f> {
    /// The loops for all reductions but the last.
    step: Run,
    /// The loops for the reduction that brings the last contribution.
    last: Run,
    /// For `premul_sum`: the loops for operands that have been multiplied.
    multiplied: Option<Run>,
    /// True if a contribution is first turned into a truth value, 0 or 1.
    logical: bool,
    /// True if a fold rounds after each addition, as additions of two operands do.
    rounds_each_step: bool,
    params: Params,
    element_size: usize,
    life: PhantomData<&'f ()>,
}

impl Kernel<'static> {
    /// The kernel for `dtype` and a reduction on this CPU; an average divides by `world`. `None` if
    /// the reduction is not defined for the type, or is a function of the user.
    ///
    /// # Panics
    /// If `world` is 0 or above 2^31.
    #[must_use]
    pub fn select(dtype: DataType, by: impl Into<Reduction>, world: usize) -> Option<Self> {
        Self::of(Level::best(), dtype, by.into(), world)
    }

    /// The kernel for f32 in blocks of this format, as [`Kernel::select`].
    ///
    /// # Panics
    /// As [`Kernel::select`].
    #[must_use]
    pub fn for_blocks(format: BlockFormat, op: ReduceOp, world: usize) -> Option<Self> {
        Self::select(DataType::F32, Reduction::of_blocks(format, op), world)
    }

    /// The kernel of one level, to compare levels; `None` also if this CPU lacks the level.
    ///
    /// # Panics
    /// As [`Kernel::select`].
    #[must_use]
    pub fn select_for(
        level: Level,
        dtype: DataType,
        reduction: impl Into<Reduction>,
        world: usize,
    ) -> Option<Self> {
        level.is_available().then(|| Self::of(level, dtype, reduction.into(), world))?
    }

    fn of(level: Level, dtype: DataType, by: Reduction, world: usize) -> Option<Self> {
        use ReduceOp::{Avg, LogicalAnd, LogicalOr, LogicalXor, Sum};
        assert!((1..=1 << 31).contains(&world), "a world of {world} ranks");
        if !by.is_defined_for(dtype) {
            return None;
        }
        let wire = Wire::of(dtype, Some(by));
        let plain = |op| level.select(wire, Arithmetic::Plain(op));
        let mut params = Params { world: world as u64, scalar: [0; 16], user: None };
        let (step, last, multiplied) = match by.kind() {
            ReductionKind::Plain(Avg) | ReductionKind::Blocks(_, Avg) => {
                (plain(Sum)?, plain(Avg)?, None)
            }
            ReductionKind::Plain(op) | ReductionKind::Blocks(_, op) => {
                let run = plain(op)?;
                (run, run, None)
            }
            ReductionKind::PreMulSum(_, scalar) => {
                params.scalar = wide::widen_bytes(dtype, scalar);
                let run = level.select(wire, Arithmetic::PreMulSum)?;
                (run, run, Some(plain(Sum)?))
            }
            ReductionKind::User(..) => return None,
        };
        let element_size = wire.bytes();
        let logical =
            matches!(by.kind(), ReductionKind::Plain(LogicalAnd | LogicalOr | LogicalXor));
        Some(Self {
            step,
            last,
            multiplied,
            logical,
            rounds_each_step: false,
            params,
            element_size,
            life: PhantomData,
        })
    }
}

impl Kernel<'_> {
    /// This kernel with folds that round after each addition, so that they have the bits of the
    /// same additions made one by one over links.
    #[must_use]
    pub fn rounding_each_step(self) -> Self {
        Self { rounds_each_step: true, ..self }
    }

    /// Computes `out = local op incoming`, the operands in the order of `step`, and stores the same
    /// to `second`. Each memory is either the very same as another or does not overlap it; no
    /// pointer needs to be aligned. A streamed `out` overlaps none.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements: a bug of the caller.
    #[inline]
    pub fn reduce(
        &self,
        step: FoldStep,
        mut out: Dst<'_>,
        second: Option<Dst<'_>>,
        local: Src<'_>,
        incoming: Src<'_>,
    ) {
        let len = out.len();
        assert!(local.len() == len && incoming.len() == len, "lengths differ from {len}");
        self.assert_whole_elements(len);
        let second = second_ptr(second, len);
        let run = match self.multiplied {
            Some(multiplied) if !step.is_own => multiplied,
            _ if step.is_last => self.last,
            _ => self.step,
        };
        let (local, incoming) = (local.ptr(), incoming.ptr());
        let streaming = out.is_streaming() && PIECE.is_multiple_of(self.element_size);
        let (out, order, params) = (out.ptr(), step.order, &self.params);
        let pair = Pair { out, second, local, incoming, len, order, params };
        if streaming {
            // SAFETY: as below.
            return unsafe { reduce_streaming(run, &pair) };
        }
        // SAFETY: the views vouch for `len` bytes each, which are whole elements; `of` took the
        // kernel of a level that this CPU has.
        unsafe { (run.pair)(&pair) };
    }

    /// Folds `sources`, the contributions of as many ranks, from left to right, ((s0 op s1) op s2)
    /// op ..., and stores the result to every output in one pass. An output may be the very memory
    /// of a source. Floats of 16 and 8 bits are rounded once, at the end, unless the kernel rounds
    /// each step. `last` says that no more contributions follow: an average then divides.
    ///
    /// # Panics
    /// If there is no source or no output, or the lengths differ or are not whole elements: a bug
    /// of the caller.
    pub fn fold(&self, last: bool, outs: &mut [Dst<'_>], sources: &[Src<'_>]) {
        let len = sources.first().map_or(0, Src::len);
        assert!(sources.iter().all(|source| source.len() == len), "lengths differ from {len}");
        assert!(outs.iter().all(|out| out.len() == len), "lengths differ from {len}");
        assert!(!sources.is_empty() && !outs.is_empty(), "nothing to fold, or nowhere to");
        self.assert_whole_elements(len);
        let streaming = outs.iter().any(Dst::is_streaming);
        let mut scratch = MaybeUninit::<Line<FOLD_PIECE>>::uninit();
        let in_steps = self.rounds_each_step && sources.len() > 2;
        let direct = outs.len() == 1 && !streaming && !in_steps;
        let piece =
            if direct { len.max(1) } else { FOLD_PIECE / self.element_size * self.element_size };
        for (at, len) in pieces(len, piece) {
            let target = if outs[0].is_streaming() || in_steps {
                scratch.as_mut_ptr().cast()
            } else {
                outs[0].ptr().wrapping_add(at)
            };
            let fold = Fold { out: target, sources, at, len, params: &self.params };
            // SAFETY: the views vouch for their bytes, which are whole elements; `of` took the
            // kernel of a level that this CPU has. The scratch of a fold in steps is no source.
            unsafe { self.fold_piece(last, in_steps, &fold) };
            for out in &mut *outs {
                let to = out.ptr().wrapping_add(at);
                if out.is_streaming() {
                    // SAFETY: the piece was just written, and lies in the output.
                    unsafe { stream(to, target, len) };
                } else if to != target {
                    // SAFETY: as above.
                    unsafe { to.copy_from(target, len) };
                }
            }
        }
        if streaming {
            streaming_fence();
        }
    }

    /// Folds a piece of all sources, at once or two by two: (s0 op s1), then that op s2, and so on.
    ///
    /// # Safety
    /// As [`Run`] says. In steps, the output is no source.
    unsafe fn fold_piece(&self, last: bool, in_steps: bool, fold: &Fold<'_>) {
        let Fold { out, sources, at, len, params } = *fold;
        let run = |is_last| if is_last { self.last.fold } else { self.step.fold };
        if !in_steps {
            // SAFETY: the caller's promise.
            return unsafe { run(last)(fold) };
        }
        for next in 1..sources.len() {
            let source = sources[next].part(at..at + len);
            let sum = match next {
                1 => sources[0].part(at..at + len),
                // SAFETY: the step before has written these bytes.
                _ => unsafe { Src::new(out, len) },
            };
            let pair = Fold { out, sources: &[sum, source], at: 0, len, params };
            // SAFETY: a piece of what the caller vouches for; each block is read before the result
            // is written over it.
            unsafe { run(last && next + 1 == sources.len())(&pair) };
        }
    }

    /// Copies a contribution to `out` and `second` as the reduction counts it: `premul_sum`
    /// multiplies it, logical operations turn it into 0 or 1.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements: a bug of the caller.
    pub fn contribute(&self, out: Dst<'_>, second: Option<Dst<'_>>, from: Src<'_>) {
        match second {
            second if !self.changes_contribution() => copy(out, second, from),
            None => self.fold(false, &mut [out], &[from]),
            Some(second) => self.fold(false, &mut [out, second], &[from]),
        }
    }

    /// True if the reduction changes a contribution, so that a plain copy would be wrong.
    #[must_use]
    pub fn changes_contribution(&self) -> bool {
        self.multiplied.is_some() || self.logical
    }

    #[inline]
    fn assert_whole_elements(&self, len: usize) {
        assert!(len.is_multiple_of(self.element_size), "{len} bytes are not whole elements");
    }
}

/// Bytes of a fold's result that stay in the nearest cache until they are copied to all outputs.
const FOLD_PIECE: usize = LARGEST;

/// Bytes aligned to a cache line.
#[repr(align(64))]
struct Line<const N: usize>([u8; N]);

/// A reduction with a streamed `out`: each piece is made in the second output or in a scratch, then
/// streamed. Correct if `out` overlaps no other memory.
///
/// # Safety
/// As [`Run`] says.
unsafe fn reduce_streaming(run: Run, pair: &Pair<'_>) {
    let Pair { out, second, local, incoming, len, .. } = *pair;
    let mut scratch = MaybeUninit::<[u8; PIECE]>::uninit();
    for (at, len) in pieces(len, PIECE) {
        let target = second.map_or(scratch.as_mut_ptr().cast(), |second| second.wrapping_add(at));
        let (local, incoming) = (local.wrapping_add(at), incoming.wrapping_add(at));
        let piece = Pair { out: target, second: None, local, incoming, len, ..*pair };
        // SAFETY: a piece of what the caller vouches for.
        unsafe { (run.pair)(&piece) };
        // SAFETY: the piece was just written, and that of `out` is as long.
        unsafe { stream(out.wrapping_add(at), target, len) };
    }
    streaming_fence();
}
