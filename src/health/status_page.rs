//! The page of a process, which the others of its host map: that it lives, and where each of its
//! communicators is. May touch: region, robust. Unsafe: addresses inside regions.
//! Law: of what is read of it any bytes are valid, and nobody pairs a number with another call.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{exit_futex, last_vote};
use crate::error::cause::{Blame, WORDS};
use crate::error::{Error, Result};
use crate::memory::mapping::Region;
use crate::transport::descriptor_passing::pass;

/// Communicators of a process that have marks; those beyond have none, and are found out about by
/// what their links tell.
pub(super) const MARKS: usize = 63;
const LINE: usize = 64;
/// Of so many calls a rank's mark says what they are.
const PRINTS: usize = LINE / size_of::<u64>();
/// Two copies, one of which counts, and which one it is.
const WILLS: usize = (last_vote::WORDS * size_of::<u64>()).next_multiple_of(LINE);

/// How far a rank is with the calls of one communicator.
#[repr(C, align(64))]
pub(super) struct Mark {
    /// Which communicator; 0 for none.
    pub(super) key: AtomicU64,
    /// The number of the latest call that it has entered, and of the latest that it is done with.
    pub(super) entered: AtomicU64,
    pub(super) done: AtomicU64,
    /// 1 while a communicator has it: what one that failed says stays until another one comes.
    pub(super) taken: AtomicU64,
    /// 0, or because of whom it has failed; with [`FIRST_HAND`] in the first.
    cause: [AtomicU64; WORDS],
}

impl Mark {
    /// Has it failed?
    pub(super) fn has_failed(&self) -> bool {
        self.cause[0].load(Ordering::Acquire) != 0
    }

    /// Because of whom it has, and whether it found that out by itself.
    pub(super) fn cause(&self) -> Option<(Blame, bool)> {
        let first = self.cause[0].load(Ordering::Acquire);
        let [_, a, b, c] = self.cause.each_ref().map(|word| word.load(Ordering::Relaxed));
        Some((Blame::of([first & !FIRST_HAND, a, b, c])?, first & FIRST_HAND != 0))
    }

    /// It has failed. What is said first counts.
    pub(super) fn fail(&self, blame: &Blame, first_hand: bool) {
        if self.has_failed() {
            return;
        }
        let words = blame.words();
        for (place, word) in self.cause.iter().zip(words).skip(1) {
            place.store(word, Ordering::Relaxed);
        }
        let first = if first_hand { words[0] | FIRST_HAND } else { words[0] };
        self.cause[0].store(first, Ordering::Release);
    }
}

/// Nobody else has told it.
const FIRST_HAND: u64 = 1 << 63;

/// In place of what a call is: it is being prepared, and messages that come before it may follow.
pub(super) const PREPARED: u64 = 1;

/// What the latest calls are, each in the place of its number. 0 is not known, or none of them.
type Prints = [AtomicU64; PRINTS];

/// The page of a process.
#[derive(Clone, Debug)]
pub(super) struct Page(pub(super) Arc<Region>);

impl Page {
    pub(super) fn bytes() -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add((2 * MARKS + 1) * LINE + MARKS * WILLS - 1)
    }

    /// A word of what the rank with this mark leaves: the first says which copy counts, from 1.
    pub(super) fn will(&self, at: usize, word: usize) -> &AtomicU64 {
        assert!(at < MARKS && word < WILLS / size_of::<u64>());
        let from = (1 + 2 * MARKS) * LINE + at * WILLS + word * size_of::<u64>();
        let start = self.0.start().as_ptr().wrapping_add(from);
        // SAFETY: inside the region (checked), at a multiple of its size, and of words only.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// The word that the kernel marks.
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: the region is page-aligned, longer than that (checked where it is mapped), starts
        // zeroed and lives as long as this.
        unsafe { self.0.start().cast().as_ref() }
    }

    /// The process's number, beside it.
    pub(super) fn pid(&self) -> &AtomicU32 {
        let second = self.0.start().as_ptr().wrapping_add(size_of::<AtomicU32>());
        // SAFETY: as above; the second word.
        unsafe { &*second.cast::<AtomicU32>() }
    }

    pub(super) fn mark(&self, at: usize) -> &Mark {
        assert!(at < MARKS);
        let start = self.0.start().as_ptr().wrapping_add((1 + at) * LINE);
        // SAFETY: inside the region (checked), at a multiple of a line; a mark is atomics only, for
        // which any bytes are valid.
        unsafe { &*start.cast::<Mark>() }
    }

    fn prints(&self, at: usize) -> &Prints {
        assert!(at < MARKS);
        let start = self.0.start().as_ptr().wrapping_add((1 + MARKS + at) * LINE);
        // SAFETY: as above; a line of words.
        unsafe { &*start.cast::<Prints>() }
    }

    /// The rank with this mark enters a call, of which `print` says what it is.
    pub(super) fn enter(&self, at: usize, call: u64, print: u64) {
        // Whoever finds the print of a later call finds that the one before has begun.
        self.prints(at)[call as usize % PRINTS].store(print, Ordering::Release);
        self.mark(at).entered.store(call, Ordering::Release);
    }

    /// What the rank with this mark calls, or has called, by this number, if it still says so.
    pub(super) fn print(&self, at: usize, call: u64) -> Option<u64> {
        let is_said = |entered: u64| entered >= call && entered - call < PRINTS as u64 - 1;
        let entered = &self.mark(at).entered;
        if !is_said(entered.load(Ordering::Acquire)) {
            return None;
        }
        let print = self.prints(at)[call as usize % PRINTS].load(Ordering::Acquire);
        fence(Ordering::Acquire);
        (print > PREPARED && is_said(entered.load(Ordering::Relaxed))).then_some(print)
    }

    /// Has the rank with this mark prepared the call with this number, and not entered it yet?
    pub(super) fn prepares(&self, at: usize, call: u64) -> bool {
        self.prints(at)[call as usize % PRINTS].load(Ordering::Acquire) == PREPARED
    }

    /// A new communicator has this mark, if it is free.
    pub(super) fn take(&self, at: usize, key: u64) -> bool {
        let mark = self.mark(at);
        let taken = mark.taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            // Whoever reads meanwhile takes it for none.
            mark.key.store(0, Ordering::Release);
            self.will(at, 0).store(0, Ordering::Relaxed);
            let words = [&mark.entered, &mark.done].into_iter();
            let words = words.chain(&mark.cause).chain(self.prints(at));
            words.for_each(|word| word.store(0, Ordering::Relaxed));
            mark.key.store(key, Ordering::Release);
        }
        taken.is_ok()
    }

    /// Where a communicator's mark is.
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        (0..MARKS).find(|&at| self.mark(at).key.load(Ordering::Acquire) == key)
    }
}

/// That of this process, for as long as it has communicators.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) page: Page,
    /// What others map it by.
    fd: OwnedFd,
    _held: exit_futex::Holder,
}

/// With the process that it is of: a child that was forked needs its own.
static OWN: Mutex<(u32, Weak<Own>)> = Mutex::new((0, Weak::new()));

pub(super) fn own() -> Result<Arc<Own>> {
    let mut known = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some(own) = known.1.upgrade().filter(|_| known.0 == pid) {
        return Ok(own);
    }
    let (region, fd) = Region::shared(Page::bytes())?;
    let page = Page(Arc::new(region));
    page.pid().store(pid, Ordering::Relaxed);
    let held = exit_futex::hold(Arc::clone(&page.0));
    let _held = held.map_err(|error| {
        let doing = "starting the thread by which others see that this process lives";
        Error::no_thread(doing, error)
    })?;
    let own = Arc::new(Own { page, fd, _held });
    *known = (pid, Arc::downgrade(&own));
    Ok(own)
}

/// The descriptor of this process's page, while there are communicators.
#[derive(Clone, Debug)]
pub(crate) struct Told(pub(super) Arc<Own>);

impl Told {
    /// Passes the page's descriptor to the rank that errors call `peer`.
    ///
    /// # Errors
    /// If the peer does not take it.
    pub(crate) fn pass(&self, stream: &UnixStream, peer: &str) -> Result<()> {
        let fd = self.0.fd.try_clone().map_err(|e| Error::io("duplicating a status page", e))?;
        pass(stream, fd, peer)
    }
}

/// What the mark of a rank of a communicator is found by; 0 is none.
pub(super) fn key_of(key: u64, rank: usize) -> u64 {
    let mixed = (key ^ (rank as u64).rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).max(1)
}
