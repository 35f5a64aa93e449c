//! What the ranks' records say: read while they run, and when they are no more. `verdict` makes one
//! sentence of all of them, `words` a line of each and `json` a document; `desk` and `status` carry
//! them to the user.

mod desk;
mod frame;
mod json;
pub(crate) mod status;
mod verdict;
mod words;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringreduce::trace;
use ringreduce::trace::{Reader, Record};

use crate::job::{End, Verdict};
use crate::proc;
use crate::spawn::Rank;
pub(crate) use desk::Desk;

/// The memory that a rank writes its record to, before it starts.
pub(crate) struct Memory {
    /// What it inherits.
    pub(crate) fd: OwnedFd,
    reader: Reader,
}

impl Memory {
    /// None where there is none: the rank then records for itself.
    pub(crate) fn new() -> Option<Self> {
        let fd = trace::create().ok()?;
        let reader = Reader::open(fd.as_fd()).ok()?;
        Some(Self { fd, reader })
    }

    /// What is left of it once the rank has the descriptor.
    pub(crate) fn reader(self) -> Reader {
        self.reader
    }
}

/// How a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Stopped,
    Ended(End),
}

/// What is known of a rank at one time.
#[derive(Clone, Debug)]
struct Seen {
    rank: usize,
    host: String,
    pid: u64,
    life: Life,
    record: Option<Record>,
    /// It records in the format of another version.
    foreign: bool,
}

struct Seat {
    rank: usize,
    host: String,
    now: Mutex<Process>,
}

/// The process of a rank, or the last one that it had.
struct Process {
    pid: u32,
    reader: Option<Reader>,
    end: Option<End>,
}

impl Process {
    fn of(rank: &mut Rank) -> Self {
        Self { pid: rank.pid(), reader: rank.record.take(), end: None }
    }
}

/// The records of a job's ranks.
#[derive(Clone)]
pub(crate) struct Flights(Arc<[Seat]>);

impl Flights {
    /// Those of ranks that were started.
    pub(crate) fn new(ranks: &mut [Rank]) -> Self {
        let seat = |rank: &mut Rank| Seat {
            rank: rank.place.rank,
            host: rank.place.host.clone(),
            now: Mutex::new(Process::of(rank)),
        };
        Self(ranks.iter_mut().map(seat).collect())
    }

    /// A rank has ended.
    pub(crate) fn ended(&self, rank: usize, end: End) {
        if let Some(seat) = self.0.get(rank) {
            seat.now().end = Some(end);
        }
    }

    /// A rank was started again.
    pub(crate) fn returned(&self, rank: &mut Rank) {
        if let Some(seat) = self.0.get(rank.place.rank) {
            *seat.now() = Process::of(rank);
        }
    }

    fn look(&self) -> Vec<Seen> {
        self.0.iter().map(Seat::look).collect()
    }

    /// Why a job ends, as far as its records say.
    pub(crate) fn story(&self, why: &Verdict) -> Option<String> {
        let blamed = match why {
            Verdict::Failed { rank, .. } => Some(*rank),
            Verdict::Interrupted(_) | Verdict::TimedOut(_) => None,
        };
        verdict::of(&self.look(), blamed, trace::now())
    }

    /// How it is with a job that runs: a sentence, and a line for each rank.
    pub(crate) fn report(&self) -> Vec<String> {
        let (seen, now) = (self.look(), trace::now());
        let lines = seen.iter().map(|one| words::line(&seen, one, now));
        std::iter::once(summary(&seen, now)).chain(lines).collect()
    }

    /// The same for programs.
    fn json(&self) -> String {
        let (seen, now) = (self.look(), trace::now());
        json::line(&summary(&seen, now), &seen, now)
    }
}

/// How it is with a job, in a sentence.
fn summary(seen: &[Seen], now: u64) -> String {
    verdict::of(seen, None, now).unwrap_or_else(|| words::fine(seen))
}

impl Seat {
    fn now(&self) -> MutexGuard<'_, Process> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> Seen {
        // What it says is read before it is asked how the process is: who ends has written all.
        let now = self.now();
        let end = now.end;
        let record = now.reader.as_ref().and_then(Reader::read);
        let foreign = now.reader.as_ref().is_some_and(Reader::is_foreign);
        // Of a script it is the program that the script runs.
        let pid = record.as_ref().map_or(u64::from(now.pid), |record| record.pid);
        let stopped = |pid| proc::one(pid).is_some_and(|it| matches!(it.state, 'T' | 't'));
        let pids = [Some(now.pid), u32::try_from(pid).ok()];
        let life = match end {
            Some(end) => Life::Ended(end),
            None if pids.into_iter().flatten().any(stopped) => Life::Stopped,
            None => Life::Running,
        };
        Seen { rank: self.rank, host: self.host.clone(), pid, life, record, foreign }
    }
}
