//! Announcements of device memory: a table in each rank's control block, in which the rank says
//! what memory other processes may open, and each of them answers where it has opened it.
//! Law: a rank writes its own announcements and its own answers alone. An entry is used again after
//! every opener has closed it.

use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use crate::device::cuda::control_block::ControlBlocks;
use crate::device::cuda::ipc::HANDLE_WORDS;
use crate::device::cuda::slot_layout::{ADDRESS, CACHE_LINE};
use crate::sync::FencedBy;

/// The most memory that a rank has announced at a time, dropped memory included that other ranks
/// have not closed yet.
pub(crate) const MAX_ANNOUNCEMENTS: usize = 256;

/// Byte offsets in an entry: its serial number, the serial number that its owner has dropped, and
/// the handle.
const SERIAL: usize = 0;
const RETIRED: usize = ADDRESS;
const HANDLE: usize = 2 * ADDRESS;
/// Byte offset of the openers' answers, and in the answer of one: the serial number that it has
/// opened, the address there, the driver's answer, and the serial number that it has closed.
const ANSWERS: usize = 2 * CACHE_LINE;
const OPENED: usize = 0;
const OPENED_AT: usize = ADDRESS;
const DRIVER_ANSWER: usize = 2 * ADDRESS;
const CLOSED: usize = 3 * ADDRESS;
const ANSWER_BYTES: usize = 4 * ADDRESS;

fn entry_bytes(size: usize) -> usize {
    (ANSWERS + size * ANSWER_BYTES).next_multiple_of(CACHE_LINE)
}

/// Bytes of the table in a world of `size` ranks.
pub(crate) fn announcements_bytes(size: usize) -> usize {
    MAX_ANNOUNCEMENTS * entry_bytes(size)
}

/// Memory that a rank has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) owner: usize,
    entry: usize,
    /// From 1 on; each announcement of a rank has another one.
    serial: u64,
}

impl ControlBlocks {
    fn entry_word(&self, owner: usize, entry: usize, field: usize) -> &AtomicU64 {
        self.announcement_word(owner, entry * entry_bytes(self.size()) + field)
    }

    fn answer_word(&self, at: Announcement, opener: usize, field: usize) -> &AtomicU64 {
        self.entry_word(at.owner, at.entry, ANSWERS + opener * ANSWER_BYTES + field)
    }

    /// Announces memory of this rank under a serial number; `None` if the table is full.
    pub(crate) fn announce(
        &self,
        serial: u64,
        handle: [u64; HANDLE_WORDS],
    ) -> Option<Announcement> {
        let word = |entry| self.entry_word(self.me, entry, SERIAL);
        let is_free = |&entry: &usize| word(entry).load(Ordering::Acquire) == 0;
        let entry = (0..MAX_ANNOUNCEMENTS).find(is_free)?;
        for (at, part) in handle.into_iter().enumerate() {
            self.entry_word(self.me, entry, HANDLE + at * ADDRESS).store(part, Ordering::Relaxed);
        }
        word(entry).store(serial, Ordering::Release);
        Some(Announcement { owner: self.me, entry, serial })
    }

    /// Asks the openers to close the memory, which no call uses any more.
    pub(crate) fn retire(&self, at: Announcement) {
        self.entry_word(at.owner, at.entry, RETIRED).store(at.serial, Ordering::Release);
    }

    pub(crate) fn is_retired(&self, at: Announcement) -> bool {
        self.entry_word(at.owner, at.entry, RETIRED).load(Ordering::Acquire) == at.serial
    }

    /// Frees the entry, which every opener has closed.
    pub(crate) fn free_entry(&self, at: Announcement) {
        self.entry_word(at.owner, at.entry, SERIAL).store(0, Ordering::Release);
    }

    /// The memory that a rank has announced.
    pub(crate) fn announcements(&self, owner: usize) -> impl Iterator<Item = Announcement> {
        (0..MAX_ANNOUNCEMENTS).filter_map(move |entry| {
            let serial = self.entry_word(owner, entry, SERIAL).load(Ordering::Acquire);
            (serial != 0).then_some(Announcement { owner, entry, serial })
        })
    }

    pub(crate) fn announced_handle(&self, at: Announcement) -> [u64; HANDLE_WORDS] {
        let part = |part| self.entry_word(at.owner, at.entry, HANDLE + part * ADDRESS);
        std::array::from_fn(|at| part(at).load(Ordering::Relaxed))
    }

    /// Where a rank has opened the memory, or the number of its driver's answer if it could not;
    /// `None` while it has not tried.
    pub(crate) fn opening(&self, at: Announcement, opener: usize) -> Option<Opening> {
        if self.answer_word(at, opener, OPENED).load(Ordering::Acquire) != at.serial {
            return None;
        }
        let load = |field| self.answer_word(at, opener, field).load(Ordering::Relaxed);
        Some(match load(DRIVER_ANSWER) {
            0 => Ok(load(OPENED_AT)),
            answer => Err(answer),
        })
    }

    /// Answers where this rank has opened the memory.
    pub(crate) fn answer(&self, at: Announcement, opened: Opening) {
        let store = |field, value| {
            self.answer_word(at, self.me, field).store(value, Ordering::Relaxed);
        };
        store(OPENED_AT, opened.unwrap_or(0));
        store(DRIVER_ANSWER, opened.err().unwrap_or(0));
        self.answer_word(at, self.me, OPENED).store(at.serial, Ordering::Release);
    }

    /// Answers that this rank has closed the memory.
    pub(crate) fn answer_closed(&self, at: Announcement) {
        self.answer_word(at, self.me, CLOSED).store(at.serial, Ordering::Release);
    }

    pub(crate) fn is_closed_by(&self, at: Announcement, opener: usize) -> bool {
        self.answer_word(at, opener, CLOSED).load(Ordering::Acquire) == at.serial
    }

    /// Wakes the threads of a rank that open and close memory.
    pub(crate) fn wake_for_memory(&self, rank: usize) {
        self.memory_waiters(rank).wake(FencedBy::Publishers);
    }
}

/// The address at which memory was opened, or the number of the driver's answer.
pub(crate) type Opening = Result<CUdeviceptr, u64>;
