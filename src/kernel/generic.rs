//! The loop, once: whole blocks, then single elements. Each instruction set compiles it for itself
//! and brings blocks of its own where the compiler finds no good vectors.
//! May touch: scalar. Law: any alignment, and outputs that are the very memory of an input.

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, compiler_fence};

use super::scalar::{self, Element, Lines, Op, round_to_upper};
use crate::element::{DataType, ReduceOp, bf16};

/// How every kernel is called: out, also (or null), local, incoming, bytes, world size.
///
/// # Safety
/// The pointers are valid for that many bytes, which are whole elements; outputs coincide with
/// each other and with `local` exactly or not at all; the CPU has the kernel's instructions.
pub(super) type Run = unsafe fn(*mut u8, *mut u8, *const u8, *const u8, usize, u64);

/// A few elements that are combined at once. Plain data of exactly those bytes.
pub(super) trait Block: Copy {
    /// Its element, as a block of one.
    type Single: Block;
    fn apply<O: Op>(self, other: Self, world: u64) -> Self;
}

/// An instruction set: its blocks, and the loop compiled for it.
pub(super) trait Isa {
    type Line<T: Lines>: Block;
    type F16: Block;
    type BF16: Block;
    fn run<B: Block, O: Op>() -> Run;
}

/// The kernels of one instruction set.
pub(super) fn select<I: Isa>(dtype: DataType, op: ReduceOp) -> Run {
    match dtype {
        DataType::I8 => of_block::<I, I::Line<i8>>(op),
        DataType::U8 => of_block::<I, I::Line<u8>>(op),
        DataType::I16 => of_block::<I, I::Line<i16>>(op),
        DataType::U16 => of_block::<I, I::Line<u16>>(op),
        DataType::I32 => of_block::<I, I::Line<i32>>(op),
        DataType::U32 => of_block::<I, I::Line<u32>>(op),
        DataType::I64 => of_block::<I, I::Line<i64>>(op),
        DataType::U64 => of_block::<I, I::Line<u64>>(op),
        DataType::F16 => of_block::<I, I::F16>(op),
        DataType::BF16 => select_bf16::<I>(op),
        DataType::F32 => of_block::<I, I::Line<f32>>(op),
        DataType::F64 => of_block::<I, I::Line<f64>>(op),
    }
}

/// The kernels of one instruction set for bfloat16.
pub(super) fn select_bf16<I: Isa>(op: ReduceOp) -> Run {
    of_block::<I, I::BF16>(op)
}

fn of_block<I: Isa, B: Block>(op: ReduceOp) -> Run {
    match op {
        ReduceOp::Sum => I::run::<B, scalar::Sum>(),
        ReduceOp::Prod => I::run::<B, scalar::Prod>(),
        ReduceOp::Min => I::run::<B, scalar::Min>(),
        ReduceOp::Max => I::run::<B, scalar::Max>(),
        ReduceOp::Avg => I::run::<B, scalar::Avg>(),
    }
}

/// One element.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct One<T>(T);

impl<T: Element> Block for One<T> {
    type Single = Self;
    #[inline(always)]
    fn apply<O: Op>(self, other: Self, world: u64) -> Self {
        Self(O::apply(self.0, other.0, world))
    }
}

/// Elements that the compiler makes vectors of.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Many<T, const N: usize>(pub(super) [T; N]);

impl<T: Element, const N: usize> Block for Many<T, N> {
    type Single = One<T>;
    #[inline(always)]
    fn apply<O: Op>(mut self, other: Self, world: u64) -> Self {
        for (a, &b) in self.0.iter_mut().zip(&other.0) {
            *a = O::apply(*a, b, world);
        }
        self
    }
}

/// A register of f16 that an instruction set converts to f32 and back, rounding to nearest even.
pub(super) trait Widen: Copy {
    type Wide: Block;
    /// One f16.
    type Single: Block;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// Registers of f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Halves<R, const N: usize>([R; N]);

impl<R: Widen, const N: usize> Block for Halves<R, N> {
    type Single = R::Single;
    #[inline(always)]
    fn apply<O: Op>(mut self, other: Self, world: u64) -> Self {
        for (a, &b) in self.0.iter_mut().zip(&other.0) {
            *a = R::narrow(a.widen().apply::<O>(b.widen(), world));
        }
        self
    }
}

/// bfloat16 by pairs: each half of 32 bits becomes an f32 where it lies, so nothing is shuffled.
pub(super) type Pairs = Many<u32, 16>;

const UPPER: u32 = 0xffff_0000;

/// How pairs of f32 become pairs of bfloat16 again.
pub(super) trait Pack {
    fn pack(lower: Many<f32, 16>, upper: Many<f32, 16>) -> Pairs;
}

/// By integer arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Pack for Portable {
    #[inline(always)]
    fn pack(lower: Many<f32, 16>, upper: Many<f32, 16>) -> Pairs {
        let mut pairs = [0; 16];
        for ((pair, lower), upper) in pairs.iter_mut().zip(lower.0).zip(upper.0) {
            *pair = (round_to_upper(lower) >> 16) | (round_to_upper(upper) & UPPER);
        }
        Many(pairs)
    }
}

/// A cache line of bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bfloats<P>(Pairs, PhantomData<P>);

impl<P: Pack + Copy> Block for Bfloats<P> {
    type Single = One<bf16>;
    #[inline(always)]
    fn apply<O: Op>(self, other: Self, world: u64) -> Self {
        let lower = |pairs: Pairs| Many(pairs.0.map(|pair| f32::from_bits(pair << 16)));
        let upper = |pairs: Pairs| Many(pairs.0.map(|pair| f32::from_bits(pair & UPPER)));
        let lower = lower(self.0).apply::<O>(lower(other.0), world);
        let upper = upper(self.0).apply::<O>(upper(other.0), world);
        Self(P::pack(lower, upper), PhantomData)
    }
}

/// The whole reduction.
///
/// # Safety
/// As [`Run`] says.
#[inline(always)]
pub(super) unsafe fn reduce<B: Block, O: Op>(
    out: *mut u8,
    also: *mut u8,
    local: *const u8,
    incoming: *const u8,
    len: usize,
    world: u64,
) {
    let also = if also.is_null() { None } else { Some(also) };
    // Two loops each, for the branch on `also` stays outside.
    let done = len - len % size_of::<B>();
    match also {
        None => {
            // SAFETY: the caller's promise.
            unsafe { pass::<B, O>(0..done, out, None, local, incoming, world) };
            // SAFETY: the caller's promise.
            unsafe { pass::<B::Single, O>(done..len, out, None, local, incoming, world) };
        }
        Some(also) => {
            // SAFETY: the caller's promise.
            unsafe { pass::<B, O>(0..done, out, Some(also), local, incoming, world) };
            // SAFETY: the caller's promise.
            unsafe { pass::<B::Single, O>(done..len, out, Some(also), local, incoming, world) };
        }
    }
}

/// The bytes of `range`, whole blocks.
///
/// # Safety
/// As [`Run`] says.
#[inline(always)]
unsafe fn pass<B: Block, O: Op>(
    range: core::ops::Range<usize>,
    out: *mut u8,
    also: Option<*mut u8>,
    local: *const u8,
    incoming: *const u8,
    world: u64,
) {
    let mut at = range.start;
    while at < range.end {
        // SAFETY: a whole block lies in range, at any alignment.
        let a = unsafe { local.wrapping_add(at).cast::<B>().read_unaligned() };
        // SAFETY: as above.
        let b = unsafe { incoming.wrapping_add(at).cast::<B>().read_unaligned() };
        let result = a.apply::<O>(b, world);
        // SAFETY: as above; everything that this may overwrite has been read.
        unsafe { out.wrapping_add(at).cast::<B>().write_unaligned(result) };
        if let Some(also) = also {
            // SAFETY: as above.
            unsafe { also.wrapping_add(at).cast::<B>().write_unaligned(result) };
        }
        // Else the compiler mixes the elements of several blocks, and shuffles them back.
        compiler_fence(Ordering::SeqCst);
        at += size_of::<B>();
    }
}
