//! The scalar kernel, the oracle of the others, equals plain arithmetic done another way: integers
//! in i128, floats in f64, 16-bit floats by the conversions of the `half` crate.
#![allow(missing_docs, clippy::unwrap_used)]

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{Kernel, Level, Turn};
use ringreduce::memory::{Buffer, Src};
use ringreduce::{Element, ReduceOp, bf16, f16};

const WORLDS: [usize; 12] =
    [1, 2, 3, 5, 7, 255, 256, 65_535, 65_537, (1 << 24) + 1, (1 << 31) - 1, 1 << 31];

fn scalar<T: Element>(
    op: ReduceOp,
    world: usize,
    last: bool,
    local: &[T],
    incoming: &[T],
) -> Vec<T> {
    let mut out = vec![T::zeroed(); local.len()];
    let len = size_of_val(local);
    Kernel::select_for(Level::Scalar, T::DTYPE, op, world).unwrap().reduce(
        Turn { last, order: Order::IncomingFirst, own: true },
        Buffer::in_place(bytemuck::cast_slice_mut(&mut out)).dst(0..len),
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

/// Near multiples of the divisor, where a quotient in floats would round to the wrong side.
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

/// The smaller by IEEE 754-2019: NaN wins, and -0 is below +0.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a.total_cmp(&b).is_lt() {
        a
    } else {
        b
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// `narrow` rounds once from f64, where sums, products and quotients of f32 are exact enough.
fn check_floats<T: Element>(
    a: &[T],
    b: &[T],
    widen: impl Fn(T) -> f64,
    sum: impl Fn(T, T) -> f64,
    prod: impl Fn(T, T) -> f64,
    avg: impl Fn(T, T, usize) -> f64,
) {
    let check = |op, world, last, by: &dyn Fn(T, T) -> f64| {
        let results = scalar(op, world, last, a, b);
        for ((&a, &b), result) in a.iter().zip(b).zip(results) {
            let (x, y, result, expected) = (widen(a), widen(b), widen(result), by(a, b));
            assert!(same(result, expected), "{x:e} {op} {y:e} is {expected:e}, not {result:e}");
        }
    };
    for last in [false, true] {
        check(ReduceOp::Sum, 3, last, &sum);
        check(ReduceOp::Prod, 3, last, &prod);
        check(ReduceOp::Min, 3, last, &|a, b| minimum(widen(a), widen(b)));
        check(ReduceOp::Max, 3, last, &|a, b| -minimum(-widen(a), -widen(b)));
    }
    for world in [1, 2, 3, 5, 7, 1000, 1 << 20] {
        check(ReduceOp::Avg, world, false, &sum);
        check(ReduceOp::Avg, world, true, &|a, b| avg(a, b, world));
    }
}

#[test]
fn f32_is_arithmetic_rounded_once() {
    let mut random = SmallRng::seed_from_u64(2);
    let mut values = vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    values.extend([
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x7f_ffff),
    ]);
    values.push(f32::from_bits(0x7f80_0001));
    values.extend((0..100).map(|_| random.random_range(-1.0..1.0f32)));
    values.extend((0..100).map(|_| f32::from_bits(random.random())));
    let (a, b) = pairs(&values, &values);
    check_floats(
        &a,
        &b,
        f64::from,
        |a, b| ((f64::from(a) + f64::from(b)) as f32).into(),
        |a, b| ((f64::from(a) * f64::from(b)) as f32).into(),
        |a, b, world| {
            ((f64::from((f64::from(a) + f64::from(b)) as f32) / world as f64) as f32).into()
        },
    );
}

#[test]
fn f64_is_arithmetic() {
    let mut random = SmallRng::seed_from_u64(3);
    let mut values = vec![0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    values.extend([f64::MAX, f64::MIN, f64::MIN_POSITIVE, f64::from_bits(1)]);
    values.extend((0..100).map(|_| random.random_range(-1.0..1.0)));
    values.extend((0..100).map(|_| f64::from_bits(random.random())));
    let (a, b) = pairs(&values, &values);
    check_floats(&a, &b, |x| x, |a, b| a + b, |a, b| a * b, |a, b, world| (a + b) / world as f64);
}

macro_rules! half_floats {
    ($($name:ident: $half:ident;)*) => {$(
        /// Every value of the type, with special ones and a few others.
        #[test]
        fn $name() {
            let mut random = SmallRng::seed_from_u64(4);
            let all: Vec<$half> = (0..=u16::MAX).map($half::from_bits).collect();
            let (zero, one) = ($half::ZERO, $half::ONE);
            let mut others = vec![zero, -zero, one, -one, $half::INFINITY, $half::NAN, $half::MAX];
            others.extend([$half::from_bits(1), $half::MIN_POSITIVE, $half::EPSILON]);
            others.extend((0..6).map(|_| $half::from_bits(random.random())));
            others.extend((0..2).map(|_| $half::from_f32(random.random_range(-1.0..1.0))));
            let (a, b) = pairs(&all, &others);
            let round = |x: f32| $half::from_f32(x).to_f64();
            check_floats(
                &a,
                &b,
                $half::to_f64,
                |a, b| round(a.to_f32() + b.to_f32()),
                |a, b| round(a.to_f32() * b.to_f32()),
                |a, b, world| round((a.to_f32() + b.to_f32()) / world as f32),
            );
        }
    )*};
}

half_floats! {
    f16_is_f32_rounded_once: f16;
    bf16_is_f32_rounded_once: bf16;
}
