//! The status of a job from its ranks' records, while the ranks run and when they have ended.
//! `communicators` finds the ranks and calls of each communicator, `verdict` makes one sentence of
//! all records, `wording` a line of each, `json` a document and `metrics` a text for Prometheus;
//! `server` and `command` bring them to the user, and `tcp` to other programs: `scrape` to
//! Prometheus and `ras` to clients of NCCL's RAS.

pub(crate) mod command;
mod communicators;
mod json;
mod metrics;
mod ras;
mod scrape;
pub(crate) mod server;
mod snapshots;
pub(crate) mod tcp;
mod verdict;
mod wording;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringreduce::trace;
use ringreduce::trace::{Reader, Record};

use communicators::Communicators;
use snapshots::Snapshots;

use crate::launch::agents::{AskedRecords, Commands, HostRecord, RankRecord};
use crate::launch::job::JobFailure;
use crate::launch::procfs;
use crate::launch::rank::{self, Rank};
use crate::launch::rank_end::RankEnd;

/// The memory that a rank writes its record to, made before the rank starts.
pub(crate) struct RecordMemory {
    /// The descriptor that the rank inherits.
    pub(crate) fd: OwnedFd,
    pub(crate) reader: Reader,
}

impl RecordMemory {
    /// None if the system has no memory for it: the rank then keeps its record to itself.
    pub(crate) fn new() -> Option<Self> {
        let fd = trace::create().ok()?;
        let reader = Reader::open(fd.as_fd()).ok()?;
        Some(Self { fd, reader })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Running,
    Stopped,
    Ended(RankEnd),
}

#[derive(Clone, Debug)]
struct RankStatus {
    rank: usize,
    host: String,
    pid: u64,
    state: ProcessState,
    record: Option<Record>,
    /// The memory of the record could be read, so that a rank without a record has not joined.
    is_read: bool,
    restarts: usize,
    /// The rank writes the record format of another version.
    other_format: bool,
}

/// The latest process of a rank.
struct RankProcess {
    rank: usize,
    host: String,
    pid: u32,
    source: Source,
    end: Option<RankEnd>,
    /// Processes of the rank before this one.
    restarts: usize,
}

/// Where a rank's record is read.
enum Source {
    Here(Option<Reader>),
    /// On the host of this number, by its agent.
    There(usize),
}

/// The status of a job's ranks, from their records and processes.
#[derive(Clone)]
pub(crate) struct JobStatus {
    ranks: Arc<[Mutex<RankProcess>]>,
    /// The agents of other hosts, and the numbers of these.
    agents: Vec<(usize, Commands)>,
}

impl JobStatus {
    pub(crate) fn new(ranks: &mut [Rank], agents: Vec<(usize, Commands)>) -> Self {
        Self { ranks: ranks.iter_mut().map(RankProcess::of).map(Mutex::new).collect(), agents }
    }

    /// The process of a rank on another host has this number there.
    pub(crate) fn started(&self, rank: usize, pid: u32) {
        self.process(rank).pid = pid;
    }

    pub(crate) fn ended(&self, rank: usize, end: RankEnd) {
        self.process(rank).end = Some(end);
    }

    pub(crate) fn restarted(&self, rank: &mut Rank) {
        let mut process = self.process(rank.placement.rank);
        *process = RankProcess { restarts: process.restarts + 1, ..RankProcess::of(rank) };
    }

    fn process(&self, rank: usize) -> MutexGuard<'_, RankProcess> {
        self.ranks[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Vec<RankStatus> {
        // All hosts are asked before the first one answers.
        let asked: Vec<_> =
            self.agents.iter().map(|(host, agent)| (*host, agent.ask_for_records())).collect();
        let mut snapshots: Vec<_> =
            (0..self.ranks.len()).map(|rank| self.process(rank).snapshot()).collect();
        let deadline = AskedRecords::deadline();
        for (host, asked) in asked {
            for HostRecord { record, behind } in asked.wait(deadline) {
                let is_of_host = self.ranks.get(record.rank).is_some_and(
                    |_| matches!(self.process(record.rank).source, Source::There(at) if at == host),
                );
                if is_of_host {
                    snapshots[record.rank].take(record, behind);
                }
            }
        }
        snapshots
    }

    /// The sentence on the cause of a job's failure, if the records tell it.
    pub(crate) fn diagnosis(&self, failure: &JobFailure) -> Option<String> {
        let failed = match failure {
            JobFailure::RankFailed { rank, .. } | JobFailure::Aborted { rank, .. } => Some(*rank),
            JobFailure::Interrupted(_) | JobFailure::Host(_) | JobFailure::TimedOut(_) => None,
        };
        verdict::of(&self.snapshot(), failed, trace::now()).map(|cause| cause.sentence)
    }

    /// The status of a running job: a sentence, a line for each rank, and lines of communicators if
    /// there are several.
    pub(crate) fn lines(&self) -> Vec<String> {
        let (ranks, now) = (self.snapshot(), trace::now());
        let of_job = Communicators::of(&ranks);
        let lines = ranks.iter().map(|rank| wording::line(&of_job, rank, now));
        std::iter::once(summary(&ranks, now)).chain(lines).chain(of_job.lines(now)).collect()
    }

    fn json(&self) -> String {
        let (ranks, now) = (self.snapshot(), trace::now());
        json::line(&summary(&ranks, now), &ranks, now)
    }
}

fn summary(ranks: &[RankStatus], now: u64) -> String {
    let cause = verdict::of(ranks, None, now).map(|cause| cause.sentence);
    cause.unwrap_or_else(|| wording::no_wait_summary(ranks))
}

impl RankProcess {
    fn of(rank: &mut Rank) -> Self {
        let (placement, pid) = (rank.placement.clone(), rank.pid());
        let source = match &mut rank.process {
            rank::RankProcess::Here(process) => Source::Here(process.record.take()),
            rank::RankProcess::There(_) => Source::There(placement.host_number),
        };
        Self { rank: placement.rank, host: placement.host, pid, source, end: None, restarts: 0 }
    }

    fn snapshot(&self) -> RankStatus {
        // The record is read after the end is known: a rank that has ended has written all of it.
        let end = self.end;
        let reader = match &self.source {
            Source::Here(reader) => reader.as_ref(),
            Source::There(_) => None,
        };
        // As of other hosts: whole records of thousands of ranks would take a gigabyte.
        let record = reader.and_then(Reader::words).and_then(|words| Record::of_words(&words));
        let other_format = reader.is_some_and(Reader::is_foreign);
        // The record has the process of the program that a script runs.
        let pid = record.as_ref().map_or(u64::from(self.pid), |record| record.pid);
        let stopped = |pid| procfs::process(pid).is_some_and(|it| matches!(it.state, 'T' | 't'));
        let pids = [Some(self.pid), u32::try_from(pid).ok()];
        let is_here = matches!(self.source, Source::Here(_));
        let state = match end {
            Some(end) => ProcessState::Ended(end),
            None if is_here && pids.into_iter().flatten().any(stopped) => ProcessState::Stopped,
            None => ProcessState::Running,
        };
        let (rank, host, restarts) = (self.rank, self.host.clone(), self.restarts);
        let is_read = reader.is_some();
        RankStatus { rank, host, pid, state, record, is_read, restarts, other_format }
    }
}

impl RankStatus {
    /// Takes in what an agent has read, whose clock is so many nanoseconds behind.
    fn take(&mut self, read: RankRecord, behind: i64) {
        self.record = read.words.and_then(|words| Record::of_words(&words));
        if let Some(record) = &mut self.record {
            record.shift_times(behind);
            self.pid = record.pid;
        }
        self.is_read = true;
        self.other_format = read.is_foreign;
        if self.state == ProcessState::Running && read.is_stopped {
            self.state = ProcessState::Stopped;
        }
    }
}
