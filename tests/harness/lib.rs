//! The tests' shared code: worlds of ranks that are threads or processes, hosts that are network
//! namespaces, and inputs whose reductions are known exactly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "names that say it; nobody else uses this")]

pub mod barrier;
pub mod c_programs;
pub mod cluster;
pub mod guarded;
pub mod hosts;
pub mod live_bytes;
pub mod openmetrics;
pub mod process;
pub mod processes;
pub mod ranks;
pub mod resources;
pub mod sandbox;
pub mod share;
pub mod signals;
mod skip;
mod turns;
#[cfg(feature = "cuda")]
pub mod untracked;
pub mod wan;

use std::path::PathBuf;
use std::process::Command;

use bytemuck::Zeroable;
pub use ranks::on_ranks;
use ringreduce::{Complex, Element, ReduceOp, bf16, f16};
pub use skip::{has_own_driver, pass_on, skip, skip_without_standin};
pub use turns::{Turn, turn};

/// The program that tests start processes of.
const PROGRAM: &str = "test-process";

/// The program of `tests/process.rs`, which cargo builds before it runs a test of this package.
pub fn program() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    // A process of that program may start others.
    if me.file_name().is_some_and(|name| name == PROGRAM) {
        return me;
    }
    let path = me.ancestors().nth(2).unwrap().join(PROGRAM);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// A process that runs the function listed under this name in `tests/process.rs`.
pub fn process(body: &str) -> Command {
    let mut command = Command::new(program());
    command.arg(body);
    command
}

/// Takes away the variables of a launcher that runs these tests, and those of a batch system that
/// would give ringrun the hosts of a job.
pub fn forget_launcher(command: &mut Command) {
    const OWN: [&str; 2] = ["RINGREDUCE_", "SLURM_"];
    const HOST_FILES: [&str; 3] =
        ["OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];
    for (name, _) in std::env::vars_os() {
        let is_own = |own: &&str| name.as_encoded_bytes().starts_with(own.as_bytes());
        if OWN.iter().any(is_own) || HOST_FILES.iter().any(|file| name == *file) {
            command.env_remove(name);
        }
    }
}

/// Runs the test of this name once more in a process that has no other tests; true there.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = Command::new(std::env::current_exe().unwrap());
    let output = process.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let has_run = String::from_utf8_lossy(&output.stdout).contains(" 1 passed;");
    assert!(output.status.success() && has_run, "{test}: {output:?}");
    false
}

/// An element type that holds small whole numbers exactly.
pub trait Value: Element + PartialEq + std::fmt::Debug + Zeroable {
    /// The value of this integer.
    fn from_integer(number: i64) -> Self;
}

macro_rules! values {
    ($($type:ty => $convert:expr),* $(,)?) => {$(
        impl Value for $type {
            fn from_integer(number: i64) -> Self {
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
        // The ranks share most bits, or the result would be the same without one of them.
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

/// The contribution of `rank` of `n` ranks at position `i`.
pub fn input<T: Value>(op: ReduceOp, n: usize, rank: usize, i: usize) -> T {
    T::from_integer(number(op, n, rank, i))
}

/// The reduction over all `n` ranks at position `i`.
pub fn expected<T: Value>(op: ReduceOp, n: usize, i: usize) -> T {
    let all = (0..n).map(|rank| number(op, n, rank, i));
    let truths = (0..n).map(|rank| number(op, n, rank, i) != 0);
    T::from_integer(match op {
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

/// Passes all element types and their names to the macro in brackets, behind other tokens.
#[macro_export]
macro_rules! for_each_type {
    ([$($macro:tt)*] $($tokens:tt)*) => {
        $($macro)*! { $($tokens)*
            i8: i8, u8: u8, i16: i16, u16: u16, i32: i32, u32: u32, i64: i64, u64: u64,
            f16: ringreduce::f16, bf16: ringreduce::bf16, f32: f32, f64: f64,
            f8e4m3: ringreduce::F8E4M3, f8e5m2: ringreduce::F8E5M2,
            c64: ringreduce::Complex<f32>, c128: ringreduce::Complex<f64>,
            loc_f32: ringreduce::LocF32, loc_f64: ringreduce::LocF64,
            loc_i32: ringreduce::LocI32, loc_i64: ringreduce::LocI64,
        }
    };
}

/// Makes a module of tests, one for each element type and named after it; each calls the generic
/// function `$check` of the surrounding module.
#[macro_export]
macro_rules! each_type {
    ($module:ident: $check:ident) => {
        $crate::for_each_type! { [$crate::each_type] $module: $check; }
    };
    ($module:ident: $check:ident; $($name:ident: $type:ty),* $(,)?) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    super::$check::<$type>();
                }
            )*
        }
    };
}
