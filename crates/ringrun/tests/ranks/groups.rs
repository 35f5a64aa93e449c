//! Groups of processes: made, used side by side, and cut short by a death.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{Job, PATIENCE, PROMPT, all_end};

#[test]
fn work_beside_each_other_and_leave_nothing() {
    for transport in ["shm", "tcp"] {
        for size in [1, 2, 5] {
            let job = Job::new();
            let ended = all_end(job.world(size, transport, "groups 5"), PATIENCE);
            for rank in &ended {
                assert!(rank.code == 0 && rank.out.contains("right"), "{rank:?}");
            }
            job.left_nothing();
        }
    }
}

#[test]
fn end_when_one_of_them_does() {
    for (size, victim) in [(2, 1), (4, 0), (4, 2)] {
        for transport in ["shm", "tcp"] {
            let job = Job::new();
            let timeout = Duration::from_secs(10);
            let mut ranks = job.world_with(size, transport, "groups 1000000000", |command| {
                command.env("RINGREDUCE_TIMEOUT", timeout.as_secs().to_string());
            });
            for rank in &mut ranks {
                rank.line("up");
            }
            let gone = ranks.remove(victim);
            gone.signal(Signal::SIGKILL);
            // Who was about to connect waits as long as it was told to.
            for rank in all_end(ranks, timeout + PROMPT) {
                assert_eq!(rank.code, 1, "{rank:?}");
                assert!(rank.err.contains("rank "), "{rank:?}");
            }
            drop(gone);
            job.left_nothing();
        }
    }
}
