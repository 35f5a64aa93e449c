//! A rank stops in the middle of calls. Other ranks wait for it no longer than their timeout, and
//! warn of it before; if it goes on in time, all calls end well.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::bodies::TIMEOUT;
use super::failure_report::{Report, all_lead_to};
use crate::harness::{LONG, PATIENCE, PROMPT, Process, all_end, all_up};
use crate::job::Job;

const SECOND: Duration = Duration::from_secs(1);

/// The rank `stops` of `size` ranks stops in this body.
#[derive(Clone, Copy)]
struct Case<'a> {
    size: usize,
    stops: usize,
    transport: &'a str,
    body: &'a str,
}

impl Case<'_> {
    /// Starts the ranks, and waits until the one has stopped.
    fn start(self, job: &Job, timeout: Duration) -> Vec<Process> {
        let Self { size, stops, transport, body } = self;
        let timeout = timeout.as_secs().to_string();
        let mut ranks = job.world_with(size, transport, &format!("{body} {stops}"), |command| {
            command.env(TIMEOUT, &timeout);
        });
        all_up(&mut ranks);
        ranks[stops].stopped();
        ranks
    }

    /// Checks the errors of the others, which end before the stopped rank goes on.
    fn for_too_long(self) {
        let job = Job::new();
        let mut ranks = self.start(&job, SECOND);
        let stopped = ranks.remove(self.stops);
        let ended = all_end(ranks, SECOND + PROMPT);
        let reports: Vec<_> = ended.iter().map(Report::of).collect();
        for report in &reports {
            // A rank that waited for less has the report of another one.
            assert!(report.what.starts_with("nothing from rank "), "{report:?}");
            assert!(report.what.contains(" for 1.0s"), "{report:?}");
            assert!(report.what.contains("RINGREDUCE_TIMEOUT"), "{report:?}");
            assert_eq!(report.peer, self.stops, "{report:?}");
        }
        all_lead_to(&reports, &[self.stops]);
        // The stopped rank goes on and finds the others gone.
        stopped.signal(Signal::SIGCONT);
        let late = Report::of(&all_end(vec![stopped], PROMPT)[0]);
        assert!(late.what.starts_with("lost rank "), "{late:?}");
        job.left_nothing();
    }
}

#[test]
fn ranks_that_wait_for_too_long_name_the_stopped_one() {
    if !::harness::share::makes_test(3) {
        return;
    }
    for (size, stops, body) in [
        (2, 0, "calls 2 40"),
        (4, 2, "calls 2 40"),
        (2, 0, "calls 1000000 40"),
        (4, 2, "calls 1000000 40"),
        (3, 1, "alloc 100000 1000"),
        (3, 1, "register 100000 1000"),
        // The message is larger than all buffers between the ranks.
        (2, 1, "listens 8000000"),
    ] {
        for transport in ["shm", "tcp"] {
            Case { size, stops, transport, body }.for_too_long();
        }
    }
}

/// Long before the timeout the others warn of the rank that they wait for.
#[test]
fn a_stopped_rank_is_warned_of() {
    let job = Job::new();
    let jobs = [(2, "shm"), (3, "tcp")].map(|(size, transport)| {
        let case = Case { size, stops: 1, transport, body: "calls 100000 40" };
        (case.start(&job, LONG), size)
    });
    for (mut ranks, size) in jobs {
        let victim = ranks.remove(1);
        for (rank, number) in ranks.iter_mut().zip((0..size).filter(|&rank| rank != 1)) {
            let line = rank.error_line(" has waited for ");
            let start = format!("ringreduce: warning: rank {number} in all_reduce #");
            assert!(line.starts_with(&start), "{line}");
            let who = format!(", pid {})", victim.pid());
            let said = line.split_once(" has waited for ").map(|(_, said)| said);
            let named = said.is_some_and(|it| it.contains("s: rank 1 (host ") && it.contains(&who));
            assert!(named, "{line}");
        }
        victim.signal(Signal::SIGCONT);
        ranks.push(victim);
        let all = all_end(ranks, PATIENCE);
        assert!(all.iter().all(|ended| ended.code == 0), "{all:#?}");
    }
    job.left_nothing();
}
