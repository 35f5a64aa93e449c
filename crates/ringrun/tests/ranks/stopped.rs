//! A rank stops in the middle of calls. Who waits for it waits no longer than the timeout; if it
//! goes on before, nobody has noticed.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::bodies::TIMEOUT;
use crate::harness::{Job, LONG, PATIENCE, PROMPT, Process, all_end, until};
use crate::report::{Report, all_lead_to};
use crate::system;

const SECOND: Duration = Duration::from_secs(1);

/// Who is to stop, among whom, doing what.
#[derive(Clone, Copy)]
struct Case<'a> {
    size: usize,
    who: usize,
    transport: &'a str,
    body: &'a str,
}

impl Case<'_> {
    /// The ranks, one of which has stopped.
    fn start(self, job: &Job, timeout: Duration) -> Vec<Process> {
        let Self { size, who, transport, body } = self;
        let timeout = timeout.as_secs().to_string();
        let mut ranks = job.world_with(size, transport, &format!("{body} {who}"), |command| {
            command.env(TIMEOUT, &timeout);
        });
        for rank in &mut ranks {
            rank.line("up");
        }
        ranks[who].stopped();
        ranks
    }

    /// It does not go on until the others have ended.
    fn for_too_long(self) {
        let job = Job::new();
        let mut ranks = self.start(&job, SECOND);
        let stopped = ranks.remove(self.who);
        let ended = all_end(ranks, SECOND + PROMPT);
        let reports: Vec<_> = ended.iter().map(Report::of).collect();
        for report in &reports {
            // Who did not wait so long itself has it from one who did.
            assert!(report.what.starts_with("nothing from rank "), "{report:?}");
            assert!(report.what.contains(" for 1.0s"), "{report:?}");
            assert!(report.what.contains("RINGREDUCE_TIMEOUT"), "{report:?}");
            assert_eq!(report.peer, self.who, "{report:?}");
        }
        all_lead_to(&reports, &[self.who]);
        // Once it goes on it finds the others gone.
        stopped.signal(Signal::SIGCONT);
        let late = Report::of(&all_end(vec![stopped], PROMPT)[0]);
        assert!(late.what.starts_with("lost rank "), "{late:?}");
        job.left_nothing();
    }
}

#[test]
fn for_too_long_over_shared_memory() {
    for (size, who) in [(2, 0), (4, 2)] {
        for body in ["stops 2", "stops 1000000"] {
            Case { size, who, transport: "shm", body }.for_too_long();
        }
    }
}

#[test]
fn for_too_long_over_tcp() {
    for (size, who) in [(2, 0), (4, 2)] {
        for body in ["stops 2", "stops 1000000"] {
            Case { size, who, transport: "tcp", body }.for_too_long();
        }
    }
}

/// Long before the timeout the others say whom they wait for, and nothing else comes of it.
#[test]
fn and_is_named_meanwhile() {
    let job = Job::new();
    let jobs = [(2, "shm"), (3, "tcp")].map(|(size, transport)| {
        let case = Case { size, who: 1, transport, body: "stops 100000" };
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

#[test]
fn and_does_not_listen() {
    for transport in ["shm", "tcp"] {
        // More than all buffers on the way can take.
        Case { size: 2, who: 1, transport, body: "listens 8000000" }.for_too_long();
    }
}

#[test]
fn and_goes_on_in_time() {
    for (size, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let job = Job::new();
        let case = Case { size, who: 1, transport, body: "stops 100000" };
        let ranks = case.start(&job, Duration::from_secs(20));
        for rank in ranks.iter().filter(|rank| rank.pid() != ranks[1].pid()) {
            until("the others wait for it", || system::state(rank.pid()) == Some('S'));
        }
        ranks[1].signal(Signal::SIGCONT);
        for ended in all_end(ranks, PATIENCE) {
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(ended.out.ends_with("\nright\n"), "{ended:?}");
        }
        job.left_nothing();
    }
}
