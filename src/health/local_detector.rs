//! The local failure detector: dead, stopped and late ranks of the same host, and ranks in
//! different calls, by the status pages that their processes share.
//! Law: the kernel marks the page of a dying process before it frees any memory, so peers see a
//! death at once, however large the process is. A rank that ended after its last call is no
//! failure.

mod subgroup;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::control_message::Failure;
use super::exit_futex;
use super::last_vote::{self, LAST_VOTE_BYTES};
pub(crate) use super::status_page::StatusPageFd;
use super::status_page::{OwnStatusPage, StatusPage, entry_key, own_status_page};
use crate::error::cause::FailureCause;
use crate::error::{Result, Stall};
use crate::memory::mapping::Region;
use crate::sync::Instant;
use crate::transport::descriptor_passing::receive;
use crate::transport::{Fault, MismatchField};
pub(crate) use subgroup::HostPages;
use subgroup::ParentCall;

/// The status pages of the ranks of one communicator on this host.
#[derive(Debug, Default)]
pub(crate) struct LocalDetector {
    /// The page of this process.
    own: Option<Arc<OwnStatusPage>>,
    /// Where the entry of this communicator is: in that page, or in the subgroup's memory.
    mine: Option<(StatusPage, usize)>,
    pub(super) me: usize,
    key: u64,
    /// Ranks of the communicator.
    pub(super) size: usize,
    /// The ranks that this one has a page of. A rank that waits looks at each of them, and at no
    /// other rank: there may be a thousand.
    pub(super) peers: BTreeMap<usize, LocalPeer>,
    /// The call that made this communicator, if it is a subgroup that a call of its parent made.
    parent_call: Option<Box<ParentCall>>,
}

/// A rank of this host.
#[derive(Debug)]
pub(super) struct LocalPeer {
    /// The page of its process.
    pub(super) page: StatusPage,
    /// The entries among which the rank's is, and where it was at the latest look.
    entries: StatusPage,
    entry: AtomicUsize,
}

impl From<StatusPage> for LocalPeer {
    fn from(page: StatusPage) -> Self {
        Self { entries: page.clone(), page, entry: AtomicUsize::new(0) }
    }
}

impl LocalDetector {
    /// A detector for rank `me` of a communicator with the common key `key`, and the descriptor of
    /// this process's page, for the peers.
    ///
    /// # Errors
    /// If there is no memory for the page, or no thread for the exit futex.
    pub(crate) fn new(me: usize, size: usize, key: u64) -> Result<(Self, StatusPageFd)> {
        let own = own_status_page()?;
        let peers = BTreeMap::new();
        let own_key = entry_key(key, me);
        // Without room in the page, at least this rank knows its own call.
        let mine = Some(match own.page.claim(own_key)? {
            Some(at) => (own.page.clone(), at),
            None => (StatusPage::of_one_rank(own_key)?, 0),
        });
        let fd = StatusPageFd(Arc::clone(&own));
        let own = Some(own);
        Ok((Self { own, mine, me, key, size, peers, parent_call: None }, fd))
    }

    /// Receives and maps the status page of `peer`, a process of this host that errors call `name`.
    ///
    /// # Errors
    /// If no page comes before the deadline.
    pub(crate) fn receive(
        &mut self,
        peer: usize,
        stream: &impl AsRawFd,
        name: &str,
        deadline: Instant,
    ) -> Result<()> {
        let fd = receive(stream, "status page", name, deadline)?;
        let page = StatusPage::whole(Region::open(fd.as_fd(), StatusPage::bytes(), name)?);
        self.peers.insert(peer, page.into());
        Ok(())
    }

    /// Adds a rank that is a thread of this process.
    pub(crate) fn add_thread(&mut self, peer: usize) {
        let page = self.own.as_ref().map(|own| own.page.clone());
        self.peers.extend(page.map(|page| (peer, page.into())));
    }

    /// Publishes that this rank enters a call; `fingerprint` is 0 if it is not known yet.
    pub(crate) fn enter(&self, sequence: u64, fingerprint: u64) {
        if let Some((entries, at)) = &self.mine {
            entries.enter(*at, sequence, fingerprint);
        }
    }

    /// Publishes that this rank is still in the call, or in it again.
    pub(crate) fn reenter(&self, sequence: u64) {
        self.leave(sequence.saturating_sub(1));
    }

    /// Publishes that this rank has left the call.
    pub(crate) fn leave(&self, sequence: u64) {
        if let Some((entries, at)) = &self.mine {
            entries.progress(*at).done.store(sequence, Ordering::Release);
        }
    }

    /// Publishes that this rank waits outside calls for a message of `peer`, or no more.
    pub(crate) fn wait_for_message(&self, peer: Option<usize>) {
        if let Some((entries, at)) = &self.mine {
            entries.progress(*at).wait_for_message(peer);
        }
    }

    /// Publishes that this rank has failed, and will enter no further call; only the first cause
    /// counts. `first_hand`: this rank found the cause itself.
    pub(crate) fn fail(&self, cause: &FailureCause, first_hand: bool) {
        if let Some((entries, at)) = &self.mine {
            entries.progress(*at).fail(cause, first_hand);
        }
    }

    /// The number of the call that this rank is in.
    pub(crate) fn current(&self) -> Option<u64> {
        let (entries, at) = self.mine.as_ref()?;
        let progress = entries.progress(*at);
        let [entered, done] =
            [&progress.entered, &progress.done].map(|it| it.load(Ordering::Relaxed));
        (entered > done).then_some(entered)
    }

    /// The state of a rank by its latest heartbeat, which it sent while it waited in a call. One
    /// from a call that this rank has left does not tell whether the rank has come to a later one.
    pub(super) fn silence(&self) -> impl Fn((usize, u64)) -> (usize, Stall) + use<> {
        let left = self
            .mine
            .as_ref()
            .map_or(0, |(entries, at)| entries.progress(*at).done.load(Ordering::Relaxed));
        move |(rank, waited)| {
            (rank, Stall::Silent { waited: if waited > left { waited } else { 0 } })
        }
    }

    pub(crate) fn has_page_of(&self, peer: usize) -> bool {
        self.peers.contains_key(&peer)
    }

    /// The ranks that this one has a page of, ascending.
    fn ranks(&self) -> impl Iterator<Item = usize> {
        self.peers.keys().copied()
    }

    /// True if the status page of `peer` tells of its communicator: whether it lives or has failed.
    pub(crate) fn has_entry_of(&self, peer: usize) -> bool {
        self.entry(peer).is_some()
    }

    /// True if the process of a rank of this host has ended.
    pub(crate) fn has_ended(&self, peer: usize) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| exit_futex::owner_died(peer.page.exit_word()))
    }

    /// Publishes the last vote of this rank, for survivors to read after its death.
    pub(crate) fn publish_last_vote(&self, vote: &[u8; LAST_VOTE_BYTES]) {
        let Some((entries, at)) = &self.mine else { return };
        last_vote::publish(|word| entries.vote_word(*at, word), vote);
    }

    /// `Some` if the process of a rank of this host is dead, with its last vote; no vote inside if
    /// the rank had no entry in its page.
    pub(crate) fn last_vote_of(&self, peer: usize) -> Option<Option<[u8; LAST_VOTE_BYTES]>> {
        let LocalPeer { page, entries, .. } = self.peers.get(&peer)?;
        if !exit_futex::owner_died(page.exit_word()) {
            return None;
        }
        let Some(at) = entries.find(entry_key(self.key, peer)) else { return Some(None) };
        Some(Some(last_vote::read(|word| entries.vote_word(at, word))))
    }

    /// Where the entry of a rank is; `None` for a rank of another host, and after the
    /// rank has dropped its communicator.
    fn entry(&self, peer: usize) -> Option<(&StatusPage, usize)> {
        let LocalPeer { entries, entry, .. } = self.peers.get(&peer)?;
        let (key, known) = (entry_key(self.key, peer), entry.load(Ordering::Relaxed));
        if entries.progress(known).key.load(Ordering::Acquire) == key {
            return Some((entries, known));
        }
        let at = entries.find(key)?;
        entry.store(at, Ordering::Relaxed);
        Some((entries, at))
    }

    /// The numbers of the latest call that a rank has entered, and of the latest it has left.
    fn calls_of(&self, peer: usize) -> Option<[u64; 2]> {
        let (page, at) = self.entry(peer)?;
        let progress = page.progress(at);
        Some([&progress.entered, &progress.done].map(|word| word.load(Ordering::Acquire)))
    }

    /// A rank of this host that delays this rank's call: rather a stopped process, else a rank that
    /// has not entered the call.
    pub(crate) fn stalled_peer(&self) -> Option<(usize, Stall)> {
        let current = self.current()?;
        let behind = |peer: &usize| {
            let calls = self.calls_of(*peer)?;
            (calls[1] < current).then_some(calls)
        };
        let stopped = |peer: usize| {
            let calls = behind(&peer)?;
            let pid = self.peers.get(&peer)?.page.pid().load(Ordering::Relaxed);
            is_stopped(pid).then_some((peer, Stall::Paused { entered: calls[0] }))
        };
        let absent = |peer: usize| {
            let [entered, done] = behind(&peer)?;
            // A rank inside an earlier call waits there for a third rank.
            let is_outside = entered < current && entered <= done;
            is_outside.then_some((peer, Stall::NeverEntered { entered }))
        };
        let found = self.ranks().find_map(stopped);
        found.or_else(|| {
            let (mut peer, mut stall) = self.ranks().find_map(absent)?;
            // An absent rank may wait for a message of another absent one, and so on.
            for _ in self.ranks() {
                let next = self.entry(peer).and_then(|(page, at)| page.progress(at).waits_for());
                let Some(found) = next.filter(|&next| next != peer).and_then(absent) else { break };
                (peer, stall) = found;
            }
            Some((peer, stall))
        })
    }

    /// The rank for which `peer` waits in a message, and that one in turn, and so on: `peer` if it
    /// waits for none, or for itself by others.
    pub(crate) fn end_of_messages(&self, peer: usize) -> usize {
        let waits_for =
            |rank| self.entry(rank).and_then(|(page, at)| page.progress(at).waits_for());
        let chain = std::iter::successors(Some(peer), |&rank| {
            waits_for(rank).filter(|&next| next != self.me && next < self.size)
        });
        let mut chain = chain.take(self.size);
        chain.find(|&rank| waits_for(rank).is_none()).unwrap_or(peer)
    }

    /// The fingerprint of this rank's call of this number, while its page still has it.
    pub(crate) fn fingerprint(&self, call: u64) -> Option<u64> {
        self.mine.as_ref().and_then(|(entries, at)| entries.fingerprint(*at, call))
    }

    /// A rank whose call of the same number differs from this rank's, or that reports such a
    /// difference; and the difference.
    pub(crate) fn mismatched_peer(&self) -> Option<(usize, Fault)> {
        let current = self.current();
        let ours = current.and_then(|call| self.fingerprint(call));
        self.ranks().find_map(|peer| {
            let (page, at) = self.entry(peer)?;
            if let Some(Failure { cause, .. }) = self.failure(peer)
                && let Some(fault) = cause.as_mismatch(self.me, ours)
            {
                return Some((cause.culprit, fault));
            }
            let (ours, theirs) = (ours?, page.fingerprint(at, current?)?);
            let fault = Fault::Mismatch { field: MismatchField::Fingerprint, ours, theirs };
            (ours != theirs).then_some((peer, fault))
        })
    }

    /// The failure that a rank reports, here or in the parent's call that made this communicator.
    pub(super) fn failure(&self, peer: usize) -> Option<Failure> {
        let Some((entries, at)) = self.entry(peer) else { return self.failure_before(peer) };
        entries.progress(at).failure().filter(|failure| failure.cause.is_within(self.size))
    }

    /// The failures that ranks report.
    pub(super) fn failures(&self) -> impl Iterator<Item = (usize, Failure)> {
        self.ranks().filter_map(|peer| Some((peer, self.failure(peer)?)))
    }

    /// A rank that has failed before the end of this rank's call, and its failure cause.
    pub(crate) fn failed_peer(&self) -> Option<(usize, Fault)> {
        let current = self.current()?;
        // A rank without an entry that reports a failure never had this communicator.
        let is_before = |peer| self.calls_of(peer).is_none_or(|[_, done]| done < current);
        let mut failures = self.failures().filter(|&(peer, _)| is_before(peer));
        failures.find_map(|(peer, failure)| failure.fault(peer, self.me))
    }

    /// A dead rank without which this rank's call cannot end, and the call in which it died.
    pub(crate) fn dead_peer(&self) -> Option<(usize, Fault)> {
        let current = self.current()?;
        self.peers.iter().find_map(|(&peer, LocalPeer { page, .. })| {
            if !exit_futex::owner_died(page.exit_word()) {
                return None;
            }
            let [entered, done] = self.calls_of(peer)?;
            // A rank that ended after its own failure is not the cause of this one.
            let (page, at) = self.entry(peer)?;
            if page.progress(at).has_failed() {
                return None;
            }
            let evidence = match entered.cmp(&current) {
                _ if done >= current => return None,
                std::cmp::Ordering::Less => format!("its process ended before call #{current}"),
                _ => format!("its process ended in call #{entered}"),
            };
            Some((peer, Fault::Lost(evidence)))
        })
    }

    /// Why `peer` does not answer outside calls of all ranks: its failure cause or its death, or
    /// else the death or failure cause of another rank.
    pub(crate) fn cause_outside_calls(&self, peer: usize) -> Option<(usize, Fault)> {
        let failed = |peer: usize| self.failure(peer)?.fault(peer, self.me);
        let dead = |peer: usize| {
            // A rank that has dropped its communicator before has no entry, and is no cause.
            let (page, _) = self.entry(peer)?;
            let is_first = self.failure(peer).is_none() && exit_futex::owner_died(page.exit_word());
            is_first.then(|| (peer, Fault::Lost("its process ended".into())))
        };
        let own = failed(peer).or_else(|| dead(peer));
        own.or_else(|| self.ranks().find_map(dead)).or_else(|| self.ranks().find_map(failed))
    }

    /// A rank of this host whose process is stopped: rather `peer` than another one.
    pub(crate) fn paused_peer(&self, peer: usize) -> Option<(usize, Stall)> {
        let mut all = std::iter::once(peer).chain(self.ranks());
        all.find_map(|peer| {
            let pid = self.peers.get(&peer)?.page.pid().load(Ordering::Relaxed);
            let [entered, _] = self.calls_of(peer)?;
            is_stopped(pid).then_some((peer, Stall::Paused { entered }))
        })
    }

    /// The call that a rank of this host is in.
    pub(crate) fn call_of(&self, peer: usize) -> Option<u64> {
        let [entered, done] = self.calls_of(peer)?;
        (entered > done).then_some(entered)
    }
}

/// True if a process of this host is stopped, by a signal or a debugger: see proc(5). A rank looks
/// while it waits in a call, so nothing is allocated.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let (mut path, mut stat) = ([0; 32], [0; 256]);
    let mut rest = &mut path[..];
    if write!(rest, "/proc/{pid}/stat").is_err() {
        return false;
    }
    let unused = rest.len();
    let path = OsStr::from_bytes(&path[..path.len() - unused]);
    let read = File::open(path).and_then(|mut file| file.read(&mut stat)).unwrap_or(0);
    // The name of the program stands before its state, and may have brackets itself.
    let name_end = stat[..read].windows(2).rposition(|two| two == b") ");
    let state = name_end.and_then(|at| stat[..read].get(at + 2));
    matches!(state, Some(b'T' | b't'))
}

impl Drop for LocalDetector {
    /// Removes the entry of this communicator, so that no peer waits for the rank. The entry of a
    /// failed one stays readable for its cause until another communicator claims it.
    fn drop(&mut self) {
        if let Some((entries, at)) = self.mine.take() {
            let progress = entries.progress(at);
            if !progress.has_failed() {
                progress.key.store(0, Ordering::Release);
            }
            progress.taken.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
