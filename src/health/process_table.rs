//! The launcher's process table: the processes that it has started, how each ended (its exit status
//! or signal), and their last votes; and the ends of processes of other hosts. Unsafe: addresses
//! inside the mapping.
//! Law: the launcher makes the table and its ranks inherit it; any bytes in it are valid for its
//! readers; a process is known by a random id that no other process of any job has.
#![allow(unsafe_code)]

mod far;
mod launched;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;

use super::last_vote;
use crate::error::{Error, Result};
use crate::memory::mapping::Region;
pub(crate) use launched::LaunchedRanks;

/// Words of a cache line. The first line of the table has the number of started processes, the pid
/// namespace of the launcher, the layout, the number of entries for processes of this host, and the
/// number of ends of other hosts, whose entries follow those.
const LINE: usize = 8;
const STARTED: usize = 0;
const NAMESPACE: usize = 1;
const LAYOUT: usize = 2;
const LOCAL: usize = 3;
const FAR: usize = 4;
/// "RINGROL" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"RINGROL\x04");
/// Words of the line of a process: its id, its pid, how it ended, and the rank that it was started
/// as. The lines stand together, since each process searches all of them; the slots for last votes
/// follow.
const ID: usize = 0;
const PID: usize = 1;
const ENDED: usize = 2;
const RANK: usize = 3;
/// Words of a slot for the last vote of one communicator: the key of the communicator and rank,
/// whether the slot is in use, and the vote.
const SLOT: usize = (2 + last_vote::VOTE_WORDS).next_multiple_of(LINE);
const KEY: usize = 0;
const TAKEN: usize = 1;
const VOTE: usize = 2;
/// The communicators of a process with a slot, which has memory once a communicator claims it.
/// Further ones leave no vote here, so the end of such a rank counts as likely, not as certain,
/// unless its status entry has the vote.
const SLOTS: usize = 64;
/// Words for each process.
const ENTRY: usize = LINE + SLOTS * SLOT;
/// The most processes of a table. A process that is started later is in no table.
const MAX_PROCESSES: usize = 4096;

const EXITED: u64 = 1 << 32;
const KILLED: u64 = 2 << 32;

/// How a process ended, by `wait(2)` of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process exited with this status.
    Exited(u8),
    /// The signal of this number killed the process.
    Killed(i32),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(status) => write!(f, "exit with status {status}"),
            Self::Killed(number) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "killed by {signal}"),
                Err(_) => write!(f, "killed by signal {number}"),
            },
        }
    }
}

/// The process table of a job.
#[derive(Debug)]
pub struct ProcessTable(Region);

impl ProcessTable {
    /// A table for so many processes of this host and so many ends of other hosts, and the
    /// descriptor that the processes inherit. Where there is no room for all, those of other hosts
    /// have up to half of it.
    ///
    /// # Errors
    /// If there is no memory for the table.
    pub fn create(processes: usize, far: usize) -> Result<(Self, OwnedFd)> {
        let local = processes.clamp(1, MAX_PROCESSES - far.min(MAX_PROCESSES / 2));
        let capacity = local.saturating_add(far).min(MAX_PROCESSES);
        let words = LINE + capacity * ENTRY;
        let bytes = NonZeroUsize::MIN.saturating_add(words * size_of::<u64>() - 1);
        let (region, fd) = Region::shared_on_use(bytes)?;
        region.populate(std::iter::once(0..(1 + capacity) * LINE * size_of::<u64>()))?;
        let table = Self(region);
        table.word(NAMESPACE).store(pid_namespace(), Ordering::Relaxed);
        table.word(LOCAL).store(local as u64, Ordering::Relaxed);
        table.word(LAYOUT).store(MAGIC, Ordering::Relaxed);
        Ok((table, fd))
    }

    /// Maps the table that this process inherited.
    ///
    /// # Errors
    /// If the memory is no table, or has the layout of another version.
    pub(crate) fn open(fd: &OwnedFd) -> Result<Self> {
        let is_table = |len: NonZeroUsize| {
            let words = len.get() / size_of::<u64>();
            let capacity = words.saturating_sub(LINE) / ENTRY;
            let bytes = (LINE + capacity * ENTRY) * size_of::<u64>();
            (1..=MAX_PROCESSES).contains(&capacity) && len.get() == bytes
        };
        let table =
            Self(Region::open_if(fd.as_fd(), "a process table's", "the launcher", is_table)?);
        if table.word(LAYOUT).load(Ordering::Relaxed) == MAGIC {
            return Ok(table);
        }
        let reason = "keeps its table of processes in the layout of another version".into();
        Err(Error::Handshake { peer: "the launcher".into(), reason })
    }

    /// True if the process that was first started as this rank, on this host, exited with status 0.
    pub(crate) fn has_exited_well(&self, rank: usize) -> bool {
        let is_of_rank =
            |&at: &usize| self.process(at, RANK).load(Ordering::Relaxed) == rank as u64;
        self.started().find(is_of_rank).is_some_and(|at| self.ended(at) == Some(Ended::Exited(0)))
    }

    /// Reserves an entry for a process that is about to start as this rank; `None` if all are
    /// taken, or the system has no random numbers.
    pub fn reserve(&self, rank: usize) -> Option<usize> {
        let at = usize::try_from(self.word(STARTED).load(Ordering::Relaxed)).ok()?;
        if at >= self.local() {
            return None;
        }
        self.process(at, ID).store(getrandom::u64().ok()?.max(1), Ordering::Relaxed);
        self.process(at, RANK).store(rank as u64, Ordering::Relaxed);
        self.word(STARTED).store(at as u64 + 1, Ordering::Release);
        Some(at)
    }

    /// Stores the pid of a new process: called in the process itself, between fork and exec, where
    /// only a store is allowed.
    pub fn set_pid(&self, at: usize, pid: i32) {
        self.process(at, PID).store(u64::from(pid.cast_unsigned()), Ordering::Release);
    }

    /// Stores how a process ended. To be called before the system can give its pid to another one.
    pub fn set_ended(&self, at: usize, how: Ended) {
        let word = match how {
            Ended::Exited(status) => EXITED | u64::from(status),
            Ended::Killed(signal) => KILLED | u64::from(signal.cast_unsigned()),
        };
        self.process(at, ENDED).store(word, Ordering::Release);
    }

    /// How a process ended, if it has.
    fn ended(&self, at: usize) -> Option<Ended> {
        let word = self.process(at, ENDED).load(Ordering::Acquire);
        match word & !u64::from(u32::MAX) {
            EXITED => Some(Ended::Exited(word as u8)),
            KILLED => Some(Ended::Killed((word as u32).cast_signed())),
            _ => None,
        }
    }

    /// The id by which other ranks find this process. 0 if the launcher did not start this process:
    /// a child of a rank, say, which may outlive it.
    pub(crate) fn own_id(&self) -> u64 {
        if self.word(NAMESPACE).load(Ordering::Relaxed) != pid_namespace() || pid_namespace() == 0 {
            return 0;
        }
        let pid = u64::from(std::process::id());
        let is_own = |&at: &usize| {
            self.process(at, PID).load(Ordering::Acquire) == pid && self.ended(at).is_none()
        };
        let own = self.started().find(is_own);
        own.map_or(0, |at| self.id(at))
    }

    /// The id of the process of an entry.
    #[must_use]
    pub fn id(&self, at: usize) -> u64 {
        self.process(at, ID).load(Ordering::Relaxed)
    }

    /// The index of each process by its id.
    fn by_id(&self) -> BTreeMap<u64, usize> {
        self.all().map(|at| (self.id(at), at)).collect()
    }

    /// The indices of all started processes of this host, and of the ends of other hosts.
    fn all(&self) -> impl Iterator<Item = usize> {
        self.started().chain(self.far())
    }

    /// The indices of all started processes of this host.
    fn started(&self) -> Range<usize> {
        let started = self.word(STARTED).load(Ordering::Acquire);
        0..usize::try_from(started).unwrap_or(0).min(self.local())
    }

    /// The indices of the ends of other hosts.
    fn far(&self) -> Range<usize> {
        let (local, count) = (self.local(), self.word(FAR).load(Ordering::Acquire));
        local..local.saturating_add(usize::try_from(count).unwrap_or(0)).min(self.capacity())
    }

    /// The number of entries for processes of this host.
    fn local(&self) -> usize {
        let local = self.word(LOCAL).load(Ordering::Relaxed);
        usize::try_from(local).unwrap_or(0).min(self.capacity())
    }

    fn capacity(&self) -> usize {
        (self.0.len() / size_of::<u64>() - LINE) / ENTRY
    }

    fn process(&self, at: usize, word: usize) -> &AtomicU64 {
        assert!(at < self.capacity() && word < LINE);
        self.word((1 + at) * LINE + word)
    }

    /// Brings the memory of a slot.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is none.
    fn populate_slot(&self, at: usize, slot: usize) -> Result<()> {
        let from = self.slot_start(at, slot) * size_of::<u64>();
        self.0.populate(std::iter::once(from..from + SLOT * size_of::<u64>()))
    }

    fn slot_start(&self, at: usize, slot: usize) -> usize {
        (1 + self.capacity()) * LINE + (at * SLOTS + slot) * SLOT
    }

    fn slot(&self, at: usize, slot: usize, word: usize) -> &AtomicU64 {
        assert!(at < self.capacity() && slot < SLOTS && word < SLOT);
        self.word(self.slot_start(at, slot) + word)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!((at + 1) * size_of::<u64>() <= self.0.len());
        let start = self.0.start().as_ptr().wrapping_add(at * size_of::<u64>());
        // SAFETY: inside the region (checked), which is page-aligned, at a multiple of a word's
        // size; the region starts zeroed, has words only, and lives as long as the borrow.
        unsafe { &*start.cast::<AtomicU64>() }
    }
}

/// The pid namespace of this process; 0 if the system does not tell.
pub(super) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino())
}

#[cfg(test)]
mod tests {
    use super::{LAYOUT, MAGIC, Ordering, ProcessTable};

    #[test]
    fn a_table_of_another_version_is_refused() {
        let (table, fd) = ProcessTable::create(2, 0).unwrap();
        assert!(ProcessTable::open(&fd).is_ok());
        for word in [0, MAGIC + 1] {
            table.word(LAYOUT).store(word, Ordering::Relaxed);
            let error = ProcessTable::open(&fd).unwrap_err().to_string();
            assert!(error.contains("the layout of another version"), "{error}");
        }
    }
}
