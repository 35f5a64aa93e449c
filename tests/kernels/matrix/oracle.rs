//! The contributions of ranks and the results that follow: an oracle for every type and operation.
//! Integers are reduced in 128 bits and floats in f64, rank by rank; rounded results must be within
//! the bound of docs/numerics.md, all others are exact.

use std::cmp::Ordering;
use std::fmt::Debug;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Complex, Element, LocF32, LocF64, LocI32, LocI64, ReduceOp, Reduction};

use super::super::floats::Float;

/// The period of a rank's values. A prime number: no slice, chunk or block begins like the one
/// before.
pub(crate) const PERIOD: usize = 1009;

/// A plain operation, or premul_sum by the type's scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Plain(ReduceOp),
    Scaled,
}

impl Op {
    pub(crate) const SUM: Self = Self::Plain(ReduceOp::Sum);

    /// All operations that are defined for a type.
    pub(crate) fn all<T: Value>() -> Vec<Self> {
        let all = ReduceOp::ALL.into_iter().map(Self::Plain).chain([Self::Scaled]);
        all.filter(|op| op.reduction::<T>().is_defined_for(T::DTYPE)).collect()
    }

    pub(crate) fn reduction<T: Value>(self) -> Reduction {
        match self {
            Self::Plain(op) => op.into(),
            Self::Scaled => Reduction::premul_sum(T::scalar()),
        }
    }

    fn is_logical(self) -> bool {
        let logical = [ReduceOp::LogicalAnd, ReduceOp::LogicalOr, ReduceOp::LogicalXor];
        logical.into_iter().any(|op| self == Self::Plain(op))
    }
}

/// The condition that a result must meet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want<T> {
    /// Exact bits; any NaN for a NaN.
    Bits(T),
    /// Real and imaginary part, and the largest error of each.
    Near([f64; 2], f64),
}

impl<T: Value> Want<T> {
    pub(crate) fn holds(&self, got: T) -> bool {
        match *self {
            Self::Bits(want) => {
                let nan = || want.parts()[0].is_nan() && got.parts()[0].is_nan();
                bytemuck::bytes_of(&want) == bytemuck::bytes_of(&got) || nan()
            }
            Self::Near(want, off) => {
                let near = |i: usize| (got.parts()[i] - want[i]).abs() <= off;
                near(0) && near(1)
            }
        }
    }
}

/// The position of a value.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    rank: usize,
    place: usize,
}

impl Spot {
    /// True for most ranks at half of the positions, so that a single other rank decides the
    /// result.
    fn rare(self, random: &mut SmallRng) -> bool {
        random.random_ratio(1, 8) == self.place.is_multiple_of(2)
    }
}

/// An element type with its oracle.
pub(crate) trait Value: Element + Debug {
    fn scalar() -> Self;
    fn parts(self) -> [f64; 2];
    fn random(random: &mut SmallRng, op: Op, spot: Spot) -> Self;
    /// The result of the contributions `all` in a world of `n`.
    fn reduce(op: Op, n: usize, all: &[Self]) -> Want<Self>;

    /// The contributions of each of `n` ranks, for one period.
    fn given(op: Op, n: usize) -> Vec<Vec<Self>> {
        let rank = |rank: usize| {
            let mut random = SmallRng::seed_from_u64(rank as u64);
            (0..PERIOD).map(|place| Self::random(&mut random, op, Spot { rank, place })).collect()
        };
        (0..n).map(rank).collect()
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Value for $int {
            fn scalar() -> Self {
                -77_i8 as Self
            }

            fn parts(self) -> [f64; 2] {
                [self as f64, 0.0]
            }

            fn random(random: &mut SmallRng, op: Op, spot: Spot) -> Self {
                let [a, b, c]: [Self; 3] = random.random();
                match op {
                    Op::Plain(ReduceOp::Prod) => a | 1,
                    Op::Plain(ReduceOp::BitAnd | ReduceOp::BitOr) => {
                        if spot.place.is_multiple_of(2) { a | b | c } else { a & b & c }
                    }
                    op if op.is_logical() && spot.rare(random) => 0,
                    _ => a,
                }
            }

            fn reduce(op: Op, n: usize, all: &[Self]) -> Want<Self> {
                let all = || all.iter().map(|&x| i128::from(x));
                let Op::Plain(op) = op else {
                    let scalar = i128::from(Self::scalar());
                    return Want::Bits(all().sum::<i128>().wrapping_mul(scalar) as Self);
                };
                Want::Bits(match op {
                    ReduceOp::Prod => all().fold(1, i128::wrapping_mul),
                    ReduceOp::Min => all().fold(i128::MAX, i128::min),
                    ReduceOp::Max => all().fold(i128::MIN, i128::max),
                    ReduceOp::Avg => i128::from(all().sum::<i128>() as Self) / n as i128,
                    ReduceOp::BitAnd => all().fold(-1, |a, b| a & b),
                    ReduceOp::BitOr => all().fold(0, |a, b| a | b),
                    ReduceOp::BitXor => all().fold(0, |a, b| a ^ b),
                    ReduceOp::LogicalAnd => all().all(|x| x != 0).into(),
                    ReduceOp::LogicalOr => all().any(|x| x != 0).into(),
                    ReduceOp::LogicalXor => (all().filter(|&x| x != 0).count() % 2) as i128,
                    ReduceOp::Sum | ReduceOp::MinLoc | ReduceOp::MaxLoc => all().sum(),
                    other => panic!("no values for {other}"),
                } as Self)
            }
        }
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

/// The bound of docs/numerics.md for so many roundings, with those of f32 where narrow floats pass
/// through it, and the loss of the oracle itself.
fn off<T: Float>(magnitude: f64, roundings: usize) -> f64 {
    let on_the_way = if T::DTYPE.is_narrow_float() { 2_f64.powi(-24) } else { 0.0 };
    let grown = ((1.0 + T::UNIT) * (1.0 + on_the_way)).powi(roundings as i32) - 1.0;
    magnitude * (grown + roundings as f64 * 2_f64.powi(-52)) + T::LEAST * roundings as f64
}

impl<F: Float> Value for F {
    fn scalar() -> Self {
        Self::of(0.3)
    }

    fn parts(self) -> [f64; 2] {
        [self.wide(), 0.0]
    }

    fn random(random: &mut SmallRng, op: Op, spot: Spot) -> Self {
        let specials = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        let special = random.random_ratio(1, 24).then(|| random.random_range(0..5));
        let sign = if random.random() { 1.0 } else { -1.0 };
        let magnitude = match (op, special) {
            (Op::Plain(ReduceOp::Prod), _) => random.random_range(0.75..1.5),
            (Op::Plain(ReduceOp::Min | ReduceOp::Max), Some(at)) => specials[at],
            (op, _) if op.is_logical() && spot.rare(random) => 0.0,
            (op, Some(4)) if op.is_logical() => f64::NAN,
            _ => random.random_range(0.25..1.0) * 2_f64.powi(random.random_range(-6..3)),
        };
        Self::of(sign * magnitude)
    }

    fn reduce(op: Op, n: usize, all: &[Self]) -> Want<Self> {
        let scale = if op == Op::Scaled { Self::scalar().wide() } else { 1.0 };
        let all = || all.iter().map(|&x| x.wide() * scale);
        let near = |at: f64, magnitude, roundings| {
            Want::Near([at, 0.0], off::<Self>(magnitude, roundings))
        };
        let (sum, hops) = (all().sum::<f64>(), all().count() - 1);
        let magnitude = all().map(f64::abs).sum::<f64>();
        let Op::Plain(op) = op else { return near(sum, magnitude, hops + 1) };
        Want::Bits(Self::of(match op {
            ReduceOp::Sum => return near(sum, magnitude, hops),
            ReduceOp::Avg => return near(sum / n as f64, magnitude / n as f64, hops + 1),
            ReduceOp::Prod => {
                let product = all().product::<f64>();
                return near(product, product.abs(), hops);
            }
            ReduceOp::Min | ReduceOp::Max if all().any(f64::is_nan) => f64::NAN,
            ReduceOp::Min => all().min_by(f64::total_cmp).unwrap(),
            ReduceOp::LogicalAnd => f64::from(all().all(|x| x != 0.0)),
            ReduceOp::LogicalOr => f64::from(all().any(|x| x != 0.0)),
            ReduceOp::LogicalXor => (all().filter(|&x| x != 0.0).count() % 2) as f64,
            _ => all().max_by(f64::total_cmp).unwrap(),
        }))
    }
}

macro_rules! complex {
    ($($float:ty),*) => {$(
        impl Value for Complex<$float> {
            fn scalar() -> Self {
                Self::new(0.3, -0.4)
            }

            fn parts(self) -> [f64; 2] {
                [self.re.into(), self.im.into()]
            }

            fn random(random: &mut SmallRng, op: Op, spot: Spot) -> Self {
                let mut part = || <$float>::random(random, op, spot);
                let (re, im) = (part(), part());
                // Products stay in range.
                Self::new(re, if op == Op::Plain(ReduceOp::Prod) { im / 8.0 } else { im })
            }

            /// A product of complex numbers is off by less than three roundings.
            fn reduce(op: Op, n: usize, all: &[Self]) -> Want<Self> {
                let wide = |x: Self| Complex::<f64>::new(x.re.into(), x.im.into());
                let scalar = if op == Op::Scaled { wide(Self::scalar()) } else { 1.0.into() };
                let all = || all.iter().map(|&x| wide(x) * scalar);
                let hops = all().count() - 1;
                let size = |x: Complex<f64>| x.re.hypot(x.im);
                let (sum, magnitude) = (all().sum::<Complex<f64>>(), all().map(size).sum());
                let (at, magnitude, roundings) = match op {
                    Op::Scaled => (sum, magnitude, hops + 3),
                    Op::Plain(ReduceOp::Prod) => {
                        let product = all().product::<Complex<f64>>();
                        (product, size(product), 3 * hops)
                    }
                    Op::Plain(ReduceOp::Avg) => (sum / n as f64, magnitude / n as f64, hops + 1),
                    Op::Plain(_) => (sum, magnitude, hops),
                };
                Want::Near([at.re, at.im], off::<$float>(magnitude, roundings))
            }
        }
    )*};
}

complex!(f32, f64);

macro_rules! located {
    ($($loc:ident: $value:ty, $index:ty, $special:expr;)*) => {$(
        impl Value for $loc {
            fn scalar() -> Self {
                Self::new(1 as $value, 1)
            }

            fn parts(self) -> [f64; 2] {
                [self.value as f64, self.index as f64]
            }

            /// Ties are many; no two ranks have the same index.
            fn random(random: &mut SmallRng, _: Op, spot: Spot) -> Self {
                let value = match random.random_range(0..24) {
                    0 => $special,
                    other => (other % 4 - 2) as $value,
                };
                Self::new(value, ((spot.rank * 5 + spot.place) % 9) as $index)
            }

            fn reduce(op: Op, _: usize, all: &[Self]) -> Want<Self> {
                let better = |a: &&Self, b: &&Self| {
                    let ([x, i], [y, j]) = (a.parts(), b.parts());
                    let least = x.partial_cmp(&y).unwrap_or(Ordering::Equal);
                    let most = op == Op::Plain(ReduceOp::MaxLoc);
                    let value = if most { least.reverse() } else { least };
                    y.is_nan().cmp(&x.is_nan()).then(value).then(i.total_cmp(&j))
                };
                Want::Bits(*all.iter().min_by(better).unwrap())
            }
        }
    )*};
}

located! {
    LocF32: f32, u32, f32::NAN;
    LocF64: f64, u64, f64::NAN;
    LocI32: i32, u32, -100;
    LocI64: i64, u64, 1 << 40;
}
