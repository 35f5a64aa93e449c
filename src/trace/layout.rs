//! Where a record has what: a head, the communicators, and a ring of operations, all of them words.
//! May touch: link's mappings. Unsafe: addresses inside a mapping.
//! Law: version 1 never changes; whatever bytes are there, to look at them is no harm.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::mapping::Region;

/// "RINGREC" and the version.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"RINGREC\x01");
/// Operations that are kept.
pub(super) const KEPT: u64 = 1024;
/// Communicators that have a name in the record.
pub(super) const MEMBERS: usize = 63;
/// In an operation's sequence number, the number of the call; above it is of which kind that is.
pub(super) const CALL: u64 = !(3 << 62);
const LINE: usize = 64;

/// What a record begins with.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Head {
    /// [`MAGIC`] once somebody writes it.
    pub(super) magic: AtomicU64,
    pub(super) pid: AtomicU64,
    pub(super) rank: AtomicU64,
    pub(super) size: AtomicU64,
    /// Operations begun so far.
    pub(super) begun: AtomicU64,
    /// Communicators made so far.
    pub(super) made: AtomicU64,
}

/// A communicator.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Group {
    /// The number by which all its ranks know it; 0 for none.
    pub(super) key: AtomicU64,
    pub(super) rank: AtomicU64,
    pub(super) size: AtomicU64,
    /// How many communicators were made before it.
    pub(super) made: AtomicU64,
    /// 1 while it is there.
    pub(super) taken: AtomicU64,
}

/// One operation.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    /// Its number among all of this rank, from 1; 0 while it is written.
    pub(super) number: AtomicU64,
    /// See `what`.
    pub(super) what: AtomicU64,
    /// Its number on its communicator.
    pub(super) sequence: AtomicU64,
    pub(super) count: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) end: AtomicU64,
    /// See `recorder::Where`.
    pub(super) place: AtomicU64,
}

const _: () = assert!(size_of::<Head>() == LINE && size_of::<Group>() == LINE);
const _: () = assert!(size_of::<Entry>() == LINE);

/// Bytes of a record.
pub(super) const fn bytes() -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add((1 + MEMBERS + KEPT as usize) * LINE - 1)
}

/// The memory of a record.
#[derive(Debug)]
pub(super) struct Board(Region);

impl Board {
    /// That of `region`, which is as long as a record.
    pub(super) fn new(region: Region) -> Self {
        assert!(region.len() >= bytes().get());
        Self(region)
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: the first line of the region, which is page-aligned and long enough (checked
        // when this was made); a head is words that any bytes are valid for.
        unsafe { &*self.line(0).cast::<Head>() }
    }

    pub(super) fn group(&self, at: usize) -> &Group {
        // SAFETY: a line inside the region, as `at` is below that; otherwise as above.
        unsafe { &*self.line(1 + at % MEMBERS).cast::<Group>() }
    }

    /// Where the operation with this number is, or was.
    #[inline]
    pub(super) fn entry(&self, number: u64) -> &Entry {
        // SAFETY: a line inside the region, as the remainder is below that; otherwise as above.
        unsafe { &*self.line(1 + MEMBERS + (number % KEPT) as usize).cast::<Entry>() }
    }

    fn line(&self, at: usize) -> *const u8 {
        self.0.start().as_ptr().wrapping_add(at * LINE)
    }

    /// It belongs to this process from now on, which finds nothing of an earlier one.
    pub(super) fn claim(&self, rank: usize, size: usize) {
        let head = self.head();
        let pid = u64::from(std::process::id());
        if head.pid.swap(pid, Ordering::AcqRel) != pid {
            head.magic.store(0, Ordering::Release);
            head.begun.store(0, Ordering::Relaxed);
            head.made.store(0, Ordering::Relaxed);
            (0..MEMBERS).for_each(|at| {
                self.group(at).key.store(0, Ordering::Relaxed);
                self.group(at).taken.store(0, Ordering::Relaxed);
            });
            (0..KEPT).for_each(|at| self.entry(at).number.store(0, Ordering::Relaxed));
        }
        head.rank.store(rank as u64, Ordering::Relaxed);
        head.size.store(size as u64, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
    }
}
