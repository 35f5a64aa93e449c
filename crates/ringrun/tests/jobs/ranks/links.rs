//! Links between pairs of ranks, as RINGREDUCE_ALL_PAIRS limits them. A preferred algorithm does
//! not matter to calls without algorithms.

use crate::harness::{PATIENCE, all_end};
use crate::job::Job;

/// Rank r sends to rank r+3 of six, which have links only if all pairs have.
#[test]
fn all_pairs_have_links_up_to_the_limit() {
    for transport in ["shm", "tcp"] {
        for (most, right) in [("2", false), ("5", false), ("6", true), ("1048576", true)] {
            let job = Job::new();
            let ranks = job.world_with(6, transport, "messages 3", |command| {
                command.env("RINGREDUCE_ALL_PAIRS", most).env("RINGREDUCE_ALGO", "two_shot");
            });
            for rank in all_end(ranks, PATIENCE) {
                let ended = (rank.code == 0, rank.out.contains("right"));
                assert_eq!(ended, (right, right), "{rank:?}");
                let limit = format!("worlds of up to {most} ranks have links between all pairs");
                assert!(right || rank.err.contains(&limit), "{rank:?}");
            }
            job.left_nothing();
        }
    }
}
