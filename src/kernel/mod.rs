//! Reduction on the host, element by element: of two, of many, and what becomes of a contribution
//! that is only copied. Chosen for this CPU once per call; every implementation gives the bits of
//! the scalar one, the oracle (NaN payloads aside). docs/numerics.md says which bits those are.
//! May touch: element, memory. Unsafe: the files of this room only.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod block;
mod convert;
mod copy;
mod level;
mod pass;
mod scalar;
mod select;
mod user;
mod wide;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use crate::element::{DataType, Kind, LARGEST, Order, Reduction};
use crate::memory::{Dst, Src};
pub use convert::convert;
pub use copy::copy;
use copy::{PIECE, pieces, second, settle, stream};
pub use level::Level;
use pass::{Fold, Pair, Run};
use select::Wanted;
pub use user::CFunction;
use user::User;

/// What a reduction goes by, besides its operands.
#[derive(Clone, Copy, Debug)]
struct Params {
    /// The world size, which the average divides by.
    world: u64,
    /// What contributions are multiplied by: the type that they are reduced as, or zeros.
    scalar: [u8; 16],
    user: Option<User>,
}

/// Which turn of a reduction a call of [`Kernel::reduce`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Does it bring the last contribution? Then the average divides.
    pub last: bool,
    /// Which operand is the left one?
    pub order: Order,
    /// Is the local operand this rank's own contribution, and not the result of a turn before?
    /// Then `premul_sum` multiplies it. What comes from a peer was multiplied there.
    pub own: bool,
}

/// The reduction of one data type by one operation, ready to run. What it borrows is a function of
/// the user's.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'f> {
    /// Every turn but the last.
    step: Run,
    /// The one that brings the last contribution.
    last: Run,
    /// Every turn whose operands were multiplied before, where there is multiplying.
    multiplied: Option<Run>,
    /// Does a contribution count as true or false, whatever it is?
    logical: bool,
    params: Params,
    element_size: usize,
    life: PhantomData<&'f ()>,
}

impl Kernel<'static> {
    /// The kernel for `dtype` and a reduction on this CPU; the average divides by `world`. `None`
    /// where that reduction is not defined for the type, or is a function of the user's.
    ///
    /// # Panics
    /// If `world` is 0 or above 2^31.
    #[must_use]
    pub fn select(dtype: DataType, by: impl Into<Reduction>, world: usize) -> Option<Self> {
        Self::of(Level::best(), dtype, by.into(), world)
    }

    /// The kernel of one level, for comparing them; `None` too where this CPU lacks it.
    ///
    /// # Panics
    /// As [`Kernel::select`].
    #[must_use]
    pub fn select_for(
        level: Level,
        dtype: DataType,
        by: impl Into<Reduction>,
        world: usize,
    ) -> Option<Self> {
        level.is_available().then(|| Self::of(level, dtype, by.into(), world))?
    }

    fn of(level: Level, dtype: DataType, by: Reduction, world: usize) -> Option<Self> {
        use crate::element::ReduceOp::{Avg, LogicalAnd, LogicalOr, LogicalXor, Sum};
        assert!((1..=1 << 31).contains(&world), "a world of {world} ranks");
        if !by.is_defined_for(dtype) {
            return None;
        }
        let plain = |op| level.select(dtype, Wanted::Plain(op));
        let mut params = Params { world: world as u64, scalar: [0; 16], user: None };
        let (step, last, multiplied) = match by.kind() {
            Kind::Plain(Avg) => (plain(Sum)?, plain(Avg)?, None),
            Kind::Plain(op) => (plain(op)?, plain(op)?, None),
            Kind::PreMulSum(_, scalar) => {
                params.scalar = wide::widen_bytes(dtype, scalar);
                let run = level.select(dtype, Wanted::PreMulSum)?;
                (run, run, Some(plain(Sum)?))
            }
            Kind::User(..) => return None,
        };
        let element_size = dtype.size();
        let logical = matches!(by.kind(), Kind::Plain(LogicalAnd | LogicalOr | LogicalXor));
        Some(Self { step, last, multiplied, logical, params, element_size, life: PhantomData })
    }
}

impl Kernel<'_> {
    /// `out = local op incoming` in the turn's order, and the same to `also`. All may be the very
    /// same memory or lie apart; no pointer needs to be aligned. An `out` that is best filled past
    /// the cache is apart from all others.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements: a bug of the caller, caught here.
    #[inline]
    pub fn reduce(
        &self,
        turn: Turn,
        mut out: Dst<'_>,
        also: Option<Dst<'_>>,
        local: Src<'_>,
        incoming: Src<'_>,
    ) {
        let len = out.len();
        assert!(local.len() == len && incoming.len() == len, "lengths differ from {len}");
        self.whole(len);
        let also = second(also, len);
        let run = match self.multiplied {
            Some(multiplied) if !turn.own => multiplied,
            _ if turn.last => self.last,
            _ => self.step,
        };
        let (local, incoming) = (local.ptr(), incoming.ptr());
        let streaming = out.is_streaming() && self.params.user.is_none();
        let (out, order, params) = (out.ptr(), turn.order, &self.params);
        let pair = Pair { out, also, local, incoming, len, order, params };
        if streaming {
            // SAFETY: as below.
            return unsafe { reduce_streaming(run, &pair) };
        }
        // SAFETY: the views vouch for `len` bytes each, which are whole elements; `of` took the
        // kernel of a level that this CPU has.
        unsafe { (run.pair)(&pair) };
    }

    /// All `sources`, the contributions of as many ranks, from left to right:
    /// ((s0 op s1) op s2) op ..., to every one of `outs` in one pass. An output may be the very
    /// memory of a source. 16- and 8-bit floats are rounded once, at the end. `last` says that
    /// there are no more contributions: the average then divides.
    ///
    /// # Panics
    /// If there is no source or no output, the lengths differ or are not whole elements: a bug of
    /// the caller, caught here.
    pub fn fold(&self, last: bool, outs: &mut [Dst<'_>], sources: &[Src<'_>]) {
        let len = sources.first().map_or(0, Src::len);
        assert!(sources.iter().all(|source| source.len() == len), "lengths differ from {len}");
        assert!(outs.iter().all(|out| out.len() == len), "lengths differ from {len}");
        assert!(!sources.is_empty() && !outs.is_empty(), "nothing to fold, or nowhere to");
        self.whole(len);
        let run = if last { self.last } else { self.step };
        let streaming = outs.iter().any(Dst::is_streaming);
        let mut beside = MaybeUninit::<Line<FOLD_PIECE>>::uninit();
        let direct = outs.len() == 1 && !streaming;
        let piece =
            if direct { len.max(1) } else { FOLD_PIECE / self.element_size * self.element_size };
        for (at, len) in pieces(len, piece) {
            let near = if outs[0].is_streaming() {
                beside.as_mut_ptr().cast()
            } else {
                outs[0].ptr().wrapping_add(at)
            };
            let fold = Fold { out: near, sources, at, len, params: &self.params };
            // SAFETY: the views vouch for their bytes, which are whole elements; `of` took the
            // kernel of a level that this CPU has.
            unsafe { (run.fold)(&fold) };
            for out in &mut *outs {
                let to = out.ptr().wrapping_add(at);
                if out.is_streaming() {
                    // SAFETY: the piece was just written, and lies in the output.
                    unsafe { stream(to, near, len) };
                } else if to != near {
                    // SAFETY: as above.
                    unsafe { to.copy_from(near, len) };
                }
            }
        }
        if streaming {
            settle();
        }
    }

    /// A contribution that is only copied: `out = from`, and the same to `also`, as it counts in
    /// the reduction: `premul_sum` multiplies it.
    ///
    /// # Panics
    /// If the lengths differ or are not whole elements: a bug of the caller, caught here.
    pub fn contribute(&self, out: Dst<'_>, also: Option<Dst<'_>>, from: Src<'_>) {
        match also {
            also if !self.changes() => copy(out, also, from),
            None => self.fold(false, &mut [out], &[from]),
            Some(also) => self.fold(false, &mut [out, also], &[from]),
        }
    }

    /// Does a contribution count as something else than it is, so that it can't just be copied?
    #[must_use]
    pub fn changes(&self) -> bool {
        self.multiplied.is_some() || self.logical
    }

    /// Whole elements?
    #[inline]
    fn whole(&self, len: usize) {
        assert!(len.is_multiple_of(self.element_size), "{len} bytes are not whole elements");
    }
}

/// Bytes that a fold leaves in the nearest cache before they go to several outputs.
const FOLD_PIECE: usize = LARGEST;

/// Bytes that begin a cache line.
#[repr(align(64))]
struct Line<const N: usize>([u8; N]);

/// A reduction whose `out` is filled past the cache, from where its pieces are made: at the second
/// output, or beside. Right where `out` is apart from the others.
///
/// # Safety
/// As [`Run`] says.
unsafe fn reduce_streaming(run: Run, pair: &Pair<'_>) {
    let Pair { out, also, local, incoming, len, .. } = *pair;
    let mut beside = MaybeUninit::<[u8; PIECE]>::uninit();
    for (at, len) in pieces(len, PIECE) {
        let near = also.map_or(beside.as_mut_ptr().cast(), |also| also.wrapping_add(at));
        let (local, incoming) = (local.wrapping_add(at), incoming.wrapping_add(at));
        let piece = Pair { out: near, also: None, local, incoming, len, ..*pair };
        // SAFETY: a piece of what the caller vouches for.
        unsafe { (run.pair)(&piece) };
        // SAFETY: the piece was just written, and that of `out` is as long.
        unsafe { stream(out.wrapping_add(at), near, len) };
    }
    settle();
}
