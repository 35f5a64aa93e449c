//! The local failure detector: dead, stopped and late ranks of the same host, and ranks in
//! different calls, by the pages of their processes and the status entries of the ranks.
//! Law: the kernel marks the page of a dying process before it frees any memory, so peers see a
//! death at once, however large the process is. A rank that ended after its last call is no
//! failure.

mod subgroup;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::control_message::Failure;
use super::last_vote::{self, LAST_VOTE_BYTES};
use super::process_page::{OwnPage, ProcessPage, own_page};
use super::status_entry::{Progress, StatusEntry};
use crate::error::cause::FailureCause;
use crate::error::{Error, Result, Stall};
use crate::memory::mapping::Region;
use crate::sync::Instant;
use crate::transport::descriptor_passing::{pass, receive};
use crate::transport::{Fault, MismatchField};
pub(crate) use subgroup::HostPages;
use subgroup::ParentCall;

/// The ranks of one communicator on a host, as one of them sees them.
#[derive(Debug, Default)]
pub(crate) struct LocalDetector {
    /// This rank's own entry, and the page of its process.
    mine: Option<(StatusEntry, Arc<OwnPage>)>,
    pub(super) me: usize,
    /// Ranks of the communicator.
    pub(super) size: usize,
    /// The ranks of this host that this one maps. A rank that waits looks at each of them, and at
    /// no other rank: there may be a thousand. Subgroups share the map.
    pub(super) peers: Arc<BTreeMap<usize, LocalPeer>>,
    /// The call that made this communicator, if it is a subgroup that a call of its parent made.
    parent_call: Option<Box<ParentCall>>,
}

/// A rank of this host.
#[derive(Clone, Debug)]
pub(super) struct LocalPeer {
    /// The page of its process.
    pub(super) page: ProcessPage,
    pub(super) entry: StatusEntry,
}

/// The descriptors by which a rank's peers map what it shows to them.
#[derive(Debug)]
pub(crate) struct StatusFds {
    own: Arc<OwnPage>,
    entry: OwnedFd,
}

impl StatusFds {
    /// Passes them to the rank that errors call `peer`.
    ///
    /// # Errors
    /// If the peer does not take them.
    pub(crate) fn pass(&self, stream: &impl AsRawFd, peer: &str) -> Result<()> {
        for fd in [&self.own.fd, &self.entry] {
            let fd = fd.try_clone().map_err(|e| Error::io("duplicating a descriptor", e))?;
            pass(stream, fd, peer)?;
        }
        Ok(())
    }
}

impl LocalDetector {
    /// A detector for rank `me` of a communicator of processes, and the descriptors for its peers.
    ///
    /// # Errors
    /// If there is no memory for the entry, or no thread for the exit futex.
    pub(crate) fn new(me: usize, size: usize) -> Result<(Self, StatusFds)> {
        let own = own_page()?;
        let (region, fd) = Region::shared_on_use(StatusEntry::BYTES)?;
        let mine = StatusEntry::at(Arc::new(region), 0);
        mine.open()?;
        let fds = StatusFds { own: Arc::clone(&own), entry: fd };
        let (mine, peers) = (Some((mine, own)), Arc::default());
        Ok((Self { mine, me, size, peers, parent_call: None }, fds))
    }

    /// Receives and maps what `peer` passes, a process of this host that errors call `name`.
    ///
    /// # Errors
    /// If nothing comes before the deadline.
    pub(crate) fn receive(
        &mut self,
        peer: usize,
        stream: &impl AsRawFd,
        name: &str,
        deadline: Instant,
    ) -> Result<()> {
        let next = |what| receive(stream, what, name, deadline);
        let page = ProcessPage::open(next("process page")?.as_fd(), name)?;
        let entry = next("status entry")?;
        let entry = Region::open(entry.as_fd(), StatusEntry::BYTES, name)?;
        let entry = StatusEntry::at(Arc::new(entry), 0);
        Arc::make_mut(&mut self.peers).insert(peer, LocalPeer { page, entry });
        Ok(())
    }

    /// Memory of this process for the entries of its ranks.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn private_memory(size: usize) -> Result<Arc<Region>> {
        Region::anonymous(Self::entry_bytes(size)).map(Arc::new)
    }

    /// A detector for rank `me` of a communicator, whose ranks `near` are threads of this process.
    ///
    /// # Errors
    /// If there is no memory for the entry, or no thread for the exit futex.
    pub(crate) fn of_threads(
        (me, size): (usize, usize),
        near: impl Iterator<Item = usize>,
        memory: &Arc<Region>,
    ) -> Result<Self> {
        let own = own_page()?;
        let entry = |rank| Self::entry_in((memory, 0), rank);
        let mine = entry(me);
        mine.open()?;
        let peer = |rank| (rank, LocalPeer { page: own.page.clone(), entry: entry(rank) });
        let peers = Arc::new(near.filter(|&rank| rank != me).map(peer).collect());
        Ok(Self { mine: Some((mine, own)), me, size, peers, parent_call: None })
    }

    /// Publishes that this rank enters a call; `fingerprint` is 0 if it is not known yet.
    pub(crate) fn enter(&self, sequence: u64, fingerprint: u64) {
        if let Some((mine, _)) = &self.mine {
            mine.enter(sequence, fingerprint);
        }
    }

    /// Publishes that this rank is still in the call, or in it again.
    pub(crate) fn reenter(&self, sequence: u64) {
        self.leave(sequence.saturating_sub(1));
    }

    /// Publishes that this rank has left the call.
    pub(crate) fn leave(&self, sequence: u64) {
        if let Some((mine, _)) = &self.mine {
            mine.progress().done.store(sequence, Ordering::Release);
        }
    }

    /// Publishes that this rank waits outside calls for a message of `peer`, or no more.
    pub(crate) fn wait_for_message(&self, peer: Option<usize>) {
        if let Some((mine, _)) = &self.mine {
            mine.progress().wait_for_message(peer);
        }
    }

    /// Publishes that this rank has failed, and will enter no further call; only the first cause
    /// counts. `first_hand`: this rank found the cause itself.
    pub(crate) fn fail(&self, cause: &FailureCause, first_hand: bool) {
        if let Some((mine, _)) = &self.mine {
            mine.progress().fail(cause, first_hand);
        }
    }

    /// The number of the call that this rank is in.
    pub(crate) fn current(&self) -> Option<u64> {
        let progress = self.mine.as_ref()?.0.progress();
        let [entered, done] =
            [&progress.entered, &progress.done].map(|it| it.load(Ordering::Relaxed));
        (entered > done).then_some(entered)
    }

    /// The state of a rank by its latest heartbeat, which it sent while it waited in a call. One
    /// from a call that this rank has left does not tell whether the rank has come to a later one.
    pub(super) fn silence(&self) -> impl Fn((usize, u64)) -> (usize, Stall) + use<> {
        let left =
            self.mine.as_ref().map_or(0, |(mine, _)| mine.progress().done.load(Ordering::Relaxed));
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

    /// True if the entry of `peer` tells of its communicator: whether it lives or has failed.
    pub(crate) fn has_entry_of(&self, peer: usize) -> bool {
        self.entry(peer).is_some()
    }

    /// True if the process of a rank of this host has ended.
    pub(crate) fn has_ended(&self, peer: usize) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| peer.page.has_ended())
    }

    /// Publishes the last vote of this rank, for survivors to read after its death.
    pub(crate) fn publish_last_vote(&self, vote: &[u8; LAST_VOTE_BYTES]) {
        let Some((mine, _)) = &self.mine else { return };
        last_vote::publish(|word| mine.vote_word(word), vote);
    }

    /// The latest vote of a rank of this host, also after the rank has dropped its communicator;
    /// `None` if it never had one.
    pub(crate) fn vote_of(&self, peer: usize) -> Option<[u8; LAST_VOTE_BYTES]> {
        let entry = &self.peers.get(&peer)?.entry;
        let vote = || last_vote::read(|word| entry.vote_word(word));
        entry.progress().was_opened().then(vote)
    }

    /// The entry of a rank; `None` for a rank of another host, and after the rank has dropped its
    /// communicator.
    fn entry(&self, peer: usize) -> Option<&StatusEntry> {
        self.peers.get(&peer).map(|peer| &peer.entry).filter(|entry| entry.progress().is_open())
    }

    /// The progress of a rank, as [`Self::entry`].
    fn progress(&self, peer: usize) -> Option<&Progress> {
        self.entry(peer).map(StatusEntry::progress)
    }

    /// The numbers of the latest call that a rank has entered, and of the latest it has left.
    fn calls_of(&self, peer: usize) -> Option<[u64; 2]> {
        let progress = self.progress(peer)?;
        Some([&progress.entered, &progress.done].map(|word| word.load(Ordering::Acquire)))
    }

    /// A rank of this host that delays a call: rather a stopped process, else a rank that has not
    /// entered the call.
    pub(crate) fn stalled_in(&self, call: u64) -> Option<(usize, Stall)> {
        let behind = |peer: &usize| {
            let calls = self.calls_of(*peer)?;
            (calls[1] < call).then_some(calls)
        };
        let stopped = |peer: usize| {
            let calls = behind(&peer)?;
            self.is_stopped(peer).then_some((peer, Stall::Paused { entered: calls[0] }))
        };
        let absent = |peer: usize| {
            let [entered, done] = behind(&peer)?;
            // A rank inside an earlier call waits there for a third rank.
            let is_outside = entered < call && entered <= done;
            is_outside.then_some((peer, Stall::NeverEntered { entered }))
        };
        let found = self.ranks().find_map(stopped);
        found.or_else(|| {
            let (mut peer, mut stall) = self.ranks().find_map(absent)?;
            // An absent rank may wait for a message of another absent one, and so on.
            for _ in self.ranks() {
                let next = self.progress(peer).and_then(Progress::waits_for);
                let Some(found) = next.filter(|&next| next != peer).and_then(absent) else { break };
                (peer, stall) = found;
            }
            Some((peer, stall))
        })
    }

    /// The rank for which `peer` waits in a message, and that one in turn, and so on: `peer` if it
    /// waits for none, or for itself by others.
    pub(crate) fn end_of_messages(&self, peer: usize) -> usize {
        let waits_for = |rank| self.progress(rank).and_then(Progress::waits_for);
        let chain = std::iter::successors(Some(peer), |&rank| {
            waits_for(rank).filter(|&next| next != self.me && next < self.size)
        });
        let mut chain = chain.take(self.size);
        chain.find(|&rank| waits_for(rank).is_none()).unwrap_or(peer)
    }

    /// The fingerprint of this rank's call of this number, while its entry still has it.
    pub(crate) fn fingerprint(&self, call: u64) -> Option<u64> {
        self.mine.as_ref().and_then(|(mine, _)| mine.fingerprint(call))
    }

    /// A rank whose call of the same number differs from this rank's, or that reports such a
    /// difference; and the difference.
    pub(crate) fn mismatched_peer(&self) -> Option<(usize, Fault)> {
        let current = self.current();
        let ours = current.and_then(|call| self.fingerprint(call));
        self.ranks().find_map(|peer| {
            let entry = self.entry(peer)?;
            if let Some(Failure { cause, .. }) = self.failure(peer)
                && let Some(fault) = cause.as_mismatch(self.me, ours)
            {
                return Some((cause.culprit, fault));
            }
            let (ours, theirs) = (ours?, entry.fingerprint(current?)?);
            let fault = Fault::Mismatch { field: MismatchField::Fingerprint, ours, theirs };
            (ours != theirs).then_some((peer, fault))
        })
    }

    /// The failure that a rank reports, here or in the parent's call that made this communicator.
    pub(super) fn failure(&self, peer: usize) -> Option<Failure> {
        let Some(progress) = self.progress(peer) else { return self.failure_before(peer) };
        progress.failure().filter(|failure| failure.cause.is_within(self.size))
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
            if !page.has_ended() {
                return None;
            }
            let [entered, done] = self.calls_of(peer)?;
            // A rank that ended after its own failure is not the cause of this one.
            if self.progress(peer)?.has_failed() {
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
            self.entry(peer)?;
            let is_first = self.failure(peer).is_none() && self.has_ended(peer);
            is_first.then(|| (peer, Fault::Lost("its process ended".into())))
        };
        let own = failed(peer).or_else(|| dead(peer));
        own.or_else(|| self.ranks().find_map(dead)).or_else(|| self.ranks().find_map(failed))
    }

    /// A rank of this host whose process is stopped: rather `peer` than another one.
    pub(crate) fn paused_peer(&self, peer: usize) -> Option<(usize, Stall)> {
        let mut all = std::iter::once(peer).chain(self.ranks());
        all.find_map(|peer| {
            let [entered, _] = self.calls_of(peer)?;
            self.is_stopped(peer).then_some((peer, Stall::Paused { entered }))
        })
    }

    /// True if the process of a rank is stopped, as far as this one can see.
    fn is_stopped(&self, peer: usize) -> bool {
        let pages = self.mine.as_ref().zip(self.peers.get(&peer));
        pages.is_some_and(|((_, own), peer)| peer.page.is_stopped(&own.page))
    }

    /// The call that a rank of this host is in.
    pub(crate) fn call_of(&self, peer: usize) -> Option<u64> {
        let [entered, done] = self.calls_of(peer)?;
        (entered > done).then_some(entered)
    }
}

impl Drop for LocalDetector {
    /// Closes the entry of this rank, so that no peer waits for the rank.
    fn drop(&mut self) {
        if let Some((mine, _)) = &self.mine {
            mine.progress().close();
        }
    }
}

#[cfg(test)]
mod tests;
