//! Groups of processes: made, used side by side, and ended by the death of a rank.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{PROMPT, all_end, all_right, all_up};
use crate::job::Job;

#[test]
fn groups_work_side_by_side_and_leave_nothing() {
    for transport in ["shm", "tcp"] {
        for size in [1, 2, 5] {
            let job = Job::new();
            all_right(job.world(size, transport, "groups 5"));
            job.left_nothing();
        }
    }
}

#[test]
fn groups_end_when_a_rank_is_killed() {
    for (size, victim) in [(2, 1), (4, 0), (4, 2)] {
        for transport in ["shm", "tcp"] {
            let job = Job::new();
            let timeout = Duration::from_secs(10);
            let mut ranks = job.world_with(size, transport, "groups 1000000000", |command| {
                command.env("RINGREDUCE_TIMEOUT", timeout.as_secs().to_string());
            });
            all_up(&mut ranks);
            let killed = ranks.remove(victim);
            killed.signal(Signal::SIGKILL);
            // A rank that was about to connect waits for its timeout.
            for rank in all_end(ranks, timeout + PROMPT) {
                assert_eq!(rank.code, 1, "{rank:?}");
                assert!(rank.err.contains("rank "), "{rank:?}");
            }
            drop(killed);
            job.left_nothing();
        }
    }
}
