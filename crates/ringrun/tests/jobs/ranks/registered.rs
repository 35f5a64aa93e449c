//! Registered memory of processes: sums, mappings, and a rank that passes ordinary memory. Stopped
//! ranks are in `stopped_ranks`.

use super::failure_report::Report;
use crate::harness::{LONG, PROMPT, all_end, all_right, all_up, kill_all};
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
fn short_calls_may_be_on_ordinary_memory_at_one_rank() {
    for (size, odd) in [(2, 0), (4, 2)] {
        let job = Job::new();
        all_right(job.world(size, "shm", &format!("half 10 {odd}")));
        job.left_nothing();
    }
}

#[test]
fn each_rank_maps_every_buffer() {
    let job = Job::new();
    let mut ranks = job.world(3, "shm", "alloc 1000 1000000000");
    all_up(&mut ranks);
    for rank in &ranks {
        // Each of two peers has two links; all ranks share a region, and each has a page and a
        // buffer.
        assert_eq!(procfs::shared_pieces(rank.pid()), 4 + 1 + 3 + 3);
        let procfs::Sockets { listening, tcp, .. } = procfs::sockets(rank.pid());
        assert_eq!((listening, tcp), (0, 0));
    }
    kill_all(ranks);
    job.left_nothing();
}

#[test]
fn ordinary_memory_at_one_rank_is_an_error_at_every_rank() {
    for (size, odd) in [(2, 0), (4, 2)] {
        for count in [5000, 1 << 20] {
            let job = Job::new();
            let ranks = job.world(size, "shm", &format!("half {count} {odd}"));
            let reports: Vec<_> = all_end(ranks, LONG - PROMPT).iter().map(Report::of).collect();
            for report in &reports {
                // A rank with the right call may see the difference of two others.
                let mismatch = format!("rank {} (host ", report.peer);
                let (_, said) = report.what.split_once(" does not make the same call").unwrap();
                let other = said.strip_prefix(" as rank ").and_then(|it| it.split_once(' '));
                let other = other.map_or(report.rank, |(rank, _)| rank.parse().unwrap());
                assert!(report.what.starts_with(&mismatch), "{report:?}");
                assert!([other, report.peer].contains(&odd), "{report:?}");
                let place =
                    if other == report.rank { "here".into() } else { format!("at rank {other}") };
                let ours = if other == odd { "not registered" } else { "registered" };
                assert!(report.what.ends_with(&format!(", {ours} {place}")), "{report:?}");
            }
            job.left_nothing();
        }
    }
}
