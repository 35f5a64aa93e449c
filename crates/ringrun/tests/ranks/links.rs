//! Which ranks have links is what the environment says; which algorithm it prefers is no matter for
//! what has none.

use std::cell::Cell;

use crate::harness::{Job, PATIENCE, all_end};

/// Rank r to rank r+3 of six, which are linked only if all are.
#[test]
fn are_between_all_pairs_of_so_many_ranks() {
    for transport in ["shm", "tcp"] {
        for (most, right) in [("2", false), ("5", false), ("6", true), ("1048576", true)] {
            let job = Job::new();
            let ranks = job.world_with(6, transport, "messages 3", |command| {
                command.env("RINGREDUCE_ALL_PAIRS", most).env("RINGREDUCE_ALGO", "two_shot");
            });
            for rank in all_end(ranks, PATIENCE) {
                assert_eq!(
                    (rank.code == 0, rank.out.contains("right")),
                    (right, right),
                    "{rank:?}"
                );
                let limit = format!("worlds of up to {most} ranks have links between all pairs");
                assert!(right || rank.err.contains(&limit), "{rank:?}");
            }
            job.left_nothing();
        }
    }
}

/// Those that differ are told at the meeting.
#[test]
fn are_agreed_on() {
    let job = Job::new();
    let most = Cell::new(2);
    let ranks = job.world_with(3, "shm", "messages 1", |command| {
        most.set(most.get() + 1);
        command.env("RINGREDUCE_ALL_PAIRS", most.get().to_string());
    });
    for rank in all_end(ranks, PATIENCE) {
        assert_eq!(rank.code, 1, "{rank:?}");
        assert!(rank.err.contains("RINGREDUCE_ALL_PAIRS"), "{rank:?}");
        assert!(rank.err.contains("it must be the same for all ranks"), "{rank:?}");
    }
    job.left_nothing();
}
