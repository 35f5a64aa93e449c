//! Every call by the algorithm that the library chooses: long blocks among threads, and ranks that
//! are processes over shared memory and over TCP.

use harness::processes::{run, this_rank};
use harness::{on_ranks, share, turn};
use ringreduce::bf16;

use super::super::determinism;
use super::table::{LONG, Walk};

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    let mut walk = Walk::new(&mut comm);
    walk.chosen::<f32>(&[0, 1, 1000, LONG]);
    walk.chosen::<u8>(&[300_000]);
    determinism::every_call::<f32>(&mut comm);
    determinism::every_call::<bf16>(&mut comm);
}

#[test]
fn over_shared_memory() {
    run("matrix::chosen::rank", 4, "shm");
}

#[test]
fn over_tcp() {
    run("matrix::chosen::rank", 4, "tcp");
}

/// Each chunk takes several rounds: it is longer than half of a link's slots. A share has every
/// third world.
#[test]
fn long_blocks_among_threads() {
    let _turn = turn();
    for n in (1..=9).filter(|&n| share::has(n, 3)) {
        on_ranks(n as usize, |comm| {
            let mut walk = Walk::new(comm);
            walk.chosen::<u64>(&[LONG]);
            walk.chosen::<f32>(&[LONG]);
            walk.chosen::<u8>(&[LONG]);
        });
    }
}
