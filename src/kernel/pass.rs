//! The reduction loops, written once and compiled for each instruction set: whole blocks, then
//! single elements. Law: any alignment is allowed, and an output may be the very memory of an
//! input.

use core::ops::Range;
use core::sync::atomic::{Ordering, compiler_fence};

use super::Params;
use super::block::{Block, Group};
use super::scalar::Op;
use crate::element::Order;
use crate::memory::Src;

/// Operands of a reduction of two. The local one is prepared here (`Op::prepare`), the incoming one
/// was prepared at the rank that sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) out: *mut u8,
    /// The second output, if any.
    pub(super) second: Option<*mut u8>,
    pub(super) local: *const u8,
    pub(super) incoming: *const u8,
    /// Length of each in bytes.
    pub(super) len: usize,
    /// The order of the operands. It matters to the user's operations only; all others give the
    /// same bits in either order.
    pub(super) order: Order,
    pub(super) params: &'a Params,
}

/// Operands of a reduction of many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold<'a> {
    pub(super) out: *mut u8,
    /// One or more, from left to right.
    pub(super) sources: &'a [Src<'a>],
    /// The offset in each source.
    pub(super) at: usize,
    /// Length in bytes.
    pub(super) len: usize,
    pub(super) params: &'a Params,
}

/// A kernel, compiled for one instruction set, type and operation. Blocks are read and written by
/// pointer, one after the other. So the result is right if each output coincides with an input or
/// another output exactly, or not at all; other overlaps give a meaningless result and no undefined
/// behaviour.
///
/// # Safety
/// For both: the pointers are valid for `len` bytes (the sources for `at + len`), which are whole
/// elements; the CPU has the kernel's instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) pair: unsafe fn(&Pair<'_>),
    pub(super) fold: unsafe fn(&Fold<'_>),
}

/// A pass over all bytes of its operands.
trait Pass: Copy {
    fn len(&self) -> usize;
    /// Reduces the bytes of `range`, which are whole blocks.
    ///
    /// # Safety
    /// As [`Run`] says.
    unsafe fn pass<B: Block, O: Op<B::Lane>>(self, range: Range<usize>);
}

/// Runs a pass over groups of blocks, then blocks, then single elements.
///
/// # Safety
/// As [`Run`] says.
#[inline(always)]
unsafe fn run_pass<B: Block, O: Op<B::Lane>>(pass: impl Pass) {
    let len = pass.len();
    let groups = len - len % size_of::<Group<B>>();
    let lines = len - len % size_of::<B>();
    // SAFETY: the caller's promise.
    unsafe { pass.pass::<Group<B>, O>(0..groups) };
    // SAFETY: the caller's promise.
    unsafe { pass.pass::<B, O>(groups..lines) };
    // SAFETY: the caller's promise.
    unsafe { pass.pass::<B::Single, O>(lines..len) };
}

/// The reduction of two.
///
/// # Safety
/// As [`Run`] says.
#[inline(always)]
pub(super) unsafe fn pair<B: Block, O: Op<B::Lane>>(pair: &Pair<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run_pass::<B, O>(*pair) };
}

/// The reduction of many.
///
/// # Safety
/// As [`Run`] says.
#[inline(always)]
pub(super) unsafe fn fold<B: Block, O: Op<B::Lane>>(fold: &Fold<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run_pass::<B, O>(*fold) };
}

impl Pass for Pair<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }
    #[inline(always)]
    unsafe fn pass<B: Block, O: Op<B::Lane>>(self, range: Range<usize>) {
        let Self { out, second, local, incoming, params, .. } = self;
        let mut at = range.start;
        while at < range.end {
            // SAFETY: a whole block lies in range, at any alignment.
            let a = unsafe { local.wrapping_add(at).cast::<B>().read_unaligned() };
            // SAFETY: as above.
            let b = unsafe { incoming.wrapping_add(at).cast::<B>().read_unaligned() };
            let mut a = B::prepare::<O>(a.widen(), params);
            if O::PREPARES {
                // As the peer got it, rounded: both ranks must add the same value.
                a = B::narrow(a).widen();
            }
            let both = B::combine::<O>(a, b.widen());
            let result = B::narrow(B::finish::<O>(both, params));
            // SAFETY: as above; everything that this may overwrite has been read.
            unsafe { out.wrapping_add(at).cast::<B>().write_unaligned(result) };
            if let Some(second) = second {
                // SAFETY: as above.
                unsafe { second.wrapping_add(at).cast::<B>().write_unaligned(result) };
            }
            // Without it, the compiler mixes the elements of several blocks and shuffles them back.
            compiler_fence(Ordering::SeqCst);
            at += size_of::<B>();
        }
    }
}

impl Pass for Fold<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }
    #[inline(always)]
    unsafe fn pass<B: Block, O: Op<B::Lane>>(self, range: Range<usize>) {
        let Self { out, sources, at: start, params, .. } = self;
        let Some((first, rest)) = sources.split_first() else { return };
        let mut at = range.start;
        while at < range.end {
            let block = first.ptr().wrapping_add(start + at).cast::<B>();
            // SAFETY: a whole block lies in range, at any alignment.
            let mut all = B::prepare::<O>(unsafe { block.read_unaligned() }.widen(), params);
            for source in rest {
                let block = source.ptr().wrapping_add(start + at).cast::<B>();
                // SAFETY: as above.
                let one = B::prepare::<O>(unsafe { block.read_unaligned() }.widen(), params);
                all = B::combine::<O>(all, one);
            }
            let result = B::narrow(B::finish::<O>(all, params));
            // SAFETY: as above; everything that this may overwrite has been read.
            unsafe { out.wrapping_add(at).cast::<B>().write_unaligned(result) };
            compiler_fence(Ordering::SeqCst);
            at += size_of::<B>();
        }
    }
}
