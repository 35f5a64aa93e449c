//! The whole table, over links between threads and over shared memory between processes, against
//! an oracle: every collective x algorithm that makes it x type x operation x form (in place,
//! apart, uneven blocks) x root x world of 1 to 9 x lengths 0, 1, n-1, n, n+1, 1000 and 65,537.
//! What only copies knows types by their size, and is not walked again for every operation; with
//! 65,537 elements (over all blocks, where there are blocks) calls have one root only, in turns.
//! The hierarchical algorithm needs several hosts: `exec` walks it. A share of the tests has every
//! eighth type in each world, and 65,537 elements for every third operation of it.

pub(crate) mod functions;
pub(crate) mod table;
pub(crate) mod uneven;
pub(crate) mod values;
pub(crate) mod verbs;

use harness::processes::{run, this_rank};
use harness::{on_ranks, share};
use ringreduce::{Communicator, Complex, Element, F8E4M3, F8E5M2, bf16, f16};
use ringreduce::{LocF32, LocF64, LocI32, LocI64};
use table::{LONG, Walk, complete, counts};

/// What is added to the number of a world of processes.
const PROCESSES: u64 = 2;
/// One type in so many is of a share.
const TYPES: u64 = 8;

macro_rules! every {
    ($walk:ident, $world:ident: $($type:ty),* $(,)?) => {
        $(if share::has($world + <$type as Element>::DTYPE as u64, TYPES) {
            $walk.every::<$type>();
        })*
    };
}

/// What one rank does. Worlds of different numbers have different types in a share.
fn walk(comm: &mut Communicator, number: u64) {
    let n = comm.size();
    let mut walk = Walk::new(comm);
    walk.refusals();
    every! {
        walk, number: i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3, F8E5M2,
        Complex<f32>, Complex<f64>, LocF32, LocF64, LocI32, LocI64,
    }
    complete(&walk.walked(), n);
    functions::walk(comm, &counts(n));
    functions::walk(comm, &[LONG / n]);
}

macro_rules! worlds {
    ($($threads:ident, $processes:ident: $n:literal;)*) => {$(
        #[test]
        fn $threads() {
            on_ranks($n, |comm| walk(comm, $n));
        }

        #[test]
        fn $processes() {
            run("matrix::body", $n, "shm");
        }
    )*};
}

worlds! {
    threads_1, processes_1: 1;
    threads_2, processes_2: 2;
    threads_3, processes_3: 3;
    threads_4, processes_4: 4;
    threads_5, processes_5: 5;
    threads_6, processes_6: 6;
    threads_7, processes_7: 7;
    threads_8, processes_8: 8;
    threads_9, processes_9: 9;
}

/// Not a test of its own.
pub(crate) fn body() {
    if let Some(mut comm) = this_rank() {
        let number = comm.size() as u64 + PROCESSES;
        walk(&mut comm, number);
    }
}
