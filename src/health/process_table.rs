//! The launcher's roll: which processes it has started, how each ended, and what each leaves to
//! those who come after it. May touch: page's keys, region, will. Unsafe: addresses in the roll.
//! Law: only memory that the launcher made and its ranks inherited; of what is read of it any bytes
//! are valid; a process is known by a number that no other one of any job has.
#![allow(unsafe_code)]

mod launched;

use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;

use super::last_vote;
use crate::error::{Error, Result};
use crate::memory::mapping::Region;
pub(crate) use launched::Launched;

/// Words of a line of the cache, of which the first of the roll says how many were started and in
/// which namespace their numbers count.
const LINE: usize = 8;
const STARTED: usize = 0;
const NAMESPACE: usize = 1;
/// Where a roll says in which layout it is.
const LAYOUT: usize = 2;
/// "RINGROL" and the version; another layout gets another number.
const MAGIC: u64 = u64::from_be_bytes(*b"RINGROL\x01");
/// Words of a process: its number in the roll, the system's number of it, how it ended.
const ENTRY: usize = 1024;
const NUMBER: usize = 0;
const PID: usize = 1;
const ENDED: usize = 2;
/// Words for what one of its communicators leaves: whose that is, is it in use, and the will.
const SLOT: usize = (2 + last_vote::WORDS).next_multiple_of(LINE);
const KEY: usize = 0;
const TAKEN: usize = 1;
const WILL: usize = 2;
/// Communicators of a process that leave something here. Those beyond leave nothing, and where
/// nothing else tells what such a rank voted for, its end is only likely.
const SLOTS: usize = (ENTRY - LINE) / SLOT;
/// No launcher starts more: who comes later is in no roll.
const MOST: usize = 4096;

const EXITED: u64 = 1 << 32;
const KILLED: u64 = 2 << 32;

/// How a process ended, as its parent was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this status.
    Exited(u8),
    /// By the signal of this number.
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

/// The roll of a job.
#[derive(Debug)]
pub struct Roll(Region);

impl Roll {
    /// A roll for so many processes, and what they inherit.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn create(processes: usize) -> Result<(Self, OwnedFd)> {
        let words = LINE + processes.clamp(1, MOST) * ENTRY;
        let bytes = NonZeroUsize::MIN.saturating_add(words * size_of::<u64>() - 1);
        let (region, fd) = Region::shared(bytes)?;
        let roll = Self(region);
        roll.word(NAMESPACE).store(namespace(), Ordering::Relaxed);
        roll.word(LAYOUT).store(MAGIC, Ordering::Relaxed);
        Ok((roll, fd))
    }

    /// The roll that this process inherited.
    ///
    /// # Errors
    /// If it is none, or one of another version.
    pub(crate) fn open(fd: &OwnedFd) -> Result<Self> {
        let is_roll = |len: NonZeroUsize| {
            let words = len.get() / size_of::<u64>();
            let places = words.saturating_sub(LINE) / ENTRY;
            (1..=MOST).contains(&places) && len.get() == (LINE + places * ENTRY) * size_of::<u64>()
        };
        let roll = Self(Region::open_if(fd.as_fd(), "a roll's", "the launcher", is_roll)?);
        if roll.word(LAYOUT).load(Ordering::Relaxed) == MAGIC {
            return Ok(roll);
        }
        let reason = "keeps its table of processes in the layout of another version".into();
        Err(Error::Handshake { peer: "the launcher".into(), reason })
    }

    /// Has the rank of this number, as it was started first, ended well?
    pub(crate) fn is_done(&self, rank: usize) -> bool {
        rank < self.places() && self.ended(rank) == Some(Ended::Exited(0))
    }

    /// A place for a process that is about to be started; none if all are taken, or the system has
    /// no random numbers.
    pub fn place(&self) -> Option<usize> {
        let at = usize::try_from(self.word(STARTED).load(Ordering::Relaxed)).ok()?;
        if at >= self.places() {
            return None;
        }
        self.entry(at, NUMBER).store(getrandom::u64().ok()?.max(1), Ordering::Relaxed);
        self.word(STARTED).store(at as u64 + 1, Ordering::Release);
        Some(at)
    }

    /// The process of a place begins: called in it, before its program does. A store, no more.
    pub fn begins(&self, at: usize, pid: i32) {
        self.entry(at, PID).store(u64::from(pid.cast_unsigned()), Ordering::Release);
    }

    /// The process of a place has ended so. To be called before its number can be another's.
    pub fn has_ended(&self, at: usize, how: Ended) {
        let word = match how {
            Ended::Exited(status) => EXITED | u64::from(status),
            Ended::Killed(signal) => KILLED | u64::from(signal.cast_unsigned()),
        };
        self.entry(at, ENDED).store(word, Ordering::Release);
    }

    /// How the process of a place ended, if it has.
    fn ended(&self, at: usize) -> Option<Ended> {
        let word = self.entry(at, ENDED).load(Ordering::Acquire);
        match word & !u64::from(u32::MAX) {
            EXITED => Some(Ended::Exited(word as u8)),
            KILLED => Some(Ended::Killed((word as u32).cast_signed())),
            _ => None,
        }
    }

    /// What the others find this process by: 0 if it is none that the launcher started, but a child
    /// of one, say, which may live when that has ended.
    pub(crate) fn own_number(&self) -> u64 {
        if self.word(NAMESPACE).load(Ordering::Relaxed) != namespace() || namespace() == 0 {
            return 0;
        }
        let pid = u64::from(std::process::id());
        let is_own = |&at: &usize| {
            self.entry(at, PID).load(Ordering::Acquire) == pid && self.ended(at).is_none()
        };
        let own = self.all().find(is_own);
        own.map_or(0, |at| self.entry(at, NUMBER).load(Ordering::Relaxed))
    }

    /// Where the process with this number is.
    fn find(&self, number: u64) -> Option<usize> {
        let is_it = |&at: &usize| self.entry(at, NUMBER).load(Ordering::Relaxed) == number;
        self.all().find(is_it).filter(|_| number != 0)
    }

    /// The places of all processes that were started.
    fn all(&self) -> std::ops::Range<usize> {
        let started = self.word(STARTED).load(Ordering::Acquire);
        0..usize::try_from(started).unwrap_or(0).min(self.places())
    }

    fn places(&self) -> usize {
        (self.0.len() / size_of::<u64>() - LINE) / ENTRY
    }

    fn entry(&self, at: usize, word: usize) -> &AtomicU64 {
        assert!(at < self.places() && word < ENTRY);
        self.word(LINE + at * ENTRY + word)
    }

    fn slot(&self, at: usize, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot < SLOTS && word < SLOT);
        self.entry(at, LINE + slot * SLOT + word)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!((at + 1) * size_of::<u64>() <= self.0.len());
        let start = self.0.start().as_ptr().wrapping_add(at * size_of::<u64>());
        // SAFETY: inside the region (checked), which is page-aligned, at a multiple of a word's
        // size; starts zeroed, is of words only, and lives as long as this.
        unsafe { &*start.cast::<AtomicU64>() }
    }
}

/// The namespace that this process's number counts in; 0 if the system does not tell.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino())
}

#[cfg(test)]
mod tests {
    use super::{LAYOUT, MAGIC, Ordering, Roll};

    #[test]
    fn a_table_of_another_version_is_refused() {
        let (roll, fd) = Roll::create(2).unwrap();
        assert!(Roll::open(&fd).is_ok());
        for word in [0, MAGIC + 1] {
            roll.word(LAYOUT).store(word, Ordering::Relaxed);
            let error = Roll::open(&fd).unwrap_err().to_string();
            assert!(error.contains("the layout of another version"), "{error}");
        }
    }
}
