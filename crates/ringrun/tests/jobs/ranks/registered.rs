//! Registered memory of processes: sums, mappings, and a rank that passes ordinary memory. Stopped
//! ranks are in `stopped_ranks`.

use crate::harness::{all_right, all_up, kill_all};
use crate::job::Job;
use crate::procfs;

#[test]
fn sums_in_registered_memory_are_right() {
    // Over TCP registered memory is like any other.
    for (size, transport) in [(1, "shm"), (2, "shm"), (4, "shm"), (3, "tcp")] {
        for kind in ["alloc", "register"] {
            for count in [0, 5, 100_000] {
                let job = Job::new();
                all_right(job.world(size, transport, &format!("{kind} {count} 25")));
                job.left_nothing();
            }
        }
    }
}

#[test]
fn calls_may_be_on_ordinary_memory_at_one_rank() {
    for (size, odd) in [(2, 0), (4, 2)] {
        for count in [10, 5000, 1 << 20] {
            let job = Job::new();
            all_right(job.world(size, "shm", &format!("half {count} {odd}")));
            job.left_nothing();
        }
    }
}

#[test]
fn a_rank_maps_no_buffers_of_its_peers_before_a_call_needs_them() {
    let job = Job::new();
    let mut ranks = job.world(3, "shm", "alloc 1000 1000000000");
    all_up(&mut ranks);
    for rank in &ranks {
        // Each of two peers has two links; all ranks share a region, and each has a page and a
        // status entry; and the rank has a buffer.
        assert_eq!(procfs::shared_pieces(rank.pid()), 4 + 1 + 2 * 3 + 1);
        let procfs::Sockets { listening, tcp, .. } = procfs::sockets(rank.pid());
        assert_eq!((listening, tcp), (0, 0));
    }
    kill_all(ranks);
    job.left_nothing();
}
