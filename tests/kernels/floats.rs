//! Floats of every width: their formats, conversions and folds, by plain arithmetic; and sums of
//! whole worlds of ranks.

use std::fmt::Debug;

use harness::on_ranks;
use ringreduce::{CallOptions, Element, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

pub(crate) trait Float: Element + Debug {
    /// Binary digits of the mantissa, with the implicit one.
    const DIGITS: i32;
    const LARGEST: f64;
    /// The least number above zero.
    const LEAST: f64;
    /// True if sums beyond the largest number are infinite.
    const OVERFLOWS: bool;
    /// Half a unit of the last place, relative to the number.
    const UNIT: f64 = 1.0 / (1_u64 << Self::DIGITS) as f64;

    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    /// Folds numbers from left to right in f32 (in f64 if they are f64) and rounds once. An average
    /// is divided by `n` if there is one.
    fn fold(op: ReduceOp, all: &[Self], n: Option<usize>) -> Self;
    /// The sum of the numbers times `scale`, in the same way.
    fn scaled_sum(scale: Self, all: &[Self]) -> Self;
}

/// A power of two.
const fn power(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

macro_rules! floats {
    ($($float:ty as $mid:ty: $digits:literal, $largest:expr, $least:expr, $overflows:literal,
        |$x:ident| $down:expr, $up:expr;)*) => {$(
        impl Float for $float {
            const DIGITS: i32 = $digits;
            const LARGEST: f64 = $largest;
            const LEAST: f64 = $least;
            const OVERFLOWS: bool = $overflows;

            fn of(x: f64) -> Self {
                let $x = x as $mid;
                $down
            }

            fn wide(self) -> f64 {
                ($up(self) as $mid).into()
            }

            fn fold(op: ReduceOp, all: &[Self], n: Option<usize>) -> Self {
                let step = |a: $mid, b: $mid| {
                    let least = if a.total_cmp(&b).is_le() { [a, b] } else { [b, a] };
                    match op {
                        ReduceOp::Prod => a * b,
                        ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => <$mid>::NAN,
                        ReduceOp::Min => least[0],
                        ReduceOp::Max => least[1],
                        _ => a + b,
                    }
                };
                let $x = all.iter().map(|&x| -> $mid { $up(x) }).reduce(step).unwrap();
                let $x = if op == ReduceOp::Avg { $x / n.unwrap_or(1) as $mid } else { $x };
                $down
            }

            fn scaled_sum(scale: Self, all: &[Self]) -> Self {
                let products = all.iter().map(|&x| -> $mid { $up(x) * $up(scale) });
                let $x = products.reduce(|a, b| a + b).unwrap();
                $down
            }
        }
    )*};
}

floats! {
    f64 as f64: 53, f64::MAX, f64::from_bits(1), true, |x| x, |x: Self| x;
    f32 as f32: 24, f32::MAX as f64, power(-149), true, |x| x, |x: Self| x;
    f16 as f32: 11, 65_504.0, power(-24), true, |x| Self::from_f32(x), Self::to_f32;
    bf16 as f32: 8, 255.0 * power(120), power(-133), true, |x| Self::from_f32(x), Self::to_f32;
    F8E4M3 as f32: 4, 448.0, power(-9), false, |x| Self::from_f32(x), Self::to_f32;
    F8E5M2 as f32: 3, 57_344.0, power(-16), false, |x| Self::from_f32(x), Self::to_f32;
}

/// The all-reduce of `inputs`, one for each rank; none if the options do not allow the call. All
/// ranks must have the same bits.
pub(crate) fn all_reduce<T: Element>(
    inputs: &[Vec<T>],
    by: Reduction,
    options: &CallOptions,
) -> Option<Vec<T>> {
    let all = on_ranks(inputs.len(), |comm| {
        let mut buf = inputs[comm.rank()].clone();
        let done = comm.with(options.clone()).all_reduce(&mut buf, by);
        done.is_ok().then_some(buf)
    });
    let bytes = |it: &Option<Vec<T>>| it.as_deref().map(|it| bytemuck::cast_slice(it).to_vec());
    let first: Option<Vec<u8>> = bytes(&all[0]);
    let (n, dtype) = (all.len(), T::DTYPE);
    assert!(
        all.iter().all(|it| bytes(it) == first),
        "ranks differ: {dtype} {by} n={n} {options:?}"
    );
    all.into_iter().next().unwrap()
}
