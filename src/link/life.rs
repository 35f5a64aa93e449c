//! Who of a host's ranks lives, and which call each is in: a page of each process, which the others
//! map. May touch: region, robust. Unsafe: addresses inside regions.
//! Law: the kernel marks the page of a process that ends before it gives back any memory, so all
//! others see it at once, however large it was; who ended after its last call was done with it.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::region::Region;
use super::robust;
use crate::error::{Error, Result, Stall};

/// Communicators of a process that have marks; those beyond have none, and are found out about by
/// what their links tell.
const MARKS: usize = 31;
const LINE: usize = 64;
/// Bytes of what a rank leaves to those who come after it.
pub(crate) const WILL: usize = 272;
/// Two copies, one of which counts, and which one it is.
const WILLS: usize = 2 * WILL + LINE;

/// How far a rank is with the calls of one communicator.
#[repr(C, align(64))]
struct Mark {
    /// Which communicator; 0 for none.
    key: AtomicU64,
    /// The number of the latest call that it has entered, and of the latest that it is done with.
    entered: AtomicU64,
    done: AtomicU64,
    /// 0, or one more than the rank that it has failed because of.
    cause: AtomicU64,
    /// 1 while a communicator has it: what one that failed says stays until another one comes.
    taken: AtomicU64,
}

/// The page of a process.
#[derive(Clone, Debug)]
struct Page(Arc<Region>);

impl Page {
    fn bytes() -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add((MARKS + 1) * LINE + MARKS * WILLS - 1)
    }

    /// A word of what the rank with this mark leaves: the first says which copy counts, from 1.
    fn will(&self, at: usize, word: usize) -> &AtomicU64 {
        assert!(at < MARKS && word < WILLS / size_of::<u64>());
        let from = (1 + MARKS) * LINE + at * WILLS + word * size_of::<u64>();
        let start = self.0.start().as_ptr().wrapping_add(from);
        // SAFETY: inside the region (checked), at a multiple of its size, and of words only.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// The word that the kernel marks.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the region is page-aligned, longer than that (checked where it is mapped), starts
        // zeroed and lives as long as this.
        unsafe { self.0.start().cast().as_ref() }
    }

    /// The process's number, beside it.
    fn pid(&self) -> &AtomicU32 {
        let second = self.0.start().as_ptr().wrapping_add(size_of::<AtomicU32>());
        // SAFETY: as above; the second word.
        unsafe { &*second.cast::<AtomicU32>() }
    }

    fn mark(&self, at: usize) -> &Mark {
        assert!(at < MARKS);
        let start = self.0.start().as_ptr().wrapping_add((1 + at) * LINE);
        // SAFETY: inside the region (checked), at a multiple of a line; a mark is atomics only, for
        // which any bytes are valid.
        unsafe { &*start.cast::<Mark>() }
    }

    /// Where a communicator's mark is.
    fn find(&self, key: u64) -> Option<usize> {
        (0..MARKS).find(|&at| self.mark(at).key.load(Ordering::Acquire) == key)
    }
}

/// That of this process, for as long as it has communicators.
#[derive(Debug)]
struct Own {
    page: Page,
    /// What others map it by.
    fd: OwnedFd,
    _held: robust::Holder,
}

/// With the process that it is of: a child that was forked needs its own.
static OWN: Mutex<(u32, Weak<Own>)> = Mutex::new((0, Weak::new()));

fn own() -> Result<Arc<Own>> {
    let mut known = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some(own) = known.1.upgrade().filter(|_| known.0 == pid) {
        return Ok(own);
    }
    let (region, fd) = Region::shared(Page::bytes())?;
    let page = Page(Arc::new(region));
    page.pid().store(pid, Ordering::Relaxed);
    let held = robust::hold(Arc::clone(&page.0));
    let _held = held.map_err(|error| {
        Error::io("starting the thread by which others see that this process lives", error)
    })?;
    let own = Arc::new(Own { page, fd, _held });
    *known = (pid, Arc::downgrade(&own));
    Ok(own)
}

/// The descriptor of this process's page, while there are communicators.
#[derive(Clone, Debug)]
pub(crate) struct Told(Arc<Own>);

impl AsFd for Told {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// What a communicator knows of its ranks' lives.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// This rank's page, and its mark there.
    mine: Option<(Arc<Own>, usize)>,
    me: usize,
    key: u64,
    /// The other processes', by rank, as far as they are on this host.
    peers: Vec<Option<Page>>,
}

impl Lives {
    /// Those of rank `me` of a communicator of so many, which all know by this number, and the
    /// descriptor that the others map this one's page by.
    ///
    /// # Errors
    /// If there is no memory, or no thread, for the page.
    pub(crate) fn new(me: usize, size: usize, key: u64) -> Result<(Self, Told)> {
        let own = own()?;
        let peers = (0..size).map(|_| None).collect();
        let own_key = key_of(key, me);
        let free = |at: &usize| {
            let mark = own.page.mark(*at);
            let taken = mark.taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                // Whoever reads meanwhile takes it for none.
                mark.key.store(0, Ordering::Release);
                mark.cause.store(0, Ordering::Relaxed);
                own.page.will(*at, 0).store(0, Ordering::Relaxed);
                mark.entered.store(0, Ordering::Relaxed);
                mark.done.store(0, Ordering::Relaxed);
                mark.key.store(own_key, Ordering::Release);
            }
            taken.is_ok()
        };
        let mine = (0..MARKS).find(free);
        let mine = mine.map(|at| (Arc::clone(&own), at));
        Ok((Self { mine, me, key, peers }, Told(own)))
    }

    /// Another rank of this host, by what it handed over.
    ///
    /// # Errors
    /// If that is no such page.
    pub(crate) fn add(&mut self, peer: usize, fd: &OwnedFd, name: &str) -> Result<()> {
        let page = Page(Arc::new(Region::open(fd.as_fd(), Page::bytes(), name)?));
        self.peers[peer] = Some(page);
        Ok(())
    }

    /// Another rank that is a thread of this process.
    pub(crate) fn add_beside(&mut self, peer: usize) {
        self.peers[peer] = self.mine.as_ref().map(|(own, _)| own.page.clone());
    }

    /// This rank enters the call with this number.
    pub(crate) fn enter(&self, sequence: u64) {
        if let Some((own, at)) = &self.mine {
            own.page.mark(*at).entered.store(sequence, Ordering::Release);
        }
    }

    /// It is done with it.
    pub(crate) fn leave(&self, sequence: u64) {
        if let Some((own, at)) = &self.mine {
            own.page.mark(*at).done.store(sequence, Ordering::Release);
        }
    }

    /// It has failed because of `culprit`, or of itself, and comes to no call any more. What is
    /// said first counts.
    pub(crate) fn fail(&self, culprit: Option<usize>) {
        if let Some((own, at)) = &self.mine {
            let word = &own.page.mark(*at).cause;
            let cause = culprit.unwrap_or(self.me) as u64 + 1;
            let _ = word.compare_exchange(0, cause, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The call that this rank is in.
    pub(crate) fn current(&self) -> Option<u64> {
        let (own, at) = self.mine.as_ref()?;
        let mark = own.page.mark(*at);
        let [entered, done] = [&mark.entered, &mark.done].map(|it| it.load(Ordering::Relaxed));
        (entered > done).then_some(entered)
    }

    /// Is there something to be known of a rank by its page?
    pub(crate) fn knows(&self, peer: usize) -> bool {
        self.peers.get(peer).is_some_and(Option::is_some)
    }

    /// Leaves this to those who come after this rank, whenever it ends.
    pub(crate) fn leave_will(&self, will: &[u8; WILL]) {
        let Some((own, at)) = &self.mine else { return };
        let counts = own.page.will(*at, 0);
        let next = if counts.load(Ordering::Relaxed) == 1 { 2 } else { 1 };
        for (word, bytes) in will.as_chunks().0.iter().enumerate() {
            own.page
                .will(*at, copy(next) + word)
                .store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        counts.store(next, Ordering::Release);
    }

    /// Has a rank of this host ended? Then what it left; none if that can't be known.
    pub(crate) fn will_of(&self, peer: usize) -> Option<Option<[u8; WILL]>> {
        let page = self.peers.get(peer)?.as_ref().filter(|page| robust::is_dead(page.word()))?;
        let Some(at) = page.find(key_of(self.key, peer)) else { return Some(None) };
        let counts = page.will(at, 0).load(Ordering::Acquire).min(2);
        let mut will = [0; WILL];
        if counts > 0 {
            for (word, bytes) in will.as_chunks_mut().0.iter_mut().enumerate() {
                *bytes = page.will(at, copy(counts) + word).load(Ordering::Relaxed).to_le_bytes();
            }
        }
        Some(Some(will))
    }

    /// The latest call that a rank of this host entered, and that it is done with; none if it has
    /// left, or nothing is known of it.
    fn calls(&self, peer: usize) -> Option<[u64; 2]> {
        let page = self.peers.get(peer)?.as_ref()?;
        let mark = page.mark(page.find(key_of(self.key, peer))?);
        Some([&mark.entered, &mark.done].map(|word| word.load(Ordering::Acquire)))
    }

    /// The rank of this host, if any, that keeps the others from the end of this rank's call: a
    /// process that is stopped, or else who has not called so much yet.
    pub(crate) fn stalled(&self) -> Option<(usize, Stall)> {
        let current = self.current()?;
        let behind = |peer: &usize| {
            let calls = self.calls(*peer)?;
            (calls[1] < current).then_some(calls)
        };
        let stopped = |peer: usize| {
            let calls = behind(&peer)?;
            let pid = self.peers[peer].as_ref()?.pid().load(Ordering::Relaxed);
            is_stopped(pid).then_some((peer, Stall::Paused { entered: calls[0] }))
        };
        let absent = |peer: usize| {
            let [entered, _] = behind(&peer)?;
            (entered < current).then_some((peer, Stall::NeverEntered { entered }))
        };
        let ranks = 0..self.peers.len();
        ranks.clone().find_map(stopped).or_else(|| ranks.clone().find_map(absent))
    }

    /// The rank, if any, that another one has failed because of; and how that is known.
    pub(crate) fn blamed(&self) -> Option<(usize, String)> {
        let current = self.current()?;
        (0..self.peers.len()).find_map(|peer| {
            let page = self.peers[peer].as_ref()?;
            let mark = page.mark(page.find(key_of(self.key, peer))?);
            let cause = mark.cause.load(Ordering::Acquire);
            let culprit = usize::try_from(cause).ok()?.checked_sub(1)?;
            // Who is meant finds out what of by itself.
            let counts = culprit != self.me && mark.done.load(Ordering::Acquire) < current;
            let evidence = match culprit == peer {
                true => "it failed, or was aborted".into(),
                false => format!("rank {peer} gave up on it"),
            };
            (counts && culprit < self.peers.len()).then_some((culprit, evidence))
        })
    }

    /// The rank, if any, that has ended and without which this rank's call can't; and where it was.
    pub(crate) fn dead(&self) -> Option<(usize, String)> {
        let current = self.current()?;
        (0..self.peers.len()).find_map(|peer| {
            let page = self.peers[peer].as_ref()?;
            if !robust::is_dead(page.word()) {
                return None;
            }
            let [entered, done] = self.calls(peer)?;
            // Who ended after a failure is not its cause.
            if page.mark(page.find(key_of(self.key, peer))?).cause.load(Ordering::Acquire) != 0 {
                return None;
            }
            let evidence = match entered.cmp(&current) {
                _ if done >= current => return None,
                std::cmp::Ordering::Less => format!("its process ended before call #{current}"),
                _ => format!("its process ended in call #{entered}"),
            };
            Some((peer, evidence))
        })
    }

    /// The rank, if any, that has ended or was given up, for a meeting outside calls that all ranks
    /// of a host come to.
    pub(crate) fn missed(&self) -> Option<(usize, String)> {
        let cause = |peer: usize| {
            let page = self.peers[peer].as_ref()?;
            let cause = page.mark(page.find(key_of(self.key, peer))?).cause.load(Ordering::Acquire);
            Some((page, usize::try_from(cause).ok()?))
        };
        let dead = |peer: usize| {
            let (page, cause) = cause(peer)?;
            let is_first = cause == 0 && robust::is_dead(page.word());
            is_first.then(|| (peer, "its process ended".to_owned()))
        };
        let blamed = |peer: usize| {
            let culprit = cause(peer)?.1.checked_sub(1)?;
            let counts = culprit != self.me && culprit != peer && culprit < self.peers.len();
            counts.then(|| (culprit, format!("rank {peer} gave up on it")))
        };
        let ranks = 0..self.peers.len();
        ranks.clone().find_map(dead).or_else(|| ranks.clone().find_map(blamed))
    }
}

/// What the mark of a rank of a communicator is found by; 0 is none.
fn key_of(key: u64, rank: usize) -> u64 {
    let mixed = (key ^ (rank as u64).rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).max(1)
}

/// Where a copy of a will begins.
fn copy(number: u64) -> usize {
    1 + if number == 2 { WILL / size_of::<u64>() } else { 0 }
}

/// Is a process of this host stopped, by a signal or a debugger?
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may hold anything, brackets too.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

impl Drop for Lives {
    /// Who has left is missed by nobody; what it failed because of others may still ask.
    fn drop(&mut self) {
        if let Some((own, at)) = self.mine.take() {
            let mark = own.page.mark(at);
            if mark.cause.load(Ordering::Relaxed) == 0 {
                mark.key.store(0, Ordering::Release);
            }
            mark.taken.store(0, Ordering::Release);
        }
    }
}
