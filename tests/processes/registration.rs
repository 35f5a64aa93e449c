//! Processes that register memory and drop it again, many times and each in its own order: what
//! they drop returns to the system, at themselves and at their peers.

use std::fs;
use std::os::unix::fs::MetadataExt;

use harness::processes::{run, this_rank};
use ringreduce::{Algorithm, CallOptions, Communicator, ReduceOp};

/// The number of mappings of this process, and the blocks of its files in memory.
pub(crate) fn held() -> (usize, u64) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let in_memory = |entry: fs::DirEntry| {
        let path = entry.path();
        let is_memory = fs::read_link(&path).ok()?.to_string_lossy().contains("memfd:");
        is_memory.then(|| fs::metadata(&path).unwrap().blocks())
    };
    let files = fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
    (maps, files.filter_map(in_memory).sum())
}

fn sum(comm: &mut Communicator, buf: &mut [u32]) {
    buf.fill(comm.rank() as u32 + 1);
    let n = comm.size() as u32;
    comm.with(CallOptions::new().algorithm(Algorithm::Direct))
        .all_reduce(buf, ReduceOp::Sum)
        .unwrap();
    assert!(buf.iter().all(|&it| it == n * (n + 1) / 2));
}

/// A process: a rank.
pub(crate) fn churns() {
    const COUNT: usize = 20_000;
    let Some(mut comm) = this_rank() else { return };
    let rank = comm.rank();
    let mut kept = comm.alloc::<u32>(COUNT).unwrap();
    let mut before = (0, 0);
    for round in 0..600 {
        let mut own = vec![0_u32; 2 * COUNT];
        let mut guard = comm.register(&mut own).unwrap();
        // Some ranks register and drop far more than others between two calls.
        let others: Vec<_> =
            (0..round * (rank + 1) % 40).map(|_| comm.alloc::<u32>(1000).unwrap()).collect();
        let mut fresh = comm.alloc::<u32>(COUNT + others.len()).unwrap();
        drop(others);
        sum(&mut comm, &mut fresh[..COUNT]);
        sum(&mut comm, &mut kept);
        if round % 3 == rank {
            drop(fresh);
        }
        sum(&mut comm, &mut guard[round % 7..][..COUNT]);
        drop(guard);
        assert!(own[round % 7] > 1);
        if round == 40 {
            comm.barrier().unwrap();
            before = held();
            assert!(before.1 > 0, "a rank has shared memory");
        }
    }
    comm.barrier().unwrap();
    let after = held();
    // A peer keeps a mapping until its next call on registered memory.
    assert!(after.0 <= before.0 + 40 && after.1 <= before.1 + 2000, "{before:?} {after:?}");
}

#[test]
fn what_a_rank_drops_returns_to_the_system() {
    run("registration::churns", 3, "shm");
}
