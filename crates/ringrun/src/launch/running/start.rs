//! The start of a job: its ranks, and all that looks after them.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::unistd::dup2_stdin;

use super::events::Events;
use super::restarter::Restarter;
use super::stopped::StoppedRanks;
use super::terminal::Terminal;
use super::{Inherited, Running};
use crate::cli::{Binding, Request};
use crate::failure::Failure;
use crate::launch::job::Job;
use crate::launch::message::say;
use crate::launch::output::Output;
use crate::launch::pmi::world::PmiWorld;
use crate::launch::rank::Rank;
use crate::launch::signals::Signals;
use crate::launch::spawn::{Spawner, StartKind};
use crate::status::{JobStatus, server};
use ringreduce::bootstrap::Instant;

impl<'a> Running<'a> {
    /// Starts the ranks of a job, and what listens to them.
    pub(in crate::launch) fn start(
        spawner: &'a Spawner<'a>,
        signals: Signals,
        inherited: Inherited,
    ) -> Result<Self, Failure> {
        let request = spawner.request;
        let limit = request.timeout.map(|limit| Instant::now() + limit);
        let (mut ranks, mut streams) = (vec![], vec![]);
        for placement in &request.placements {
            let (rank, own) = spawner.spawn(placement.clone(), StartKind::First)?;
            ranks.push(rank);
            streams.extend(own);
        }
        leave_stdin_to_rank_0()?;
        if request.report_bindings {
            report_bindings(request, &ranks, spawner.cpus.len());
        }
        let status = JobStatus::new(&mut ranks);
        if let Err(cause) = server::start(status.clone()) {
            request.warn(&format!("`ringrun status` can't ask this job: {cause}"));
        }
        let output = Output::start(streams, request.style)
            .map_err(|cause| Failure::no_process("carry output".into(), cause))?;
        let events = Events::new().map_err(Failure::call("make an epoll set", "epoll_create1"))?;
        let evictions = request.elastic.map(|_| spawner.store.evicted_fd());
        events
            .listen(&signals, &ranks, evictions)
            .map_err(Failure::system("wait for the ranks"))?;
        Ok(Self {
            request,
            spawner,
            signals,
            inherited,
            watcher_runs: true,
            job: Job::new(ranks.len(), limit, request.term_grace),
            ranks,
            events,
            status,
            pmi: PmiWorld::new(spawner.id, request.ranks),
            output: Some(output),
            diagnosis: None,
            is_reported: false,
            restarter: request.elastic.map(Restarter::new),
            stopped: StoppedRanks::default(),
            terminal: Terminal::of_stdin(),
        })
    }
}

/// Lets rank 0 alone keep a pipe open, so that its writer sees when rank 0 closes it.
fn leave_stdin_to_rank_0() -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    let null = File::open("/dev/null").map_err(Failure::system("open /dev/null"))?;
    dup2_stdin(&null).map_err(Failure::system("hand over the standard input"))
}

fn report_bindings(request: &Request, ranks: &[Rank], cpus: usize) {
    let binding = |rank: &Rank| match rank.cpu {
        Some(cpu) => format!("{} is bound to CPU {cpu}", rank.label()),
        None => format!("{} is not bound", rank.label()),
    };
    let mut lines: Vec<_> = ranks.iter().map(binding).collect();
    if request.binding == Binding::Core && ranks.len() > cpus {
        lines.push(format!("{} ranks share {cpus} CPUs", ranks.len()));
    }
    say(&lines.join("\nringrun: "));
}
