//! The oracle of the table: contributions, and the result that the documents promise for them.

use ringreduce::{DataType, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

use super::rows::InForce;

/// Values repeat after so many elements. A prime number.
pub(super) const PERIOD: usize = 61;

pub(super) const DTYPES: [DataType; 4] =
    [DataType::F32, DataType::BF16, DataType::F8E5M2, DataType::I32];

/// A plain operation, or `premul_sum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Plain(ReduceOp),
    Scaled,
}

pub(super) const OPS: [Op; 5] = [
    Op::Plain(ReduceOp::Sum),
    Op::Plain(ReduceOp::Avg),
    Op::Plain(ReduceOp::Prod),
    Op::Plain(ReduceOp::Max),
    Op::Scaled,
];

impl Op {
    pub(super) fn reduction(self, dtype: DataType, is_exact: bool) -> Reduction {
        let factor = factor(dtype, is_exact);
        match (self, dtype) {
            (Self::Plain(op), _) => op.into(),
            (Self::Scaled, DataType::I32) => Reduction::premul_sum(factor as i32),
            (Self::Scaled, DataType::F32) => Reduction::premul_sum(factor),
            (Self::Scaled, DataType::BF16) => Reduction::premul_sum(bf16::from_f32(factor)),
            (Self::Scaled, _) => Reduction::premul_sum(F8E5M2::from_f32(factor)),
        }
    }
}

/// The factor of `premul_sum`, as the type has it.
fn factor(dtype: DataType, is_exact: bool) -> f32 {
    match (dtype, is_exact) {
        (DataType::I32, _) => 3.0,
        (_, true) => 0.5,
        (_, false) => rounded(dtype, 0.3),
    }
}

/// A number as the type has it.
pub(super) fn rounded(dtype: DataType, x: f32) -> f32 {
    match dtype {
        DataType::F16 => f16::from_f32(x).to_f32(),
        DataType::BF16 => bf16::from_f32(x).to_f32(),
        DataType::F8E4M3 => F8E4M3::from_f32(x).to_f32(),
        DataType::F8E5M2 => F8E5M2::from_f32(x).to_f32(),
        _ => x,
    }
}

/// The bytes of a number that the type has.
pub(super) fn bytes(dtype: DataType, x: f32) -> Vec<u8> {
    match dtype {
        DataType::I32 => (x as i32).to_ne_bytes().to_vec(),
        DataType::F32 => x.to_ne_bytes().to_vec(),
        DataType::BF16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
        _ => vec![F8E5M2::from_f32(x).to_bits()],
    }
}

fn number(dtype: DataType, bytes: &[u8]) -> f64 {
    match dtype {
        DataType::I32 => i32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DataType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DataType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32().into(),
        _ => F8E5M2::from_bits(bytes[0]).to_f32().into(),
    }
}

/// The condition that the bytes of an element must meet.
#[derive(Clone, Debug)]
pub(super) enum Want {
    Bits(Vec<u8>),
    /// A number, and the largest error.
    Near(f64, f64),
}

impl Want {
    pub(super) fn holds(&self, dtype: DataType, got: &[u8]) -> bool {
        match self {
            Self::Bits(want) => want == got,
            Self::Near(want, off) => (number(dtype, got) - want).abs() <= *off,
        }
    }
}

/// Contributions to a reduction, and the promise about its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) dtype: DataType,
    pub(super) op: Op,
    pub(super) ranks: usize,
    pub(super) in_force: InForce,
}

impl Sums {
    /// True if sums of the contributions are exact in f32, in any order. The contributions of
    /// deterministic calls have sums that depend on the order.
    pub(super) fn is_exact(&self) -> bool {
        !self.in_force.deterministic || self.dtype == DataType::I32
    }

    /// The contribution of `rank` at a place.
    pub(super) fn value(&self, rank: usize, place: usize) -> f32 {
        let mut hash = ((rank * PERIOD + place) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let (sign, digits) = (if hash & 1 == 0 { 1.0 } else { -1.0 }, (hash >> 8 & 0xff) as f32);
        let x = match (self.dtype, self.op) {
            (DataType::I32, _) => digits - 100.0,
            (_, Op::Plain(ReduceOp::Prod)) => [0.5, 1.0, 2.0, 1.0][digits as usize % 4],
            _ if !self.is_exact() => {
                let power = 2_f32.powi((hash >> 20 & 15) as i32 - 8);
                (1.0 + digits / 256.0 + (hash >> 40 & 0xfff) as f32 / (1 << 20) as f32) * power
            }
            (DataType::F8E5M2, _) => {
                (1.0 + digits % 4.0 / 4.0) * [0.5, 1.0, 2.0][digits as usize % 3]
            }
            (DataType::F32, _) => digits + (hash >> 40 & 0xff) as f32 / 256.0,
            _ => digits / 16.0,
        };
        rounded(self.dtype, sign * x)
    }

    /// The result of the first `ranks` contributions at a place.
    pub(super) fn want(&self, ranks: usize, place: usize) -> Want {
        let Self { dtype, op, in_force, .. } = *self;
        let all: Vec<_> = (0..ranks).map(|rank| self.value(rank, place)).collect();
        if dtype == DataType::I32 {
            return Want::Bits(self.integers(&all).to_ne_bytes().to_vec());
        }
        let factor = if op == Op::Scaled { factor(dtype, self.is_exact()) } else { 1.0 };
        let all: Vec<_> = all.into_iter().map(|x| x * factor).collect();
        let is_product = op == Op::Plain(ReduceOp::Prod);
        let wire = in_force.wire.filter(|_| dtype == DataType::F32 && !is_product);
        if let Some(wire) = wire.filter(|_| self.ranks > 1) {
            return self.on_wire(wire, &all);
        }
        let is_once = self.ranks == 1 || ranks == 1 || in_force.deterministic || in_force.wide;
        if dtype == DataType::F32 || is_once || op == Op::Plain(ReduceOp::Max) {
            let all = all.iter().copied();
            return Want::Bits(bytes(
                dtype,
                self.average(all.reduce(|a, b| self.pair(a, b)).unwrap()),
            ));
        }
        self.near(dtype, &all)
    }

    /// Contributions that are rounded to `wire` and, if the order is promised, added in it one by
    /// one, with a rounding after each addition.
    fn on_wire(&self, wire: DataType, all: &[f32]) -> Want {
        let all: Vec<_> = all.iter().map(|&x| rounded(wire, x)).collect();
        let is_largest = self.op == Op::Plain(ReduceOp::Max);
        if !self.in_force.deterministic && !is_largest && all.len() > 1 {
            return self.near(wire, &all);
        }
        let last = all.len() - 1;
        let step = |sum: f32, (number, &x): (usize, &f32)| {
            let both = self.pair(sum, x);
            rounded(wire, if number == last { self.average(both) } else { both })
        };
        Want::Bits(bytes(self.dtype, all.iter().enumerate().skip(1).fold(all[0], step)))
    }

    fn pair(&self, a: f32, b: f32) -> f32 {
        match self.op {
            Op::Plain(ReduceOp::Prod) => a * b,
            Op::Plain(ReduceOp::Max) => a.max(b),
            _ => a + b,
        }
    }

    fn average(&self, sum: f32) -> f32 {
        if self.op == Op::Plain(ReduceOp::Avg) { sum / self.ranks as f32 } else { sum }
    }

    /// Numbers that are rounded to a type at most once for each rank and once more.
    fn near(&self, dtype: DataType, all: &[f32]) -> Want {
        let (unit, least) = match dtype {
            DataType::F16 => (2_f64.powi(-11), 2_f64.powi(-24)),
            DataType::BF16 => (2_f64.powi(-8), 2_f64.powi(-133)),
            _ => (2_f64.powi(-3), 2_f64.powi(-16)),
        };
        let numbers = || all.iter().map(|&x| f64::from(x));
        let roundings = all.len() as i32 + 2;
        let is_product = self.op == Op::Plain(ReduceOp::Prod);
        let (value, size) = match is_product {
            true => (numbers().product::<f64>(), numbers().product::<f64>().abs()),
            false => (numbers().sum::<f64>(), numbers().map(f64::abs).sum::<f64>()),
        };
        let off = ((1.0 + unit).powi(roundings) - 1.0) * size + f64::from(roundings) * least;
        let divisor = if self.op == Op::Plain(ReduceOp::Avg) { self.ranks as f64 } else { 1.0 };
        Want::Near(value / divisor, off)
    }

    fn integers(&self, all: &[f32]) -> i32 {
        let all = all.iter().map(|&x| x as i32);
        match self.op {
            Op::Plain(ReduceOp::Prod) => all.fold(1, i32::wrapping_mul),
            Op::Plain(ReduceOp::Max) => all.max().unwrap(),
            Op::Plain(ReduceOp::Avg) => all.sum::<i32>() / self.ranks as i32,
            Op::Scaled => all.map(|x| 3 * x).sum(),
            Op::Plain(_) => all.sum(),
        }
    }
}
