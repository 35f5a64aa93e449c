//! The start of a job: its ranks, and all that looks after them.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader};
use std::process::Stdio;

use nix::unistd::dup2_stdin;

use super::Running;
use super::events::Events;
use super::lost_hosts::LostHosts;
use super::restarter::Restarter;
use super::stopped::StoppedRanks;
use super::terminal::Terminal;
use crate::cli::hosts::RankPlacement;
use crate::cli::{Binding, Request};
use crate::failure::Failure;
use crate::launch::agents::Agents;
use crate::launch::job::Job;
use crate::launch::message::say;
use crate::launch::orphans::Orphans;
use crate::launch::output::{Output, RankStream, StreamKind};
use crate::launch::pmi::connection::Connection;
use crate::launch::pmi::world::{PmiWorld, RankOrigin};
use crate::launch::rank::{Rank, RankProcess};
use crate::launch::signals::Signals;
use crate::launch::spawn::{Spawner, StartKind};
use crate::status::tcp::Listener;
use crate::status::{JobStatus, server};
use ringreduce::bootstrap::{Instant, Server};
use ringreduce::files::{OpenMode, create_folder, open_for_writing};

impl<'a> Running<'a> {
    /// Starts the ranks of a job, and what listens to them.
    pub(in crate::launch) fn start(
        (spawner, store): (&'a Spawner<'a>, &'a Server),
        signals: Signals,
        orphans: Orphans<'a>,
        mut agents: Agents,
        limit: Option<Instant>,
        listeners: Vec<Listener>,
    ) -> Result<Self, Failure> {
        let request = spawner.request;
        let (mut ranks, mut streams) = (vec![], vec![]);
        for placement in &request.placements {
            let (rank, own) =
                start_rank((spawner, store), &mut agents, placement, StartKind::First)?;
            ranks.push(rank);
            streams.extend(own);
        }
        leave_stdin_to_rank_0()?;
        if request.report_bindings {
            report_bindings(request, &ranks, spawner.cpus.len());
        }
        let status = JobStatus::new(&mut ranks, agents.commands());
        if let Err(cause) = server::start(status.clone()) {
            request.warn(&format!("`ringrun status` can't ask this job: {cause}"));
        }
        for listener in listeners {
            request.warn(&listener.serve(status.clone())?);
        }
        let output = Output::start(streams, request.style)
            .map_err(|cause| Failure::no_process("carry output".into(), cause))?;
        let events = Events::new().map_err(Failure::call("make an epoll set", "epoll_create1"))?;
        let evictions = request.elastic.map(|_| store.excluded_fd());
        events
            .listen(&signals, &ranks, agents.awake(), evictions)
            .map_err(Failure::system("wait for the ranks"))?;
        let origin = |it: &RankPlacement| RankOrigin { program: it.program, host: it.host_number };
        let origins: Vec<_> = request.placements.iter().map(origin).collect();
        let mut running = Self {
            request,
            spawner,
            store,
            signals,
            orphans,
            agents,
            job: Job::new(ranks.len(), limit, request.term_grace),
            ranks,
            events,
            status,
            pmi: PmiWorld::new(spawner.id, &origins),
            output: Some(output),
            diagnosis: None,
            is_reported: false,
            is_output_lost: false,
            restarter: request.elastic.map(Restarter::new),
            lost_hosts: LostHosts::default(),
            stopped: StoppedRanks::default(),
            terminal: Terminal::of_stdin(),
        };
        running.seek_missing_hosts();
        Ok(running)
    }
}

/// Starts a rank on its host. Its streams go to the store, to PMI and to the output.
pub(super) fn start_rank(
    (spawner, store): (&Spawner<'_>, &Server),
    agents: &mut Agents,
    placement: &RankPlacement,
    kind: StartKind,
) -> Result<(Rank, [RankStream; 2]), Failure> {
    let request = spawner.request;
    let reads = placement.rank == 0 && request.stdin && kind == StartKind::First;
    let is_here = request.hosts.get(placement.host_number).is_some_and(|host| host.is_here);
    let (process, streams) = if is_here {
        let stdin = if reads { Stdio::inherit() } else { Stdio::null() };
        let (process, streams) = spawner.spawn(placement, kind, stdin)?;
        (RankProcess::Here(process), streams)
    } else {
        let (process, streams) = agents.spawn(placement, kind, reads)?;
        (RankProcess::There(process), streams)
    };
    let failed = Failure::system(format!("serve rank {}", placement.rank));
    let progress = store.adopt(streams.store).map_err(io::Error::other).map_err(failed)?;
    let again = kind != StartKind::First;
    let stdout = stream(request, placement, (StreamKind::Stdout, streams.stdout), again)?;
    let stderr = stream(request, placement, (StreamKind::Stderr, streams.stderr), again)?;
    let (placement, pmi) = (placement.clone(), Some(Connection::new(streams.pmi)));
    Ok((Rank { placement, process, pmi, progress }, [stdout, stderr]))
}

/// The reading end of a rank's stream, with the file that gets a copy of it.
fn stream(
    request: &Request,
    RankPlacement { rank, host, .. }: &RankPlacement,
    (kind, pipe): (StreamKind, PipeReader),
    again: bool,
) -> Result<RankStream, Failure> {
    let file = request.files.as_ref().map(|folder| {
        let folder = folder.join(format!("rank.{rank}"));
        let path = folder.join(kind.name());
        let what = format!("create {}", path.display());
        let mode = if again { OpenMode::Append } else { OpenMode::Truncate };
        let file = create_folder(&folder).and_then(|()| open_for_writing(&path, mode));
        file.map(|file| (path, file)).map_err(Failure::system(what))
    });
    Ok(RankStream { rank: *rank, host: host.clone(), kind, pipe, file: file.transpose()? })
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
    // The agents of other hosts tell when their ranks have started.
    let here: Vec<_> = ranks.iter().filter(|rank| rank.here().is_some()).collect();
    let mut lines: Vec<_> = here.iter().map(|rank| binding(rank)).collect();
    if request.binding == Binding::Core && here.len() > cpus {
        lines.push(format!("{} ranks share {cpus} CPUs", here.len()));
    }
    if !lines.is_empty() {
        say(&lines.join("\nringrun: "));
    }
}

/// "rank 2 (pid 4711, host a) is bound to CPU 0".
pub(super) fn binding(rank: &Rank) -> String {
    match rank.cpu() {
        Some(cpu) => format!("{} is bound to CPU {cpu}", rank.label()),
        None => format!("{} is not bound", rank.label()),
    }
}
