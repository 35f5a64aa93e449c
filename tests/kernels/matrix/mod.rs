//! Every call, over links between threads and over shared memory between processes, compared with
//! an oracle: every collective x algorithm that makes it, or the library's choice x type x
//! operation x form (in place, apart, uneven blocks) x root x world of 1 to 9 x lengths 0, 1, n-1,
//! n, n+1, 1000 and 65,537. Collectives that only copy know types by their size, and are walked for
//! one operation. Calls of 65,537 elements (over all blocks, if there are blocks) have one root.
//! The hierarchical algorithm needs several hosts: `laws::executor` walks it. A share of the tests
//! has every algorithm for every eighth type of a world, the library's choice for every second type
//! of a world of threads, and 65,537 elements for every third operation.

pub(crate) mod all_pairs;
pub(crate) mod chosen;
pub(crate) mod oracle;
pub(crate) mod table;
pub(crate) mod uneven;
pub(crate) mod user_functions;
pub(crate) mod verbs;

use harness::processes::{run, this_rank};
use harness::{on_ranks, share, turn};
use ringreduce::{Communicator, Complex, Element, F8E4M3, F8E5M2, bf16, f16};
use ringreduce::{LocF32, LocF64, LocI32, LocI64};
use table::{LONG, Walk, complete, counts};

/// Added to the number of a world of processes.
const PROCESSES: u64 = 2;
/// A share has one type in so many.
const TYPES: u64 = 12;
/// A share has one type in so many by the library's choice of algorithm.
const OTHER_TYPES: u64 = 3;

macro_rules! every {
    ($walk:ident, $world:ident, $all:ident: $($type:ty),* $(,)?) => {$(
        let in_share = share::has($world + <$type as Element>::DTYPE as u64, TYPES);
        let others = $all && share::has($world + <$type as Element>::DTYPE as u64, OTHER_TYPES);
        if in_share || others {
            $walk.every::<$type>(in_share);
        }
    )*};
}

/// One rank's calls. Worlds of different numbers have different types in a share; `all` says
/// whether the other types go by the library's choice of algorithm.
fn walk(comm: &mut Communicator, number: u64, all: bool) {
    let n = comm.size();
    let mut walk = Walk::new(comm);
    walk.refusals();
    every! {
        walk, number, all: i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3,
        F8E5M2, Complex<f32>, Complex<f64>, LocF32, LocF64, LocI32, LocI64,
    }
    complete(&walk.walked(), n);
    user_functions::walk(comm, &counts(n));
    user_functions::walk(comm, &[LONG / n]);
}

macro_rules! worlds {
    ($($threads:ident, $processes:ident: $n:literal;)*) => {$(
        #[test]
        fn $threads() {
            if !share::makes_test(2) {
                return;
            }
            let _turn = turn();
            on_ranks($n, |comm| walk(comm, $n, true));
        }

        #[test]
        fn $processes() {
            if !share::makes_test(2) {
                return;
            }
            let _turn = turn();
            run("matrix::rank", $n, "shm");
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

/// A process: one rank.
pub(crate) fn rank() {
    if let Some(mut comm) = this_rank() {
        let number = comm.size() as u64 + PROCESSES;
        walk(&mut comm, number, false);
    }
}
