//! What tests share: worlds of ranks that are threads or processes, hosts that are network
//! namespaces, and inputs whose reductions are known exactly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "names that say it; nobody else uses this")]

pub mod guarded;
pub mod hosts;
pub mod left;
pub mod process;
pub mod processes;
pub mod ranks;
pub mod share;
pub mod signals;
mod skips;

use std::path::PathBuf;
use std::process::Command;

use bytemuck::Zeroable;
pub use ranks::on_ranks;
use ringreduce::{Complex, Element, ReduceOp, bf16, f16};
pub use skips::{pass_on, skip};

/// The program whose processes tests start.
const PROGRAM: &str = "test-process";

/// The program of `tests/process.rs`, which cargo builds before it runs a test of this package.
pub fn program() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    // A process of it starts others.
    if me.file_name().is_some_and(|name| name == PROGRAM) {
        return me;
    }
    let path = me.ancestors().nth(2).unwrap().join(PROGRAM);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// A process that does what the table in `tests/process.rs` has under this name.
pub fn process(body: &str) -> Command {
    let mut command = Command::new(program());
    command.arg(body);
    command
}

/// An element type that small whole numbers go into and come out of exactly.
pub trait Value: Element + PartialEq + std::fmt::Debug + Zeroable {
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
        other => panic!("no values for {other}"),
    }
}

/// What `rank` of `n` gives at position `i`.
pub fn input<T: Value>(op: ReduceOp, n: usize, rank: usize, i: usize) -> T {
    T::whole(number(op, n, rank, i))
}

/// What the reduction over all ranks is at position `i`.
pub fn expected<T: Value>(op: ReduceOp, n: usize, i: usize) -> T {
    prefix(op, n, n, i)
}

/// What the reduction over the first `ranks` of `n` is at position `i`.
pub fn prefix<T: Value>(op: ReduceOp, n: usize, ranks: usize, i: usize) -> T {
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
        other => panic!("no values for {other}"),
    })
}
