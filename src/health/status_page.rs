//! The status page of a process, which the other processes of its host map: the exit futex, and for
//! each communicator the current call, the failure cause and the last vote. Unsafe: addresses
//! inside the mapping.
//! Law: any bytes in a page are valid for its readers, and no reader pairs the number of one call
//! with the fingerprint of another.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::control_message::Failure;
use super::{exit_futex, last_vote};
use crate::error::cause::{FailureCause, WORDS};
use crate::error::{Error, Result};
use crate::memory::mapping::Region;
use crate::transport::descriptor_passing::pass;

/// The most communicators of a process with an entry in its page; subgroups on one host have theirs
/// in their own memory. Failures in further ones show only on links and control channels.
const MAX_COMMUNICATORS: usize = 511;
const LINE: usize = 64;
/// Fingerprints per communicator, of its latest calls. All but the oldest can be read: that one may
/// just be overwritten.
const FINGERPRINTS: usize = LINE / size_of::<u64>();
/// Bytes of a last vote in the page.
const VOTE_BYTES: usize = (last_vote::VOTE_WORDS * size_of::<u64>()).next_multiple_of(LINE);

/// The progress of a rank with the calls of one communicator.
#[repr(C, align(64))]
pub(super) struct Progress {
    /// The key of the communicator and rank, by [`entry_key`]; 0 for none.
    pub(super) key: AtomicU64,
    /// The number of the latest call that the rank has entered, and of the latest it has left.
    pub(super) entered: AtomicU64,
    pub(super) done: AtomicU64,
    /// Not 0 while a communicator has this entry: 1, and in the upper half the rank plus one for
    /// whose message the rank waits. The cause of a failed one stays until the next.
    pub(super) taken: AtomicU64,
    /// The failure cause, with [`FIRST_HAND`] in its first word; 0 there without a failure.
    cause: [AtomicU64; WORDS],
}

impl Progress {
    pub(super) fn wait_for_message(&self, peer: Option<usize>) {
        let peer = peer.map_or(0, |peer| peer as u64 + 1);
        self.taken.store(peer << 32 | 1, Ordering::Relaxed);
    }

    /// The rank for whose message the rank waits outside calls.
    pub(super) fn waits_for(&self) -> Option<usize> {
        (self.taken.load(Ordering::Relaxed) >> 32).checked_sub(1).map(|rank| rank as usize)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.cause[0].load(Ordering::Acquire) != 0
    }

    /// The failure of the rank, if it has failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        let first = self.cause[0].load(Ordering::Acquire);
        let [_, a, b, c] = self.cause.each_ref().map(|word| word.load(Ordering::Relaxed));
        let cause = FailureCause::from_words([first & !FIRST_HAND, a, b, c])?;
        Some(Failure { cause, first_hand: first & FIRST_HAND != 0 })
    }

    /// Publishes the failure cause; only the first one counts.
    pub(super) fn fail(&self, cause: &FailureCause, first_hand: bool) {
        if self.has_failed() {
            return;
        }
        let words = cause.words();
        for (place, word) in self.cause.iter().zip(words).skip(1) {
            place.store(word, Ordering::Relaxed);
        }
        let first = if first_hand { words[0] | FIRST_HAND } else { words[0] };
        self.cause[0].store(first, Ordering::Release);
    }
}

/// The rank found the cause itself; no other rank reported it.
const FIRST_HAND: u64 = 1 << 63;

/// The fingerprints of the latest calls, each at its number modulo the length; 0 is unknown.
type Fingerprints = [AtomicU64; FINGERPRINTS];

/// The mapped status page of a process; or entries of the same form in the memory of a subgroup,
/// one for each of its ranks, whose first line is not used.
#[derive(Clone, Debug)]
pub(super) struct StatusPage {
    region: Arc<Region>,
    /// Where it begins in the region, in bytes.
    start: usize,
    entries: usize,
}

impl StatusPage {
    pub(super) fn bytes() -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(Self::bytes_of(MAX_COMMUNICATORS) - 1)
    }

    /// Bytes with so many entries.
    pub(super) const fn bytes_of(entries: usize) -> usize {
        (1 + 2 * entries) * LINE + entries * VOTE_BYTES
    }

    /// A page with a region of its own.
    pub(super) fn whole(region: Region) -> Self {
        Self { region: Arc::new(region), start: 0, entries: MAX_COMMUNICATORS }
    }

    /// The entries of a subgroup of so many ranks, from this byte of its memory on.
    pub(super) fn of_group(region: Arc<Region>, start: usize, ranks: usize) -> Self {
        assert!(start.is_multiple_of(LINE));
        assert!(start.saturating_add(Self::bytes_of(ranks)) <= region.len());
        Self { region, start, entries: ranks }
    }

    /// An entry for this rank alone.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn of_one_rank(key: u64) -> Result<Self> {
        let len = NonZeroUsize::MIN.saturating_add(Self::bytes_of(1) - 1);
        let page = Self::of_group(Arc::new(Region::anonymous(len)?), 0, 1);
        page.claim_of_rank(0, key)?;
        Ok(page)
    }

    /// Where the fingerprints of entry `at` are.
    fn fingerprints_of(&self, at: usize) -> Range<usize> {
        let from = self.start + (1 + self.entries + at) * LINE;
        from..from + LINE
    }

    /// Where the last vote of entry `at` is.
    fn vote_of(&self, at: usize) -> Range<usize> {
        let from = self.start + (1 + 2 * self.entries) * LINE + at * VOTE_BYTES;
        from..from + VOTE_BYTES
    }

    /// A word of the last vote of entry `at`: see [`last_vote`].
    pub(super) fn vote_word(&self, at: usize, word: usize) -> &AtomicU64 {
        assert!(at < self.entries && word < VOTE_BYTES / size_of::<u64>());
        let from = self.vote_of(at).start + word * size_of::<u64>();
        let start = self.region.start().as_ptr().wrapping_add(from);
        // SAFETY: inside the region (checked), at a multiple of its size, and of words only.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    pub(super) fn exit_word(&self) -> &AtomicU32 {
        // SAFETY: the region is page-aligned, long enough (checked where it is mapped), starts
        // zeroed and lives as long as the borrow.
        unsafe { self.region.start().cast().as_ref() }
    }

    pub(super) fn pid(&self) -> &AtomicU32 {
        let second = self.region.start().as_ptr().wrapping_add(size_of::<AtomicU32>());
        // SAFETY: as above; the second word.
        unsafe { &*second.cast::<AtomicU32>() }
    }

    pub(super) fn progress(&self, at: usize) -> &Progress {
        assert!(at < self.entries);
        let from = self.start + (1 + at) * LINE;
        let start = self.region.start().as_ptr().wrapping_add(from);
        // SAFETY: inside the region (checked), at a multiple of a line; an entry is atomics only,
        // for which any bytes are valid.
        unsafe { &*start.cast::<Progress>() }
    }

    fn fingerprints(&self, at: usize) -> &Fingerprints {
        assert!(at < self.entries);
        let from = self.fingerprints_of(at).start;
        let start = self.region.start().as_ptr().wrapping_add(from);
        // SAFETY: as above; a line of words.
        unsafe { &*start.cast::<Fingerprints>() }
    }

    /// Publishes that the rank of entry `at` enters a call.
    pub(super) fn enter(&self, at: usize, call: u64, fingerprint: u64) {
        // Fingerprint first: a reader that meets the fingerprint of a later call here also sees
        // that the call before it was entered, and so discards what it read.
        self.fingerprints(at)[call as usize % FINGERPRINTS].store(fingerprint, Ordering::Release);
        self.progress(at).entered.store(call, Ordering::Release);
    }

    /// The fingerprint of call number `call` at entry `at`, while the page still has it.
    pub(super) fn fingerprint(&self, at: usize, call: u64) -> Option<u64> {
        let has = |entered: u64| entered >= call && entered - call < FINGERPRINTS as u64 - 1;
        let entered = &self.progress(at).entered;
        if !has(entered.load(Ordering::Acquire)) {
            return None;
        }
        let fingerprint =
            self.fingerprints(at)[call as usize % FINGERPRINTS].load(Ordering::Acquire);
        fence(Ordering::Acquire);
        (fingerprint != 0 && has(entered.load(Ordering::Relaxed))).then_some(fingerprint)
    }

    /// Claims an entry for a new communicator, unless all are taken. The entry of a failed one is
    /// claimed last, because its peers may look for the failure cause there.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is no memory for the entry.
    pub(super) fn claim(&self, key: u64) -> Result<Option<usize>> {
        let mut all = 0..self.entries;
        let mut unfailed = all.clone().filter(|&at| !self.progress(at).has_failed());
        let taken = unfailed.find(|&at| self.take(at)).or_else(|| all.find(|&at| self.take(at)));
        taken.map(|at| self.begin(at, key)).transpose()
    }

    /// Claims the entry of a rank of a subgroup, whose memory this is.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub(super) fn claim_of_rank(&self, rank: usize, key: u64) -> Result<()> {
        let line = self.start + (1 + rank) * LINE;
        self.region.populate(std::iter::once(line..line + LINE))?;
        self.take(rank);
        self.begin(rank, key).map(drop)
    }

    /// Takes entry `at`; false if another communicator has it.
    fn take(&self, at: usize) -> bool {
        let taken = &self.progress(at).taken;
        taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Clears an entry that was taken, and shows it to readers.
    fn begin(&self, at: usize, key: u64) -> Result<usize> {
        let progress = self.progress(at);
        // Readers find no entry until the key is there again.
        progress.key.store(0, Ordering::Release);
        let parts = [self.fingerprints_of(at), self.vote_of(at)];
        let populated = self.region.populate(parts.into_iter());
        populated.inspect_err(|_| progress.taken.store(0, Ordering::Release))?;
        self.vote_word(at, 0).store(0, Ordering::Relaxed);
        let words = [&progress.entered, &progress.done].into_iter();
        let words = words.chain(&progress.cause).chain(self.fingerprints(at));
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        progress.key.store(key, Ordering::Release);
        Ok(at)
    }

    /// The index of the entry with this key.
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        (0..self.entries).find(|&at| self.progress(at).key.load(Ordering::Acquire) == key)
    }
}

/// The status page of this process, for as long as the process has communicators.
#[derive(Debug)]
pub(super) struct OwnStatusPage {
    pub(super) page: StatusPage,
    /// The descriptor by which other processes map the page.
    fd: OwnedFd,
    _exit_futex: exit_futex::ExitFutex,
}

/// The page with the pid of its process: a forked child needs a page of its own.
static OWN: Mutex<(u32, Weak<OwnStatusPage>)> = Mutex::new((0, Weak::new()));

pub(super) fn own_status_page() -> Result<Arc<OwnStatusPage>> {
    let mut current = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some(own) = current.1.upgrade().filter(|_| current.0 == pid) {
        return Ok(own);
    }
    let (region, fd) = Region::shared_on_use(StatusPage::bytes())?;
    // Readers look at all entries for a key. What belongs to an entry has memory once the entry is
    // claimed: most processes have few communicators.
    region.populate(std::iter::once(0..(1 + MAX_COMMUNICATORS) * LINE))?;
    let page = StatusPage::whole(region);
    page.pid().store(pid, Ordering::Relaxed);
    let held = exit_futex::hold(Arc::clone(&page.region));
    let _exit_futex = held.map_err(|error| {
        let doing = "starting the thread that holds the exit futex";
        Error::no_thread(doing, error)
    })?;
    let own = Arc::new(OwnStatusPage { page, fd, _exit_futex });
    *current = (pid, Arc::downgrade(&own));
    Ok(own)
}

/// The descriptor of the status page of this process.
#[derive(Clone, Debug)]
pub(crate) struct StatusPageFd(pub(super) Arc<OwnStatusPage>);

impl StatusPageFd {
    /// Passes the page's descriptor to the rank that errors call `peer`.
    ///
    /// # Errors
    /// If the peer does not take it.
    pub(crate) fn pass(&self, stream: &impl AsRawFd, peer: &str) -> Result<()> {
        let fd = self.0.fd.try_clone().map_err(|e| Error::io("duplicating a status page", e))?;
        pass(stream, fd, peer)
    }
}

/// The key of the entry of a rank in the page of its process, for a communicator's own key; never
/// 0.
pub(super) fn entry_key(key: u64, rank: usize) -> u64 {
    let mixed = (key ^ (rank as u64).rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).max(1)
}
