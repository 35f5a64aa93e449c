//! The recorder: one record for a rank, and a writer for each of its communicators.
//! Law: from `enter` to `leave` a writer does not lock or make a system call, unless a trace is
//! written, and it allocates only the counters, in a communicator's first call.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::call_status::CallStatus;
use super::clock::{coarse, precise};
use super::dump::dump;
use super::free_entries::FreeEntries;
use super::layout::{CALL, MESSAGE, OperationEntry, RecordMemory, bytes, sequence_word};
use super::operation::OperationCode;
use super::reader::State;
use super::reconnections::Reconnections;
use super::short_name::ShortName;
use super::timeline::Trace;
use crate::error::communicator_name::CommunicatorName;
use crate::error::{Error, Peer, Result, Stall, warn};
use crate::memory::mapping::Region;
use crate::plan::Request;
use crate::schedule::{Algorithm, Step};

/// Calls of so many bytes or more are timed precisely: there the cost of the clock does not show.
const PRECISE_BYTES: usize = 64 << 10;

/// How far an operation is, in one word: its state, its step, and the peer that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position(u64);

/// The role of the peer at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The peer sends.
    From = 1,
    /// The peer receives.
    To = 2,
    /// The peer shares memory.
    Both = 3,
}

/// The first bit of the state.
const STATE: u32 = 60;
const ENTERED: u64 = 1;
const AT_STEP: u64 = 2;
const DONE: u64 = 3;
const FAILED: u64 = 4;

impl Position {
    /// At this step, with this peer.
    #[inline]
    pub(crate) const fn at(step: usize, toward: Direction, peer: usize) -> Self {
        let step = (step as u64 & 0xffff_ffff) << 28;
        Self(AT_STEP << STATE | step | (toward as u64) << 24 | peer as u64 & 0xff_ffff)
    }

    /// This position, of a call that has made so many steps before.
    #[inline]
    pub(crate) const fn after(self, steps: usize) -> Self {
        Self(self.0 + ((steps as u64 & 0xffff_ffff) << 28))
    }

    /// At step `number` of a schedule.
    #[inline]
    pub(crate) const fn of(number: usize, step: &Step) -> Self {
        if step.op.receives() {
            Self::at(number, Direction::From, step.from as usize)
        } else if step.op.sends() {
            Self::at(number, Direction::To, step.to as usize)
        } else {
            Self(AT_STEP << STATE | (number as u64 & 0xffff_ffff) << 28)
        }
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// This position, of an operation that has ended.
    const fn ended(self, state: u64) -> Self {
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

/// The record of a rank, its trace, and the folder for dumps.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(super) memory: RecordMemory,
    free: FreeEntries,
    pub(super) rank: usize,
    /// The rank's process.
    pid: u32,
    /// The folder to which the last operations are written after a failure.
    folder: Option<PathBuf>,
    pub(super) trace: Option<Trace>,
    pub(super) reconnections: Reconnections,
}

impl Recorder {
    /// The recorder of `rank`: in the launcher's memory if there is any, or else in its own.
    /// `folder` is for dumps and `traces` for traces. `again` if the rank was restarted: the traces
    /// of its earlier processes in this job are kept.
    ///
    /// # Errors
    /// If there is no memory for the record, or the trace cannot be created.
    pub(crate) fn new(
        shared: Option<Region>,
        (rank, size): (usize, usize),
        folder: Option<PathBuf>,
        traces: Option<PathBuf>,
        again: bool,
    ) -> Result<Arc<Self>> {
        let memory = match shared {
            Some(region) => RecordMemory::new(region),
            None => RecordMemory::own()?,
        };
        memory.claim(rank, size);
        let free = FreeEntries::of(&memory);
        let trace = traces.map(|traces| Trace::create(&traces, rank, again)).transpose()?;
        let (pid, reconnections) = (std::process::id(), Reconnections::default());
        Ok(Arc::new(Self { memory, free, rank, pid, folder, trace, reconnections }))
    }

    /// The launcher's memory, if it is as long as a record of this version.
    pub(crate) fn shared(fd: std::os::fd::BorrowedFd<'_>) -> Result<Region> {
        Region::open(fd, bytes(), "the launcher")
    }

    #[cfg(test)]
    pub(crate) fn record(&self) -> Option<super::reader::Record> {
        super::reader::record(&self.memory)
    }

    /// The writer of a new communicator with these ranks, all of which know it by `key`.
    pub(crate) fn communicator(
        self: &Arc<Self>,
        key: u64,
        rank: usize,
        peers: Arc<[Peer]>,
        name: Arc<CommunicatorName>,
    ) -> RecordWriter {
        let made = self.memory.header().made.fetch_add(1, Ordering::Relaxed);
        let at = self.free.take(&self.memory);
        if let Some(at) = at {
            let group = self.memory.communicator(at);
            group.key.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            group.rank.store(rank as u64, Ordering::Relaxed);
            group.size.store(peers.len() as u64, Ordering::Relaxed);
            group.made.store(made, Ordering::Relaxed);
            group.name.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            // 0 marks an empty entry.
            group.key.store(key.max(1), Ordering::Release);
        }
        let (recorder, state) = (Arc::clone(self), Arc::default());
        RecordWriter { status: CallStatus { recorder, rank, peers, name, state }, at }
    }
}

/// The writer of a communicator's calls. One thread at a time makes its calls.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    status: CallStatus,
    /// The index of its entry in the record; `None` if there was no memory for one.
    at: Option<usize>,
}

impl RecordWriter {
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.status.recorder
    }

    /// Records that the rank enters an operation: its name, whether its blocks differ in length,
    /// its request, its number on the communicator, and its bytes.
    #[inline]
    pub(crate) fn enter(
        &self,
        (name, uneven): (&str, bool),
        request: Option<&Request>,
        sequence: u64,
        bytes: usize,
    ) {
        let memory = &self.status.recorder.memory;
        let number = memory.header().begun.fetch_add(1, Ordering::Relaxed) + 1;
        self.status.state.current.store(number, Ordering::Relaxed);
        let what = OperationCode::of((name, uneven), request);
        let entry = memory.entry(number);
        entry.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.what.store(what.word(), Ordering::Relaxed);
        let kind = if request.is_some() { 0 } else { MESSAGE };
        entry.sequence.store(sequence_word(sequence, self.at, kind), Ordering::Relaxed);
        let count = request.map_or(0, |request| request.count);
        entry.count.store(count as u64, Ordering::Relaxed);
        entry.bytes.store(bytes as u64, Ordering::Relaxed);
        entry.start.store(self.time(bytes), Ordering::Relaxed);
        entry.end.store(0, Ordering::Relaxed);
        entry.position.store(ENTERED << STATE, Ordering::Relaxed);
        entry.number.store(number, Ordering::Release);
    }

    /// The entry of the current operation.
    #[inline]
    fn entry(&self) -> &OperationEntry {
        self.status.recorder.memory.entry(self.status.state.current.load(Ordering::Relaxed))
    }

    /// The current operation.
    #[inline]
    fn operation(&self) -> OperationCode {
        OperationCode::from_word(self.entry().what.load(Ordering::Relaxed))
    }

    #[inline]
    fn time(&self, bytes: usize) -> u64 {
        if bytes < PRECISE_BYTES && self.status.recorder.trace.is_none() {
            coarse()
        } else {
            precise()
        }
    }

    /// Records the algorithm of the current operation, and the steps of its walk over links.
    #[inline]
    pub(crate) fn set_plan(&self, algorithm: Algorithm, steps: u64) {
        self.status.state.steps.store(steps, Ordering::Relaxed);
        self.status.state.steps_before.store(0, Ordering::Relaxed);
        self.entry().what.store(self.operation().by(algorithm).word(), Ordering::Relaxed);
    }

    /// Records that the current operation has made so many steps in earlier rounds.
    pub(crate) fn set_steps_before(&self, steps: u64) {
        self.status.state.steps_before.store(steps, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_position(&self, position: Position) {
        self.entry().position.store(position.0, Ordering::Relaxed);
        if let Some(trace) = &self.status.recorder.trace {
            trace.step(self.at, position);
        }
    }

    /// Records that the current operation has sent so many bytes over a link.
    #[inline]
    pub(crate) fn add_sent(&self, bytes: usize) {
        self.status.state.metrics().add_sent(self.operation().kind(), bytes as u64);
    }

    /// Records that the current operation sleeps until the peer acts.
    #[cold]
    pub(crate) fn set_direction(&self, toward: Direction, peer: usize) {
        let entry = self.entry();
        let step = Position(entry.position.load(Ordering::Relaxed)).step();
        let position = Position::at(step as usize, toward, peer);
        entry.position.store(position.0, Ordering::Relaxed);
    }

    #[cold]
    pub(crate) fn add_wait(&self, time: Duration) {
        self.status.state.metrics().add_wait(self.operation().kind(), time);
    }

    /// Warns the user of the peer that keeps this rank waiting.
    #[cold]
    pub(crate) fn warn_of_silence(&self, waited: Duration, peer: usize, state: &Stall) {
        if let Some(text) = self.silence_notice(waited, peer, state) {
            warn(&text);
        }
    }

    /// The warning; `None` in a communicator in construction, which has no list of peers.
    pub(super) fn silence_notice(
        &self,
        waited: Duration,
        peer: usize,
        state: &Stall,
    ) -> Option<String> {
        let current = self.status.state.current.load(Ordering::Relaxed);
        let entry = self.status.recorder.memory.entry(current);
        let is_own = entry.number.load(Ordering::Relaxed) == current;
        let what = OperationCode::from_word(entry.what.load(Ordering::Relaxed)).name();
        let call = entry.sequence.load(Ordering::Relaxed) & CALL;
        let in_call = match Position(entry.position.load(Ordering::Relaxed)).state() {
            Some(State::Entered | State::AtStep) if is_own => format!(" in {what} #{call}"),
            // No operation is current (a group is being made), or its entry was reused.
            _ => String::new(),
        };
        let peer = self.status.peers.get(peer)?;
        let (own, name) = (self.status.rank, &self.status.name);
        Some(format!("rank {own}{in_call}{name} has waited for {waited:.0?}: {peer} {state}"))
    }

    /// Records that the current operation has ended, and how.
    #[inline]
    pub(crate) fn leave(&self, error: Option<&Error>) {
        let entry = self.entry();
        let bytes = entry.bytes.load(Ordering::Relaxed);
        let what = OperationCode::from_word(entry.what.load(Ordering::Relaxed));
        // A small call ends about when it began; to read the clock again would show in its time.
        if bytes >= PRECISE_BYTES as u64 || error.is_some() || self.status.recorder.trace.is_some()
        {
            entry.end.store(self.time(bytes as usize), Ordering::Relaxed);
        }
        let position = Position(entry.position.load(Ordering::Relaxed));
        let state = if error.is_none() { DONE } else { FAILED };
        entry.position.store(position.ended(state).0, Ordering::Release);
        match error {
            None => self.status.state.metrics().done(what.kind(), bytes),
            Some(error) => self.failed(what, error),
        }
        if let Some(trace) = &self.status.recorder.trace {
            let key = self.at.map_or(0, |at| {
                self.status.recorder.memory.communicator(at).key.load(Ordering::Relaxed)
            });
            let name = self.status.name.get();
            trace.call(self.at, (key, name.as_deref()), entry, error.is_some());
        }
    }

    #[cold]
    fn failed(&self, what: OperationCode, error: &Error) {
        self.status.state.metrics().failed(what.kind(), error);
        if let Some(folder) = &self.status.recorder.folder
            && let Err(cause) = dump(&self.status.recorder, folder)
        {
            let folder = folder.display();
            warn(&format!("writing the last operations to {folder}: {cause}"));
        }
    }

    /// Names the communicator, here and in the record.
    pub(crate) fn set_name(&self, name: &str) {
        self.status.name.set(name, |name| {
            if let Some(at) = self.at {
                self.status.recorder.memory.communicator(at).set_name(ShortName::of(name));
            }
        });
    }

    /// A reader of the state of the calls, for any thread.
    pub(crate) fn status(&self) -> &CallStatus {
        &self.status
    }
}

impl Drop for RecordWriter {
    /// Frees the entry. The calls keep their communicator's name until another one takes the entry.
    /// The record is the parent's where a forked child drops its copy.
    fn drop(&mut self) {
        self.status.state.is_closed.store(true, Ordering::Release);
        if let Some(at) = self.at.filter(|_| self.status.recorder.pid == std::process::id()) {
            self.status.recorder.free.give_back(&self.status.recorder.memory, at);
        }
    }
}
