//! Registered memory among processes: right sums, a rank that is killed or stops, one that brings
//! other memory than the rest; and nothing is left behind.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::bodies::TIMEOUT;
use crate::harness::{Job, LONG, PATIENCE, PROMPT, Process, all_end};
use crate::report::{Report, all_lead_to};
use crate::system;

const KINDS: [&str; 2] = ["alloc", "register"];

#[test]
fn sums_are_right() {
    // Over TCP it is memory like any other.
    for (size, transport) in [(1, "shm"), (2, "shm"), (4, "shm"), (3, "tcp")] {
        for kind in KINDS {
            for count in [0, 5, 100_000] {
                let job = Job::new();
                let ranks = job.world(size, transport, &format!("{kind} {count} 25"));
                for ended in all_end(ranks, PATIENCE) {
                    assert_eq!(ended.code, 0, "{ended:?}");
                    assert!(ended.out.contains("right\n"), "{ended:?}");
                }
                job.left_nothing();
            }
        }
    }
}

#[test]
fn each_rank_maps_every_buffer() {
    let job = Job::new();
    let mut ranks = job.world(3, "shm", "alloc 1000 1000000000");
    ranks.iter_mut().for_each(|rank| drop(rank.line("up")));
    for rank in &ranks {
        // Two links to each of the two others, and of each rank its line with the stages, its page
        // and its buffer.
        assert_eq!(system::shared_pieces(rank.pid()), 4 + 3 + 3 + 3);
        assert_eq!(system::sockets(rank.pid()), system::Sockets::default());
    }
    crate::harness::kill_all(ranks);
    job.left_nothing();
}

#[test]
fn a_rank_that_is_killed_is_noticed() {
    for (size, victim) in [(2, 0), (4, 2)] {
        for kind in KINDS {
            for count in [2, 1 << 19] {
                let job = Job::new();
                let mut ranks = job.world(size, "shm", &format!("{kind} {count} 1000000000"));
                ranks.iter_mut().for_each(|rank| drop(rank.line("up")));
                let gone = ranks.remove(victim);
                gone.signal(Signal::SIGKILL);
                let reports: Vec<_> = all_end(ranks, PROMPT).iter().map(Report::of).collect();
                assert!(reports.iter().any(|report| report.peer == victim), "{reports:#?}");
                for report in &reports {
                    assert!(report.what.starts_with("lost rank "), "{report:?}");
                    assert_eq!(report.call, "all_reduce");
                }
                all_lead_to(&reports, &[victim]);
                assert_eq!(all_end(vec![gone], PROMPT)[0].code, -9);
                job.left_nothing();
            }
        }
    }
}

#[test]
fn a_rank_that_stops_is_waited_for_as_long_as_the_timeout() {
    const SECOND: Duration = Duration::from_secs(1);
    for kind in KINDS {
        let job = Job::new();
        let body = format!("{kind} 100000 1000 1");
        let mut ranks = job.world_with(3, "shm", &body, |command| {
            command.env(TIMEOUT, SECOND.as_secs().to_string());
        });
        ranks.iter_mut().for_each(|rank| drop(rank.line("up")));
        ranks[1].stopped();
        let stopped = ranks.remove(1);
        let reports: Vec<_> = all_end(ranks, SECOND + PROMPT).iter().map(Report::of).collect();
        let waited = |report: &&Report| report.what.starts_with("nothing from rank 1 ");
        assert!(reports.iter().any(|report| waited(&report)), "{reports:#?}");
        all_lead_to(&reports, &[1]);
        stopped.signal(Signal::SIGCONT);
        let late = Report::of(&all_end(vec![stopped], PROMPT)[0]);
        assert!(late.what.starts_with("lost rank "), "{late:?}");
        job.left_nothing();
    }
}

#[test]
fn ordinary_memory_at_one_rank_is_an_error_at_all() {
    for (size, odd) in [(2, 0), (4, 2)] {
        for count in [10, 1 << 20] {
            let job = Job::new();
            let ranks: Vec<Process> = job.world(size, "shm", &format!("half {count} {odd}"));
            let reports: Vec<_> = all_end(ranks, LONG - PROMPT).iter().map(Report::of).collect();
            for report in &reports {
                // Who made the right call may be told by one of two others that they differ.
                let differs = format!("rank {} (host ", report.peer);
                let (_, said) = report.what.split_once(" does not make the same call").unwrap();
                let other = said.strip_prefix(" as rank ").and_then(|it| it.split_once(' '));
                let other = other.map_or(report.rank, |(rank, _)| rank.parse().unwrap());
                assert!(report.what.starts_with(&differs), "{report:?}");
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
