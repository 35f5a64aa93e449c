//! The scalar kernel, the oracle of the others, equals plain arithmetic: integers in i128, floats
//! as `Float` folds them, 16-bit floats by the conversions of the `half` crate.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel, Level};
use ringreduce::memory::{Buffer, Src};
use ringreduce::schedule::Space;
use ringreduce::{Complex, Element, F8E4M3, F8E5M2, LocF32, LocI64, ReduceOp, Reduction};

use super::floats::Float;
use harness::guarded::random_bytes;

const WORLDS: [usize; 12] =
    [1, 2, 3, 5, 7, 255, 256, 65_535, 65_537, (1 << 24) + 1, (1 << 31) - 1, 1 << 31];

fn scalar<T: Element>(
    op: impl Into<Reduction>,
    world: usize,
    last: bool,
    local: &[T],
    incoming: &[T],
) -> Vec<T> {
    let mut out = vec![T::zeroed(); local.len()];
    let len = size_of_val(local);
    Kernel::select_for(Level::Scalar, T::DTYPE, op, world).unwrap().reduce(
        FoldStep { is_last: last, order: Order::IncomingFirst, is_own: true },
        Buffer::in_place(bytemuck::cast_slice_mut(&mut out)).dst(Space::Output, 0..len),
        None,
        Src::from(bytemuck::cast_slice(local)),
        Src::from(bytemuck::cast_slice(incoming)),
    );
    out
}

/// Every pair of `some` with `others`.
fn pairs<T: Copy>(some: &[T], others: &[T]) -> (Vec<T>, Vec<T>) {
    some.iter().flat_map(|&a| others.iter().map(move |&b| (a, b))).unzip()
}

macro_rules! integers {
    ($($name:ident: $int:ident;)*) => {$(
        #[test]
        fn $name() {
            let mut random = SmallRng::seed_from_u64(1);
            let mut values = vec![0, 1, 2, 3, $int::MIN, $int::MIN + 1, $int::MAX, $int::MAX - 1];
            values.extend((0..250).map(|_| random.random::<$int>()));
            let (a, b) = pairs(&values, &values);
            let check = |op, world: usize, last, by: &dyn Fn(i128, i128) -> i128| {
                let results = scalar(op, world, last, &a, &b);
                for ((&a, &b), result) in a.iter().zip(&b).zip(results) {
                    let expected = by(a.into(), b.into()) as $int;
                    assert_eq!(result, expected, "{a} {op} {b}, world {world}");
                }
            };
            for last in [false, true] {
                check(ReduceOp::Sum, 3, last, &|a, b| a + b);
                check(ReduceOp::Prod, 3, last, &|a, b| a.wrapping_mul(b));
                check(ReduceOp::Min, 3, last, &|a, b| if a < b { a } else { b });
                check(ReduceOp::Max, 3, last, &|a, b| if a < b { b } else { a });
                check(ReduceOp::BitAnd, 3, last, &|a, b| a & b);
                check(ReduceOp::BitOr, 3, last, &|a, b| a | b);
                check(ReduceOp::BitXor, 3, last, &|a, b| a ^ b);
                check(ReduceOp::LogicalAnd, 3, last, &|a, b| (a != 0 && b != 0).into());
                check(ReduceOp::LogicalOr, 3, last, &|a, b| (a != 0 || b != 0).into());
                check(ReduceOp::LogicalXor, 3, last, &|a, b| ((a != 0) != (b != 0)).into());
            }
            for world in WORLDS {
                check(ReduceOp::Avg, world, false, &|a, b| a + b);
                check(ReduceOp::Avg, world, true, &|a, b| {
                    i128::from((a + b) as $int) / world as i128
                });
            }
        }
    )*};
}

integers! {
    i8_is_integer_arithmetic: i8;
    u8_is_integer_arithmetic: u8;
    i16_is_integer_arithmetic: i16;
    u16_is_integer_arithmetic: u16;
    i32_is_integer_arithmetic: i32;
    u32_is_integer_arithmetic: u32;
    i64_is_integer_arithmetic: i64;
    u64_is_integer_arithmetic: u64;
}

/// Sums near multiples of the divisor, whose quotients would round to the wrong side in floats.
#[test]
fn averages_of_integers_truncate_exactly() {
    for world in (1..2000).chain([3 << 20, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31]) {
        for multiple in [1, 2, 3, u32::MAX as usize / world].map(|by| by * world) {
            let sums: Vec<u32> = (0..3).map(|i| (multiple + i).wrapping_sub(1) as u32).collect();
            let results = scalar(ReduceOp::Avg, world, true, &sums, &[0; 3]);
            for (sum, result) in sums.into_iter().zip(results) {
                assert_eq!(u64::from(result), u64::from(sum) / world as u64, "{sum} / {world}");
            }
        }
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// All values of a type of 8 or 16 bits; of larger ones some hundred.
fn values<T: Float>(random: &mut SmallRng) -> Vec<T> {
    match size_of::<T>() {
        1 => (0..=u8::MAX).map(bytemuck::cast).collect(),
        2 => (0..=u16::MAX).map(bytemuck::cast).collect(),
        _ => bytemuck::cast_slice(&random_bytes(200, T::DTYPE, random)).to_vec(),
    }
}

/// Values are paired with special and random ones, and those of 8 bits with all.
fn check_floats<T: Float>() {
    let mut random = SmallRng::seed_from_u64(2);
    let all = values::<T>(&mut random);
    let specials = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, T::LARGEST];
    let mut others: Vec<T> =
        specials.into_iter().chain([-T::LARGEST, T::LEAST]).map(T::of).collect();
    match size_of::<T>() {
        1 => others = all.clone(),
        2 => others.extend((0..8).map(|_| all[random.random_range(0..all.len())])),
        _ => others.extend(&all),
    }
    let (a, b) = pairs(&all, &others);
    let check = |op, world, last, by: &dyn Fn(T, T) -> f64| {
        let results = scalar(op, world, last, &a, &b);
        for ((&a, &b), result) in a.iter().zip(&b).zip(results) {
            let (result, expected) = (result.wide(), by(a, b));
            assert!(same(result, expected), "{a:?} {op} {b:?} is {expected:e}, not {result:e}");
        }
    };
    for (op, last) in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max]
        .into_iter()
        .flat_map(|op| [(op, false), (op, true)])
    {
        check(op, 3, last, &|a, b| T::fold(op, &[a, b], None).wide());
    }
    let truth = |x: T| x.wide() != 0.0;
    let of = |truth: bool| f64::from(u8::from(truth));
    check(ReduceOp::LogicalAnd, 3, true, &|a, b| of(truth(a) && truth(b)));
    check(ReduceOp::LogicalOr, 3, true, &|a, b| of(truth(a) || truth(b)));
    check(ReduceOp::LogicalXor, 3, true, &|a, b| of(truth(a) != truth(b)));
    for world in [1, 2, 3, 5, 7, 1000, 1 << 20] {
        check(ReduceOp::Avg, world, false, &|a, b| T::fold(ReduceOp::Sum, &[a, b], None).wide());
        let average = |a, b| T::fold(ReduceOp::Avg, &[a, b], Some(world)).wide();
        check(ReduceOp::Avg, world, true, &average);
    }
}

harness::each_type! { floats_are_arithmetic_rounded_once: check_floats;
    f64: f64, f32: f32, f16: ringreduce::f16, bf16: ringreduce::bf16,
    f8e4m3: ringreduce::F8E4M3, f8e5m2: ringreduce::F8E5M2,
}

/// A format of 8-bit floats by its definition: numbers from bits, and bits by looking for the
/// nearest number.
struct Format {
    mantissa: u32,
    bias: i32,
    largest: u8,
    first_nan: u8,
}

impl Format {
    fn number(&self, bits: u8) -> f64 {
        let magnitude = bits & 0x7f;
        let (exponent, fraction) =
            (i32::from(magnitude >> self.mantissa), magnitude & ((1 << self.mantissa) - 1));
        let fraction = f64::from(fraction) / f64::from(1 << self.mantissa);
        let value = match magnitude {
            _ if magnitude >= self.first_nan => f64::NAN,
            _ if magnitude > self.largest => f64::INFINITY,
            _ if exponent == 0 => fraction * 2_f64.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2_f64.powi(exponent - self.bias),
        };
        if bits & 0x80 == 0 { value } else { -value }
    }

    /// All finite numbers that are not negative, by their bits.
    fn finite(&self) -> Vec<f64> {
        (0..=self.largest).map(|bits| self.number(bits)).collect()
    }
}

/// The nearest of `finite`, the one with even bits of two at equal distance; NaN for a NaN.
fn nearest(finite: &[f64], x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let above = finite.partition_point(|&number| number < x.abs()).min(finite.len() - 1);
    let below = above.saturating_sub(1);
    let (up, down) = (finite[above] - x.abs(), x.abs() - finite[below]);
    let take_above = up < down || (up == down && above.is_multiple_of(2));
    finite[if take_above { above } else { below }].copysign(x)
}

const E4M3: Format = Format { mantissa: 3, bias: 7, largest: 0x7e, first_nan: 0x7f };
const E5M2: Format = Format { mantissa: 2, bias: 15, largest: 0x7b, first_nan: 0x7d };

macro_rules! small_floats {
    ($($name:ident: $float:ident, $format:ident;)*) => {$(
        /// Every value, and conversions of floats on each side of every tie.
        #[test]
        fn $name() {
            let all: Vec<$float> = (0..=255).map($float::from_bits).collect();
            let finite = $format.finite();
            for &x in &all {
                assert!(same(x.to_f32().into(), $format.number(x.to_bits())), "{x:?}");
                assert_eq!(x.is_nan(), x.to_f32().is_nan(), "{x:?}");
            }
            // Signs, exponents and the upper bits of mantissas: each side of every tie.
            for upper in 0..=0xffff_u32 {
                for lower in [0, 1, 0x8000] {
                    let x = f32::from_bits(upper << 16 | lower);
                    let narrow = $float::from_f32(x).to_f32();
                    assert!(same(narrow.into(), nearest(&finite, x.into())), "{x:e}: {narrow:e}");
                }
            }
        }
    )*};
}

small_floats! {
    f8e4m3_is_converted_to_the_nearest: F8E4M3, E4M3;
    f8e5m2_is_converted_to_the_nearest: F8E5M2, E5M2;
}

#[test]
fn complex_numbers_follow_the_schoolbook_formulas() {
    let parts = [0.0, -0.0, 1.0, -2.5, 1e200, f64::INFINITY, f64::NAN, 0.1];
    let all: Vec<_> =
        parts.into_iter().flat_map(|re| parts.map(|im| Complex::new(re, im))).collect();
    let (a, b) = pairs(&all, &all);
    let check = |op, last, by: &dyn Fn(Complex<f64>, Complex<f64>) -> [f64; 2]| {
        for ((a, b), result) in a.iter().zip(&b).zip(scalar(op, 3, last, &a, &b)) {
            let [re, im] = by(*a, *b);
            assert!(same(result.re, re) && same(result.im, im), "{a} {op} {b}: {result}");
        }
    };
    check(ReduceOp::Sum, true, &|a, b| [a.re + b.re, a.im + b.im]);
    check(ReduceOp::Avg, true, &|a, b| [(a.re + b.re) / 3.0, (a.im + b.im) / 3.0]);
    check(ReduceOp::Prod, true, &|a, b| [a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re]);
}

/// NaN comes first, then the value, then the lower index; operands may be exchanged.
#[test]
fn minloc_and_maxloc_give_the_lowest_index_of_the_best_value() {
    let values = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NAN];
    let all: Vec<_> =
        values.into_iter().flat_map(|value| [0, 1, 9].map(|at| LocF32::new(value, at))).collect();
    let (a, b) = pairs(&all, &all);
    for (op, sign) in [(ReduceOp::MinLoc, 1.0), (ReduceOp::MaxLoc, -1.0)] {
        let (there, back) = (scalar(op, 2, true, &a, &b), scalar(op, 2, true, &b, &a));
        for (((a, b), result), back) in a.iter().zip(&b).zip(there).zip(back) {
            let key = |x: &LocF32| (!x.value.is_nan(), x.value * sign, x.index);
            let (mine, theirs) = (key(a), key(b));
            let equal = mine.1 == theirs.1 || (!mine.0 && !theirs.0);
            let first = match mine.0.cmp(&theirs.0) {
                std::cmp::Ordering::Equal if equal => mine.2 <= theirs.2,
                std::cmp::Ordering::Equal => mine.1 < theirs.1,
                other => other.is_lt(),
            };
            let best = if first { a } else { b };
            let got = (result.index, same(result.value.into(), best.value.into()));
            // Zeros of both signs at one index: either, but always the same.
            let zeros = a.value == 0.0 && b.value == 0.0 && a.index == b.index;
            assert!(zeros || got == (best.index, true), "{a:?} {op} {b:?}: {result:?}");
            assert_eq!(bytemuck::bytes_of(&result), bytemuck::bytes_of(&back));
        }
    }
    let (a, b) = (LocI64::new(i64::MIN, 3), LocI64::new(i64::MIN, 2));
    assert_eq!(scalar(ReduceOp::MinLoc, 2, true, &[a], &[b]), [b]);
    assert_eq!(scalar(ReduceOp::MaxLoc, 2, true, &[a], &[b]), [b]);
}
