//! The layout of a record in shared memory: a header, a ring of operations, and the directory of
//! communicators, all of them 64-bit words in lines of 64 bytes. The directory has room for more
//! communicators than a process keeps, and its pages come when its entries come into use.
//! Law: no word of version 2 changes its place or meaning, since the launcher and the rank may be
//! of different builds. A version with other words has another number and another length: the
//! number tells a reader, and the length tells a rank. Any bytes can be read safely.
#![allow(unsafe_code)]

use std::iter::once;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use super::short_name::NAME_WORDS;
use crate::error::Result;
use crate::memory::mapping::Region;

/// The first word of a record: "RINGREC" and the version.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"RINGREC\x02");
/// Operations in the ring: a rank's last ones.
pub(super) const OPERATIONS: u64 = 1024;
/// Communicators that have an entry at a time. As an index the number stands for no entry.
pub(super) const COMMUNICATORS: usize = 0xffff;
/// As [`COMMUNICATORS`], in a process without address space for so many: they fill what the last
/// page of 4 KiB of the ring of operations leaves.
pub(super) const FEW_COMMUNICATORS: usize = 63;
/// The number of the call in an operation's sequence word.
pub(super) const CALL: u64 = (1 << COMMUNICATOR) - 1;
/// The first bit of the communicator's entry in the sequence word, which has 16 bits.
const COMMUNICATOR: u32 = 47;
/// The bit of the sequence word of a message, which has the number of the collective before it.
pub(super) const MESSAGE: u64 = 1 << 63;
const LINE: usize = 64;
/// The lines before the directory, which every rank uses.
const FIXED_LINES: usize = 1 + OPERATIONS as usize;

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
    /// Entries of the directory that were ever in use: the first ones.
    pub(super) used: AtomicU64,
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
    /// The name; 0 where it has none.
    pub(super) name: [AtomicU64; NAME_WORDS],
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct OperationEntry {
    /// The operation's number among all of this rank, from 1; 0 while the entry is being written.
    pub(super) number: AtomicU64,
    /// The code of the operation: see `operation`.
    pub(super) what: AtomicU64,
    /// The operation's number on its communicator, the communicator's entry, and the kind: see
    /// [`sequence_word`].
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

/// Length in bytes of a record that a launcher reads.
pub(super) const fn bytes() -> NonZeroUsize {
    bytes_with(COMMUNICATORS)
}

/// Length in bytes of a record with so many entries of communicators.
pub(super) const fn bytes_with(communicators: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add((FIXED_LINES + communicators) * LINE - 1)
}

/// The sequence word of an operation on the communicator with entry `at`. `kind` is 0 or
/// [`MESSAGE`].
#[inline]
pub(super) const fn sequence_word(call: u64, at: Option<usize>, kind: u64) -> u64 {
    let at = match at {
        Some(at) => at,
        None => COMMUNICATORS,
    };
    call & CALL | (at as u64 & 0xffff) << COMMUNICATOR | kind
}

/// The entry of the communicator in a sequence word; [`COMMUNICATORS`] for none.
pub(super) const fn entry_in(sequence: u64) -> usize {
    (sequence >> COMMUNICATOR & 0xffff) as usize
}

#[derive(Debug)]
pub(super) struct RecordMemory {
    region: Region,
    /// Entries of communicators.
    communicators: usize,
}

impl RecordMemory {
    pub(super) fn new(region: Region) -> Self {
        assert!(region.len() >= bytes_with(1).get());
        // A huge page would bring all of the directory.
        region.avoid_huge_pages();
        let communicators = (region.len() / LINE - FIXED_LINES).min(COMMUNICATORS);
        Self { region, communicators }
    }

    /// Memory of this process alone.
    pub(super) fn own() -> Result<Self> {
        let region = Region::anonymous_on_use(bytes());
        let few = |_| Region::anonymous_on_use(bytes_with(FEW_COMMUNICATORS));
        let own = Self::new(region.or_else(few)?);
        own.populate()?;
        Ok(own)
    }

    /// Brings the pages that every rank uses.
    pub(super) fn populate(&self) -> Result<()> {
        self.region.populate(once(0..FIXED_LINES * LINE))
    }

    /// Brings the page of a communicator's entry.
    pub(super) fn populate_communicator(&self, at: usize) -> Result<()> {
        let start = (FIXED_LINES + at % self.communicators) * LINE;
        self.region.populate(once(start..start + LINE))
    }

    pub(super) fn header(&self) -> &RecordHeader {
        // SAFETY: the first line of the region, which is page-aligned and long enough (checked
        // when this was made); a header is words that any bytes are valid for.
        unsafe { &*self.line(0).cast::<RecordHeader>() }
    }

    pub(super) fn communicator(&self, at: usize) -> &CommunicatorEntry {
        // SAFETY: a line inside the region, as the remainder is below that; otherwise as above.
        unsafe { &*self.line(FIXED_LINES + at % self.communicators).cast::<CommunicatorEntry>() }
    }

    /// The entry of the operation with this number, or of the one that has replaced it.
    #[inline]
    pub(super) fn entry(&self, number: u64) -> &OperationEntry {
        // SAFETY: a line inside the region, as the remainder is below that; otherwise as above.
        unsafe { &*self.line(1 + (number % OPERATIONS) as usize).cast::<OperationEntry>() }
    }

    fn line(&self, at: usize) -> *const u8 {
        self.region.start().as_ptr().wrapping_add(at * LINE)
    }

    /// The entries of communicators.
    pub(super) const fn communicators(&self) -> usize {
        self.communicators
    }

    /// The entries of communicators that were ever in use, which are the first ones.
    pub(super) fn used(&self) -> usize {
        self.header().used.load(Ordering::Acquire).min(self.communicators as u64) as usize
    }

    /// Counts the entry among those that were in use.
    pub(super) fn set_used(&self, at: usize) {
        self.header().used.fetch_max(at as u64 + 1, Ordering::AcqRel);
    }

    /// Takes the record over for this process, and erases what an earlier process left in it.
    pub(super) fn claim(&self, rank: usize, size: usize) {
        let header = self.header();
        let pid = u64::from(std::process::id());
        if header.pid.swap(pid, Ordering::AcqRel) != pid {
            header.magic.store(0, Ordering::Release);
            header.begun.store(0, Ordering::Relaxed);
            header.made.store(0, Ordering::Relaxed);
            (0..self.used()).for_each(|at| {
                self.communicator(at).key.store(0, Ordering::Relaxed);
                self.communicator(at).taken.store(0, Ordering::Relaxed);
            });
            header.used.store(0, Ordering::Relaxed);
            (0..OPERATIONS).for_each(|at| self.entry(at).number.store(0, Ordering::Relaxed));
        }
        header.rank.store(rank as u64, Ordering::Relaxed);
        header.size.store(size as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }
}
