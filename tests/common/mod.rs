//! Worlds of ranks, and inputs whose reductions are known exactly.
#![allow(dead_code, unused_imports, reason = "not every test uses all of it")]

pub(crate) mod processes;
pub(crate) mod ranks;
pub(crate) mod signals;

use bytemuck::Zeroable;
pub(crate) use ranks::on_ranks;
use ringreduce::{Complex, Element, ReduceOp, bf16, f16};

/// An element type that small whole numbers go into and come out of exactly.
pub(crate) trait Value: Element + PartialEq + std::fmt::Debug + Zeroable {
    fn whole(number: i64) -> Self;
}

macro_rules! values {
    ($($type:ty => $convert:expr),* $(,)?) => {$(
        impl Value for $type {
            fn whole(number: i64) -> Self {
                $convert(number)
            }
        }
    )*};
}

values! {
    i8 => |n| n as Self, u8 => |n| n as Self, i16 => |n| n as Self, u16 => |n| n as Self,
    i32 => |n| n as Self, u32 => |n| n as Self, i64 => |n| n as Self, u64 => |n| n as Self,
    f32 => |n| n as Self, f64 => |n| n as Self,
    f16 => |n| Self::from_f32(n as f32), bf16 => |n| Self::from_f32(n as f32),
    Complex<f32> => |n| Self::new(n as f32, 0.0), Complex<f64> => |n| Self::new(n as f64, 0.0),
}

fn number(op: ReduceOp, n: usize, rank: usize, i: usize) -> i64 {
    match op {
        // Every partial sum stays below 128, exact in all types.
        ReduceOp::Sum => ((rank + i) % 3 + i % 5) as i64,
        ReduceOp::Avg => (i % 7) as i64 + if rank == i % n { n as i64 } else { 0 },
        ReduceOp::Prod => 1 + i64::from((rank + i).is_multiple_of(4)),
        ReduceOp::Min | ReduceOp::Max => ((rank * 7 + i * 3) % 13) as i64,
        // Most bits of the ranks are alike, or the result would be the same without one of them.
        ReduceOp::BitAnd => 127 - i64::from((rank + i).is_multiple_of(n)) * (1 << (rank % 7)),
        ReduceOp::BitOr => i64::from((rank + i).is_multiple_of(n)) << (rank % 7),
        ReduceOp::BitXor => ((rank * 31 + i) % 127) as i64,
        ReduceOp::LogicalAnd => ((rank + i) % (n + 1)) as i64,
        ReduceOp::LogicalOr => i64::from((rank + i).is_multiple_of(n + 1)) * 3,
        ReduceOp::LogicalXor => ((rank * 3 + i) % 5 / 2) as i64,
        ReduceOp::MinLoc | ReduceOp::MaxLoc => 0,
    }
}

/// What `rank` of `n` gives at position `i`.
pub(crate) fn input<T: Value>(op: ReduceOp, n: usize, rank: usize, i: usize) -> T {
    T::whole(number(op, n, rank, i))
}

/// What the reduction over all ranks is at position `i`.
pub(crate) fn expected<T: Value>(op: ReduceOp, n: usize, i: usize) -> T {
    prefix(op, n, n, i)
}

/// What the reduction over the first `ranks` of `n` is at position `i`.
pub(crate) fn prefix<T: Value>(op: ReduceOp, n: usize, ranks: usize, i: usize) -> T {
    let all = (0..ranks).map(|rank| number(op, n, rank, i));
    let truths = (0..ranks).map(|rank| number(op, n, rank, i) != 0);
    T::whole(match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => all.min().unwrap_or(0),
        ReduceOp::Max => all.max().unwrap_or(0),
        ReduceOp::Avg => all.sum::<i64>() / n as i64,
        ReduceOp::BitAnd => all.fold(-1, |a, b| a & b),
        ReduceOp::BitOr => all.fold(0, |a, b| a | b),
        ReduceOp::BitXor => all.fold(0, |a, b| a ^ b),
        ReduceOp::LogicalAnd => i64::from(truths.fold(true, |a, b| a & b)),
        ReduceOp::LogicalOr => i64::from(truths.fold(false, |a, b| a | b)),
        ReduceOp::LogicalXor => i64::from(truths.fold(false, |a, b| a ^ b)),
        ReduceOp::MinLoc | ReduceOp::MaxLoc => 0,
    })
}
