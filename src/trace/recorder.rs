//! The pen: one record for a rank, and for each of its communicators a place in it.
//! May touch: link's mappings, plan's requests. Law: from `enter` to `leave` nothing allocates,
//! locks or calls the system, unless a trace is asked for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use super::clock::{coarse, precise};
use super::dump::dump;
use super::layout::{Board, CALL, MEMBERS, bytes};
use super::metrics::{Metrics, MetricsHandle};
use super::operation::What;
use super::reader::State;
use super::timeline::Trace;
use crate::error::{Error, Peer, Result, Stall, warn};
use crate::memory::mapping::Region;
use crate::plan::Request;
use crate::schedule::{Algorithm, Step};

/// The time of calls of so many bytes is taken exactly: it does not show there.
const EXACT: usize = 64 << 10;

/// How far an operation is, in one word: state, step, and for whom it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Where(u64);

/// What a rank is for the other one at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    /// Who sends.
    From = 1,
    /// Who receives.
    To = 2,
    /// Who shares memory.
    Both = 3,
}

const STATE: u32 = 60;
const ENTERED: u64 = 1;
const AT_STEP: u64 = 2;
const DONE: u64 = 3;
const FAILED: u64 = 4;

impl Where {
    /// At this step, with this rank.
    #[inline]
    pub(crate) const fn at(step: usize, toward: Toward, peer: usize) -> Self {
        let step = (step as u64 & 0xffff_ffff) << 28;
        Self(AT_STEP << STATE | step | (toward as u64) << 24 | peer as u64 & 0xff_ffff)
    }

    /// At a step of a schedule.
    #[inline]
    pub(crate) const fn of(number: usize, step: &Step) -> Self {
        if step.op.receives() {
            Self::at(number, Toward::From, step.from as usize)
        } else if step.op.sends() {
            Self::at(number, Toward::To, step.to as usize)
        } else {
            Self(AT_STEP << STATE | (number as u64 & 0xffff_ffff) << 28)
        }
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    const fn over(self, state: u64) -> Self {
        Self(self.0 & !(0xf << STATE) | state << STATE)
    }

    pub(super) const fn state(self) -> Option<State> {
        match self.0 >> STATE {
            ENTERED => Some(State::Entered),
            AT_STEP => Some(State::AtStep),
            DONE => Some(State::Done),
            FAILED => Some(State::Failed),
            _ => None,
        }
    }

    pub(super) const fn step(self) -> u64 {
        self.0 >> 28 & 0xffff_ffff
    }

    pub(super) const fn toward(self) -> Option<(&'static str, u64)> {
        let peer = self.0 & 0xff_ffff;
        match self.0 >> 24 & 0xf {
            1 => Some(("receiving from", peer)),
            2 => Some(("sending to", peer)),
            3 => Some(("waiting for", peer)),
            _ => None,
        }
    }
}

/// The record of a rank, and where else it tells of its calls.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(super) board: Board,
    pub(super) rank: usize,
    /// The folder for its last operations after a failure.
    folder: Option<PathBuf>,
    trace: Option<Trace>,
}

impl Recorder {
    /// That of `rank`: in the launcher's memory, if it gave any, else in memory of its own; and the
    /// folders for what is told of failures and of all calls. Does it live `again`, beside what an
    /// earlier life of it in this job has told?
    ///
    /// # Errors
    /// If there is no memory for it, or no file for the trace.
    pub(crate) fn new(
        shared: Option<Region>,
        (rank, size): (usize, usize),
        folder: Option<PathBuf>,
        traces: Option<PathBuf>,
        again: bool,
    ) -> Result<Arc<Self>> {
        let board = Board::new(match shared {
            Some(region) => region,
            None => Region::anonymous(bytes())?,
        });
        board.claim(rank, size);
        let trace = traces.map(|traces| Trace::create(&traces, rank, again)).transpose()?;
        Ok(Arc::new(Self { board, rank, folder, trace }))
    }

    /// The launcher's memory, if it is as long as a record of this version.
    pub(crate) fn shared(fd: std::os::fd::BorrowedFd<'_>) -> Result<Region> {
        Region::open(fd, bytes(), "the launcher")
    }

    /// What it says now.
    #[cfg(test)]
    pub(crate) fn record(&self) -> Option<super::reader::Record> {
        super::reader::record(&self.board)
    }

    /// A communicator of this rank with these, which all of them know by this number.
    pub(crate) fn communicator(
        self: &Arc<Self>,
        key: u64,
        rank: usize,
        peers: Arc<[Peer]>,
    ) -> Flight {
        let made = self.board.head().made.fetch_add(1, Ordering::Relaxed);
        // In turns, so that calls of one that is gone keep its name for long.
        let places = (0..MEMBERS).map(|more| (made as usize).wrapping_add(more) % MEMBERS);
        let free = |at: &usize| {
            let taken = &self.board.group(*at).taken;
            taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let at = places.into_iter().find(free);
        if let Some(at) = at {
            let group = self.board.group(at);
            group.key.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            group.rank.store(rank as u64, Ordering::Relaxed);
            group.size.store(peers.len() as u64, Ordering::Relaxed);
            group.made.store(made, Ordering::Relaxed);
            // 0 is no number.
            group.key.store(key.max(1), Ordering::Release);
        }
        let (metrics, current) = (Arc::new(Metrics::default()), AtomicU64::new(0));
        Flight { recorder: Arc::clone(self), at, rank, peers, current, metrics }
    }
}

/// The pen of a communicator. One thread at a time makes its calls.
#[derive(Debug)]
pub(crate) struct Flight {
    recorder: Arc<Recorder>,
    /// Its place in the record.
    at: Option<usize>,
    /// Its rank there.
    rank: usize,
    /// All ranks there.
    peers: Arc<[Peer]>,
    /// The number of the operation that it is in, or was.
    current: AtomicU64,
    metrics: Arc<Metrics>,
}

impl Flight {
    /// That which others of this rank go to.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// The rank enters an operation: its name, whether its parts differ in length, what it is, its
    /// number on the communicator, and its bytes.
    #[inline]
    pub(crate) fn enter(
        &self,
        (name, uneven): (&str, bool),
        request: Option<&Request>,
        sequence: u64,
        bytes: usize,
    ) {
        let board = &self.recorder.board;
        let number = board.head().begun.fetch_add(1, Ordering::Relaxed) + 1;
        self.current.store(number, Ordering::Relaxed);
        let what = What::of(self.at.unwrap_or(MEMBERS), (name, uneven), request);
        let entry = board.entry(number);
        entry.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.what.store(what.word(), Ordering::Relaxed);
        entry.sequence.store(sequence, Ordering::Relaxed);
        let count = request.map_or(0, |request| request.count);
        entry.count.store(count as u64, Ordering::Relaxed);
        entry.bytes.store(bytes as u64, Ordering::Relaxed);
        entry.start.store(self.time(bytes), Ordering::Relaxed);
        entry.end.store(0, Ordering::Relaxed);
        entry.place.store(ENTERED << STATE, Ordering::Relaxed);
        entry.number.store(number, Ordering::Release);
    }

    #[inline]
    fn time(&self, bytes: usize) -> u64 {
        if bytes < EXACT && self.recorder.trace.is_none() { coarse() } else { precise() }
    }

    /// It goes by this algorithm.
    #[inline]
    pub(crate) fn by(&self, algorithm: Algorithm) {
        let what = &self.recorder.board.entry(self.current.load(Ordering::Relaxed)).what;
        let word = What::from_word(what.load(Ordering::Relaxed)).by(algorithm).word();
        what.store(word, Ordering::Relaxed);
    }

    /// It is there now.
    #[inline]
    pub(crate) fn at(&self, place: Where) {
        let entry = self.recorder.board.entry(self.current.load(Ordering::Relaxed));
        entry.place.store(place.0, Ordering::Relaxed);
        if let Some(trace) = &self.recorder.trace {
            trace.step(self.at, place);
        }
    }

    /// It begins to sleep for that rank.
    #[cold]
    pub(crate) fn turn(&self, toward: Toward, peer: usize) {
        let entry = self.recorder.board.entry(self.current.load(Ordering::Relaxed));
        let step = Where(entry.place.load(Ordering::Relaxed)).step();
        let place = Where::at(step as usize, toward, peer);
        entry.place.store(place.0, Ordering::Relaxed);
    }

    /// It has waited for so long.
    #[cold]
    pub(crate) fn waited(&self, time: Duration) {
        let entry = self.recorder.board.entry(self.current.load(Ordering::Relaxed));
        let what = What::from_word(entry.what.load(Ordering::Relaxed));
        self.metrics.waited(what.kind(), time);
    }

    /// Who keeps this rank waiting is said to the user.
    #[cold]
    pub(crate) fn remind(&self, waited: Duration, peer: usize, state: &Stall) {
        let current = self.current.load(Ordering::Relaxed);
        let entry = self.recorder.board.entry(current);
        let is_own = entry.number.load(Ordering::Relaxed) == current;
        let what = What::from_word(entry.what.load(Ordering::Relaxed)).name();
        let call = entry.sequence.load(Ordering::Relaxed) & CALL;
        let place = match Where(entry.place.load(Ordering::Relaxed)).state() {
            Some(State::Entered | State::AtStep) if is_own => format!(" in {what} #{call}"),
            // It makes a group, or others of its process have made very many calls meanwhile.
            _ => String::new(),
        };
        // A plan names no others.
        let Some(peer) = self.peers.get(peer) else { return };
        let own = self.rank;
        warn(&format!("rank {own}{place} has waited for {waited:.0?}: {peer} {state}"));
    }

    /// It is over.
    #[inline]
    pub(crate) fn leave(&self, done: &Result<()>) {
        let number = self.current.load(Ordering::Relaxed);
        let entry = self.recorder.board.entry(number);
        let bytes = entry.bytes.load(Ordering::Relaxed);
        let what = What::from_word(entry.what.load(Ordering::Relaxed));
        // The end of a small call is about its beginning, and a second look at the clock shows.
        if bytes >= EXACT as u64 || done.is_err() || self.recorder.trace.is_some() {
            entry.end.store(self.time(bytes as usize), Ordering::Relaxed);
        }
        let place = Where(entry.place.load(Ordering::Relaxed));
        let state = if done.is_ok() { DONE } else { FAILED };
        entry.place.store(place.over(state).0, Ordering::Release);
        match done {
            Ok(()) => self.metrics.done(what.kind(), bytes),
            Err(error) => self.failed(what, error),
        }
        if let Some(trace) = &self.recorder.trace {
            let key =
                self.at.map_or(0, |at| self.recorder.board.group(at).key.load(Ordering::Relaxed));
            trace.call(self.at, key, entry, done.is_err());
        }
    }

    #[cold]
    fn failed(&self, what: What, error: &Error) {
        self.metrics.failed(what.kind(), error);
        if let Some(folder) = &self.recorder.folder
            && let Err(cause) = dump(&self.recorder, folder)
        {
            let folder = folder.display();
            warn(&format!("writing the last operations to {folder}: {cause}"));
        }
    }

    /// What reads the counters, from any thread.
    pub(crate) fn metrics(&self) -> MetricsHandle {
        MetricsHandle { metrics: Arc::clone(&self.metrics), rank: self.rank }
    }
}

impl Drop for Flight {
    /// Its calls stay in the record, with its name, until another one needs the place.
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.recorder.board.group(at).taken.store(0, Ordering::Release);
        }
    }
}
