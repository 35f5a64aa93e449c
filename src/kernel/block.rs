//! Blocks: a few elements that are read, reduced and written at once. One of them, a cache line
//! that the compiler makes vectors of, or registers that an instruction set converts.
//! May touch: scalar, wide. Law: every block gives the bits of its elements one by one.

use core::marker::PhantomData;

use super::Params;
use super::scalar::Op;
use super::wide::{Element, round_to_upper};
use crate::element::bf16;

/// A few elements. Plain data of exactly those bytes.
pub(super) trait Block: Copy {
    /// What operations see of one element: itself, or an f32 where it is narrower.
    type Lane: Copy;
    /// All lanes.
    type Wide: Copy;
    /// Its element, as a block of one.
    type Single: Block<Lane = Self::Lane>;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn prepare<O: Op<Self::Lane>>(a: Self::Wide, params: &Params) -> Self::Wide;
    fn combine<O: Op<Self::Lane>>(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn finish<O: Op<Self::Lane>>(a: Self::Wide, params: &Params) -> Self::Wide;
}

/// One element.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct One<T>(T);

impl<T: Element> Block for One<T> {
    type Lane = T::Wide;
    type Wide = T::Wide;
    type Single = Self;
    #[inline(always)]
    fn widen(self) -> T::Wide {
        self.0.widen()
    }
    #[inline(always)]
    fn narrow(wide: T::Wide) -> Self {
        Self(T::narrow(wide))
    }
    #[inline(always)]
    fn prepare<O: Op<T::Wide>>(a: T::Wide, params: &Params) -> T::Wide {
        O::prepare(a, params)
    }
    #[inline(always)]
    fn combine<O: Op<T::Wide>>(a: T::Wide, b: T::Wide) -> T::Wide {
        O::combine(a, b)
    }
    #[inline(always)]
    fn finish<O: Op<T::Wide>>(a: T::Wide, params: &Params) -> T::Wide {
        O::finish(a, params)
    }
}

/// The three operations of a block whose wide form is an array, item by item.
macro_rules! item_by_item {
    ($items:ty) => {
        #[inline(always)]
        fn prepare<O: Op<Self::Lane>>(mut a: Self::Wide, params: &Params) -> Self::Wide {
            for a in &mut a {
                *a = <$items>::prepare::<O>(*a, params);
            }
            a
        }
        #[inline(always)]
        fn combine<O: Op<Self::Lane>>(mut a: Self::Wide, b: Self::Wide) -> Self::Wide {
            for (a, b) in a.iter_mut().zip(b) {
                *a = <$items>::combine::<O>(*a, b);
            }
            a
        }
        #[inline(always)]
        fn finish<O: Op<Self::Lane>>(mut a: Self::Wide, params: &Params) -> Self::Wide {
            for a in &mut a {
                *a = <$items>::finish::<O>(*a, params);
            }
            a
        }
    };
}

/// Elements that the compiler makes vectors of.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Many<T, const N: usize>(pub(super) [T; N]);

impl<T: Element, const N: usize> Block for Many<T, N> {
    type Lane = T::Wide;
    type Wide = [T::Wide; N];
    type Single = One<T>;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        self.0.map(T::widen)
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self(wide.map(T::narrow))
    }
    item_by_item!(One<T>);
}

/// A register of f16 that an instruction set converts to f32 and back, rounding to nearest even.
pub(super) trait Widen: Copy {
    type Wide: Block<Lane = f32>;
    /// One f16.
    type Single: Block<Lane = f32>;
    fn widen(self) -> <Self::Wide as Block>::Wide;
    fn narrow(wide: <Self::Wide as Block>::Wide) -> Self;
}

/// Registers of f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Halves<R, const N: usize>([R; N]);

impl<R: Widen, const N: usize> Block for Halves<R, N> {
    type Lane = f32;
    type Wide = [<R::Wide as Block>::Wide; N];
    type Single = R::Single;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        self.0.map(R::widen)
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self(wide.map(R::narrow))
    }
    item_by_item!(R::Wide);
}

/// bfloat16 by pairs: each half of 32 bits becomes an f32 where it lies, so nothing is shuffled.
pub(super) type Pairs = [u32; 16];

const UPPER: u32 = 0xffff_0000;

/// How pairs of f32 become pairs of bfloat16 again.
pub(super) trait Pack: Copy {
    fn pack(lower: [f32; 16], upper: [f32; 16]) -> Pairs;
}

/// By integer arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Pack for Portable {
    #[inline(always)]
    fn pack(lower: [f32; 16], upper: [f32; 16]) -> Pairs {
        let mut pairs = [0; 16];
        for ((pair, lower), upper) in pairs.iter_mut().zip(lower).zip(upper) {
            *pair = (round_to_upper(lower) >> 16) | (round_to_upper(upper) & UPPER);
        }
        pairs
    }
}

/// A cache line of bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bfloats<P>(Pairs, PhantomData<P>);

impl<P: Pack> Block for Bfloats<P> {
    type Lane = f32;
    /// The lower halves and the upper ones.
    type Wide = [[f32; 16]; 2];
    type Single = One<bf16>;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        let lower = self.0.map(|pair| f32::from_bits(pair << 16));
        let upper = self.0.map(|pair| f32::from_bits(pair & UPPER));
        [lower, upper]
    }
    #[inline(always)]
    fn narrow([lower, upper]: Self::Wide) -> Self {
        Self(P::pack(lower, upper), PhantomData)
    }
    item_by_item!(Many<f32, 16>);
}

/// Lines that are all read before one is written: a load that follows a store to an address equal
/// in its lower 12 bits waits for it, on most CPUs.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Group<B>([B; 4]);

impl<B: Block> Block for Group<B> {
    type Lane = B::Lane;
    type Wide = [B::Wide; 4];
    type Single = B::Single;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        self.0.map(B::widen)
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self(wide.map(B::narrow))
    }
    item_by_item!(B);
}
