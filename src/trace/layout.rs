//! The layout of a record in shared memory: a header, the communicators, and a ring of operations,
//! all of them 64-bit words in lines of 64 bytes.
//! Law: no word of version 1 changes its place or meaning, since the launcher and the rank may be
//! of different builds; any bytes can be read safely.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use super::short_name::NAME_WORDS;
use crate::memory::mapping::Region;

/// The first word of a record: "RINGREC" and the version.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"RINGREC\x01");
/// Operations in the ring: a rank's last ones.
pub(super) const OPERATIONS: u64 = 1024;
/// Communicators that have an entry at a time.
pub(super) const COMMUNICATORS: usize = 63;
/// The number of the call in an operation's sequence word; the two bits above say its kind.
pub(super) const CALL: u64 = !(3 << 62);
/// The bit of the sequence word of a message, which has the number of the collective before it.
pub(super) const MESSAGE: u64 = 1 << 63;
const LINE: usize = 64;

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RecordHeader {
    /// [`MAGIC`] once a rank writes the record.
    pub(super) magic: AtomicU64,
    pub(super) pid: AtomicU64,
    pub(super) rank: AtomicU64,
    pub(super) size: AtomicU64,
    /// Operations that the rank has begun so far.
    pub(super) begun: AtomicU64,
    /// Communicators that the rank has made so far.
    pub(super) made: AtomicU64,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct CommunicatorEntry {
    /// The key of the communicator, equal on all its ranks; 0 in an empty or unfinished entry.
    pub(super) key: AtomicU64,
    pub(super) rank: AtomicU64,
    pub(super) size: AtomicU64,
    /// Communicators that the rank had made before it.
    pub(super) made: AtomicU64,
    /// 1 while the communicator exists.
    pub(super) taken: AtomicU64,
    /// The name; 0 where it has none. Writers that knew no names leave what is there, which is 0 in
    /// memory that a launcher makes.
    pub(super) name: [AtomicU64; NAME_WORDS],
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct OperationEntry {
    /// The operation's number among all of this rank, from 1; 0 while the entry is being written.
    pub(super) number: AtomicU64,
    /// The code of the operation: see `operation`.
    pub(super) what: AtomicU64,
    /// The operation's number on its communicator.
    pub(super) sequence: AtomicU64,
    pub(super) count: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) end: AtomicU64,
    /// The position in the schedule: see `recorder::Position`.
    pub(super) position: AtomicU64,
}

const _: () = assert!(size_of::<RecordHeader>() == LINE && size_of::<CommunicatorEntry>() == LINE);
const _: () = assert!(size_of::<OperationEntry>() == LINE);

/// Length of a record in bytes.
pub(super) const fn bytes() -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add((1 + COMMUNICATORS + OPERATIONS as usize) * LINE - 1)
}

#[derive(Debug)]
pub(super) struct RecordMemory(Region);

impl RecordMemory {
    pub(super) fn new(region: Region) -> Self {
        assert!(region.len() >= bytes().get());
        Self(region)
    }

    pub(super) fn header(&self) -> &RecordHeader {
        // SAFETY: the first line of the region, which is page-aligned and long enough (checked
        // when this was made); a header is words that any bytes are valid for.
        unsafe { &*self.line(0).cast::<RecordHeader>() }
    }

    pub(super) fn communicator(&self, at: usize) -> &CommunicatorEntry {
        // SAFETY: a line inside the region, as `at` is below that; otherwise as above.
        unsafe { &*self.line(1 + at % COMMUNICATORS).cast::<CommunicatorEntry>() }
    }

    /// The entry of the operation with this number, or of the one that has replaced it.
    #[inline]
    pub(super) fn entry(&self, number: u64) -> &OperationEntry {
        // SAFETY: a line inside the region, as the remainder is below that; otherwise as above.
        unsafe {
            &*self.line(1 + COMMUNICATORS + (number % OPERATIONS) as usize).cast::<OperationEntry>()
        }
    }

    fn line(&self, at: usize) -> *const u8 {
        self.0.start().as_ptr().wrapping_add(at * LINE)
    }

    /// Takes the record over for this process, and erases what an earlier process left in it.
    pub(super) fn claim(&self, rank: usize, size: usize) {
        let header = self.header();
        let pid = u64::from(std::process::id());
        if header.pid.swap(pid, Ordering::AcqRel) != pid {
            header.magic.store(0, Ordering::Release);
            header.begun.store(0, Ordering::Relaxed);
            header.made.store(0, Ordering::Relaxed);
            (0..COMMUNICATORS).for_each(|at| {
                self.communicator(at).key.store(0, Ordering::Relaxed);
                self.communicator(at).taken.store(0, Ordering::Relaxed);
            });
            (0..OPERATIONS).for_each(|at| self.entry(at).number.store(0, Ordering::Relaxed));
        }
        header.rank.store(rank as u64, Ordering::Relaxed);
        header.size.store(size as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }
}
