//! Blocks: the unit of the reduction loops. A block is one element, a cache line of elements that
//! the compiler vectorises, or registers that an instruction set converts.
//! Law: a block's result has the bits of its elements reduced one by one.

use core::marker::PhantomData;

use super::Params;
use super::scalar::Op;
use super::wide::{KernelElement, round_to_upper};
use crate::element::bf16;

/// A few elements, as plain data of exactly those bytes.
pub(super) trait Block: Copy {
    /// One element as operations see it: the type itself, or f32 for a narrower float.
    type Lane: Copy;
    /// The whole block as operations see it.
    type Wide: Copy;
    /// The block of one such element.
    type Single: Block<Lane = Self::Lane>;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn prepare<O: Op<Self::Lane>>(a: Self::Wide, params: &Params) -> Self::Wide;
    fn combine<O: Op<Self::Lane>>(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn finish<O: Op<Self::Lane>>(a: Self::Wide, params: &Params) -> Self::Wide;
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct One<T>(T);

impl<T: KernelElement> Block for One<T> {
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

/// Maps an array item by item, by a plain loop: the standard library's `map` is not compiled for
/// the instruction set and not always inlined.
macro_rules! each {
    ($items:expr, $n:expr, $become:path) => {{
        let items = &$items;
        let mut all = [$become(items[0]); $n];
        for (one, &item) in all.iter_mut().zip(items) {
            *one = $become(item);
        }
        all
    }};
}

/// The operations of a block whose wide form is an array of smaller blocks.
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
            for (a, &b) in a.iter_mut().zip(&b) {
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
pub(super) use item_by_item;

/// Elements that the compiler vectorises.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Many<T, const N: usize>(pub(super) [T; N]);

impl<T: KernelElement, const N: usize> Block for Many<T, N> {
    type Lane = T::Wide;
    type Wide = [T::Wide; N];
    type Single = One<T>;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        each!(self.0, N, T::widen)
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self(each!(wide, N, T::narrow))
    }
    item_by_item!(One<T>);
}

/// A register of f16, with conversions to f32 and back that round to nearest even.
pub(super) trait Widen: Copy {
    type Wide: Block<Lane = f32>;
    /// One f16.
    type Single: Block<Lane = f32>;
    fn widen(self) -> <Self::Wide as Block>::Wide;
    fn narrow(wide: <Self::Wide as Block>::Wide) -> Self;
}

/// Several registers of f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Halves<R, const N: usize>([R; N]);

impl<R: Widen, const N: usize> Block for Halves<R, N> {
    type Lane = f32;
    type Wide = [<R::Wide as Block>::Wide; N];
    type Single = R::Single;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        each!(self.0, N, R::widen)
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self(each!(wide, N, R::narrow))
    }
    item_by_item!(R::Wide);
}

/// bfloat16 in pairs: each half of a 32-bit word becomes an f32 in place, so no shuffle is needed.
pub(super) type Pairs = [u32; 16];

const UPPER: u32 = 0xffff_0000;

/// Rounds pairs of f32 to pairs of bfloat16.
pub(super) trait Pack: Copy {
    fn pack(lower: [f32; 16], upper: [f32; 16]) -> Pairs;
}

/// Rounding by integer arithmetic, on any CPU.
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
    /// All lower halves, then all upper halves.
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
    #[inline(always)]
    fn prepare<O: Op<f32>>([lower, upper]: Self::Wide, params: &Params) -> Self::Wide {
        [Floats::prepare::<O>(lower, params), Floats::prepare::<O>(upper, params)]
    }
    #[inline(always)]
    fn combine<O: Op<f32>>(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        [Floats::combine::<O>(a[0], b[0]), Floats::combine::<O>(a[1], b[1])]
    }
    #[inline(always)]
    fn finish<O: Op<f32>>([lower, upper]: Self::Wide, params: &Params) -> Self::Wide {
        [Floats::finish::<O>(lower, params), Floats::finish::<O>(upper, params)]
    }
}

/// The lower or upper halves of a line of bfloat16, as f32.
type Floats = Many<f32, 16>;

/// Four blocks that are all read before one is written. On most CPUs a load stalls if it follows a
/// store to an address with the same lower 12 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Group<B>([B; 4]);

impl<B: Block> Block for Group<B> {
    type Lane = B::Lane;
    type Wide = [B::Wide; 4];
    type Single = B::Single;
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        let [a, b, c, d] = self.0;
        [a.widen(), b.widen(), c.widen(), d.widen()]
    }
    #[inline(always)]
    fn narrow([a, b, c, d]: Self::Wide) -> Self {
        Self([B::narrow(a), B::narrow(b), B::narrow(c), B::narrow(d)])
    }
    #[inline(always)]
    fn prepare<O: Op<B::Lane>>([a, b, c, d]: Self::Wide, params: &Params) -> Self::Wide {
        [
            B::prepare::<O>(a, params),
            B::prepare::<O>(b, params),
            B::prepare::<O>(c, params),
            B::prepare::<O>(d, params),
        ]
    }
    #[inline(always)]
    fn combine<O: Op<B::Lane>>(a: Self::Wide, b: Self::Wide) -> Self::Wide {
        let ([a, b, c, d], [e, f, g, h]) = (a, b);
        [B::combine::<O>(a, e), B::combine::<O>(b, f), B::combine::<O>(c, g), B::combine::<O>(d, h)]
    }
    #[inline(always)]
    fn finish<O: Op<B::Lane>>([a, b, c, d]: Self::Wide, params: &Params) -> Self::Wide {
        [
            B::finish::<O>(a, params),
            B::finish::<O>(b, params),
            B::finish::<O>(c, params),
            B::finish::<O>(d, params),
        ]
    }
}
