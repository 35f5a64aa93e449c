//! The status of a job from its ranks' records, while the ranks run and when they have ended.
//! `verdict` makes one sentence of all records, `wording` a line of each and `json` a document;
//! `server` and `command` bring them to the user.

pub(crate) mod command;
mod json;
mod server;
mod verdict;
mod wording;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringreduce::trace;
use ringreduce::trace::{Reader, Record};

use crate::launch::job::{JobFailure, RankEnd};
use crate::launch::procfs;
use crate::launch::spawn::Rank;
pub(crate) use server::StatusServer;

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
    /// The rank writes the record format of another version.
    other_format: bool,
}

struct RankEntry {
    rank: usize,
    host: String,
    process: Mutex<RankProcess>,
}

struct RankProcess {
    pid: u32,
    reader: Option<Reader>,
    end: Option<RankEnd>,
}

impl RankProcess {
    fn of(rank: &mut Rank) -> Self {
        Self { pid: rank.pid(), reader: rank.record.take(), end: None }
    }
}

/// The status of a job's ranks, from their records and processes.
#[derive(Clone)]
pub(crate) struct JobStatus(Arc<[RankEntry]>);

impl JobStatus {
    pub(crate) fn new(ranks: &mut [Rank]) -> Self {
        let entry = |rank: &mut Rank| RankEntry {
            rank: rank.placement.rank,
            host: rank.placement.host.clone(),
            process: Mutex::new(RankProcess::of(rank)),
        };
        Self(ranks.iter_mut().map(entry).collect())
    }

    pub(crate) fn ended(&self, rank: usize, end: RankEnd) {
        if let Some(entry) = self.0.get(rank) {
            entry.process().end = Some(end);
        }
    }

    pub(crate) fn restarted(&self, rank: &mut Rank) {
        if let Some(entry) = self.0.get(rank.placement.rank) {
            *entry.process() = RankProcess::of(rank);
        }
    }

    fn snapshot(&self) -> Vec<RankStatus> {
        self.0.iter().map(RankEntry::snapshot).collect()
    }

    /// The sentence on the cause of a job's failure, if the records tell it.
    pub(crate) fn diagnosis(&self, failure: &JobFailure) -> Option<String> {
        let failed = match failure {
            JobFailure::RankFailed { rank, .. } => Some(*rank),
            JobFailure::Interrupted(_) | JobFailure::TimedOut(_) => None,
        };
        verdict::of(&self.snapshot(), failed, trace::now())
    }

    /// The status of a running job: a sentence, and a line for each rank.
    pub(crate) fn lines(&self) -> Vec<String> {
        let (ranks, now) = (self.snapshot(), trace::now());
        let lines = ranks.iter().map(|rank| wording::line(&ranks, rank, now));
        std::iter::once(summary(&ranks, now)).chain(lines).collect()
    }

    fn json(&self) -> String {
        let (ranks, now) = (self.snapshot(), trace::now());
        json::line(&summary(&ranks, now), &ranks, now)
    }
}

fn summary(ranks: &[RankStatus], now: u64) -> String {
    verdict::of(ranks, None, now).unwrap_or_else(|| wording::no_wait_summary(ranks))
}

impl RankEntry {
    fn process(&self) -> MutexGuard<'_, RankProcess> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> RankStatus {
        // The record is read after the end is known: a rank that has ended has written all of it.
        let process = self.process();
        let end = process.end;
        let record = process.reader.as_ref().and_then(Reader::read);
        let other_format = process.reader.as_ref().is_some_and(Reader::is_foreign);
        // The record has the process of the program that a script runs.
        let pid = record.as_ref().map_or(u64::from(process.pid), |record| record.pid);
        let stopped = |pid| procfs::process(pid).is_some_and(|it| matches!(it.state, 'T' | 't'));
        let pids = [Some(process.pid), u32::try_from(pid).ok()];
        let state = match end {
            Some(end) => ProcessState::Ended(end),
            None if pids.into_iter().flatten().any(stopped) => ProcessState::Stopped,
            None => ProcessState::Running,
        };
        RankStatus { rank: self.rank, host: self.host.clone(), pid, state, record, other_format }
    }
}
