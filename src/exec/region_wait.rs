//! Waiting between ranks that share a host's region, until a peer has completed a phase: spin,
//! yield, then sleep on a futex; with a deadline, an abort flag, and a look from time to time
//! (`Backoff`) whether all peers are alive and make the same call.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::wait::{Halt, Stop, Wait, warn_of_silence};
use crate::health::{Peers, WaitTime};
use crate::memory::{Answer, CallId, HostRegion};
use crate::schedule::{Completed, Phase};
use crate::sync::{Instant, is_interrupted};
use crate::trace::{Direction, Position};
use crate::transport::{Fault, MismatchField};

/// How often a rank that waits in the region sends bytes that a socket did not take at once: no
/// system call sleeps on a futex and on sockets.
const FLUSH_INTERVAL: Duration = Duration::from_micros(100);

/// One call through a host's region, as one rank waits in it. Peers are known by their index in the
/// region, and named by their rank.
pub(super) struct RegionWait<'a> {
    pub(super) region: &'a HostRegion,
    pub(super) peers: &'a mut Peers,
    pub(super) wait: &'a Wait<'a>,
    pub(super) call_id: CallId,
    /// The number of the call's first block.
    pub(super) first: u64,
}

/// The event that this rank waits for at a peer.
#[derive(Clone, Copy)]
enum Awaited {
    Completed(Completed),
    /// An answer to this rank's offer of registered buffers for the call of this number.
    Answer(u64),
}

impl Awaited {
    fn is_at(self, region: &HostRegion, peer: usize) -> bool {
        match self {
            Self::Completed(Completed { phase, blocks }) => region.has(peer, phase, blocks),
            Self::Answer(sequence) => region.answer(peer, sequence).is_some(),
        }
    }
}

impl RegionWait<'_> {
    /// The other ranks, the next one first.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (me, size) = (self.region.me(), self.region.size());
        (me + 1..size).chain(0..me)
    }

    /// Records the phase that this rank enters, for which it waits for all others.
    pub(super) fn record(&self, phase: Phase) {
        let first = if self.region.me() == 0 { self.region.size() - 1 } else { 0 };
        let rank = self.region.rank(first);
        self.wait.record_position(Position::at(phase as usize, Direction::Both, rank));
    }

    /// Waits until `peer` is in the state `completed`. The first phase of a block must be of the
    /// same call.
    pub(super) fn until(&mut self, peer: usize, completed: Completed) -> Result<(), Halt> {
        let Completed { phase, blocks } = completed;
        let halt = |(stop, peer)| Halt { stop, step: phase as usize, peer };
        self.until_published(peer, Awaited::Completed(completed)).map_err(halt)?;
        if phase == Phase::CopyIn
            && let Some(stop) = self.mismatch_with(peer, self.region.call_of(peer, blocks - 1))
        {
            return Err(halt((stop, self.region.rank(peer))));
        }
        Ok(())
    }

    /// Waits, once this rank has offered its registered buffers, until it knows whether all ranks
    /// have offered theirs for the same call, by which all of them know.
    pub(super) fn until_all_answer(&mut self) -> Result<bool, Halt> {
        let sequence = self.call_id.sequence;
        for peer in self.others() {
            let halt = |(stop, peer)| Halt { stop, step: 0, peer };
            self.until_published(peer, Awaited::Answer(sequence)).map_err(halt)?;
            // A peer may have begun the call in another way since.
            let Some(Answer::Offered(fingerprint)) = self.region.answer(peer, sequence) else {
                return Ok(false);
            };
            if let Some(stop) = self.mismatch_with(peer, CallId { sequence, fingerprint }) {
                return Err(halt((stop, self.region.rank(peer))));
            }
        }
        self.region.all_have_begun(self.first);
        self.region.set_compared();
        Ok(true)
    }

    /// Waits until no rank reads the slot of the call's first block any more.
    pub(super) fn until_slot_is_free(&mut self) -> Result<(), Halt> {
        let before = (self.first + 1).saturating_sub(self.region.shape().depth as u64);
        if before > self.region.finished() {
            for peer in self.others() {
                self.until(peer, Completed { phase: Phase::Fold, blocks: before })?;
            }
        }
        Ok(())
    }

    /// Waits until all others have copied in the call's first block.
    pub(super) fn until_all_begin(&mut self) -> Result<(), Halt> {
        for peer in self.others() {
            self.until(peer, Completed { phase: Phase::CopyIn, blocks: self.first + 1 })?;
        }
        self.region.all_have_begun(self.first);
        self.region.set_compared();
        Ok(())
    }

    /// Compares this rank's call, whose first block it has published, with the calls of those
    /// peers that it does not wait for and that have published theirs. Of two ranks that do not
    /// wait for each other, at least one sees the other's call (Dekker's algorithm): no later call
    /// uses the slot of a call's first block before all ranks have folded the block.
    pub(super) fn compare_with_published(
        &self,
        waits_for: impl Fn(usize) -> bool,
    ) -> Result<(), Halt> {
        let mut others = self.others().filter(|&peer| !waits_for(peer)).peekable();
        if others.peek().is_some() {
            fence(Ordering::SeqCst);
        }
        for peer in others {
            if self.region.has(peer, Phase::CopyIn, self.first + 1)
                && let Some(stop) = self.mismatch_with(peer, self.region.call_of(peer, self.first))
            {
                let peer = self.region.rank(peer);
                return Err(Halt { stop, step: Phase::CopyIn as usize, peer });
            }
        }
        Ok(())
    }

    /// The mismatch between this rank's call and the call `theirs` of a peer.
    fn mismatch_with(&self, peer: usize, theirs: CallId) -> Option<Stop> {
        // Both ranks made an earlier call over links, and its messages were not compared yet.
        if let Some((ours, theirs)) = self.region.link_call_mismatch(peer) {
            let (field, ours, theirs) =
                (MismatchField::Earlier, ours.fingerprint, theirs.fingerprint);
            return Some(Stop::Fault(Fault::Mismatch { field, ours, theirs }));
        }
        self.difference(theirs)
    }

    /// The mismatch between this rank's call and another one.
    fn difference(&self, theirs: CallId) -> Option<Stop> {
        let ours = self.call_id;
        let mismatch =
            |field, ours, theirs| Some(Stop::Fault(Fault::Mismatch { field, ours, theirs }));
        if ours.sequence != theirs.sequence {
            return mismatch(MismatchField::Sequence, ours.sequence, theirs.sequence);
        }
        (ours.fingerprint != theirs.fingerprint)
            .then(|| mismatch(MismatchField::Fingerprint, ours.fingerprint, theirs.fingerprint))
            .flatten()
    }

    fn has(&self, peer: usize, awaited: Awaited) -> bool {
        awaited.is_at(self.region, peer)
    }

    #[inline]
    fn until_published(&mut self, peer: usize, awaited: Awaited) -> Result<(), (Stop, usize)> {
        if self.has(peer, awaited) { Ok(()) } else { self.look_and_sleep(peer, awaited) }
    }

    fn look_and_sleep(&mut self, peer: usize, awaited: Awaited) -> Result<(), (Stop, usize)> {
        let rank = self.region.rank(peer);
        let mut round = 0_u32;
        let backoff = self.wait.backoff.begin(false);
        while backoff.wait(round) {
            if self.has(peer, awaited) {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) {
                self.peers.links.flush();
                if self.wait.abort.load(Ordering::Relaxed) {
                    return Err((Stop::Aborted, rank));
                }
            }
        }
        self.wait.record_sleep(Direction::Both, rank);
        let done = self.sleep(peer, awaited, backoff.began());
        self.wait.record_slept(backoff.began().elapsed());
        done
    }

    fn sleep(
        &mut self,
        peer: usize,
        awaited: Awaited,
        began: Instant,
    ) -> Result<(), (Stop, usize)> {
        let (mut warned, rank) = (false, self.region.rank(peer));
        loop {
            if self.wait.abort.load(Ordering::Relaxed) {
                return Err((Stop::Aborted, rank));
            }
            let (waited, timeout) = (began.elapsed(), self.wait.timeout);
            // A look asks every peer's page, so a rank that is woken often does not look each time.
            let due = self.wait.backoff.time_to_look(began);
            let mut limit = due.min(timeout.saturating_sub(waited));
            if limit.is_zero() {
                let look_began = Instant::now();
                self.check_peers(awaited)?;
                if self.has(peer, awaited) {
                    return Ok(());
                }
                if waited >= timeout {
                    return Err((Stop::Timeout(timeout), rank));
                }
                if is_interrupted() {
                    return Err((Stop::Aborted, rank));
                }
                let time = WaitTime { waited, timeout };
                self.peers.keep_up(time);
                warn_of_silence(self.peers, self.wait.recorder, time, &mut warned);
                self.wait.backoff.note_look(look_began);
                limit = self.wait.backoff.sleep_interval().min(timeout - waited);
            }
            self.peers.links.flush();
            if self.peers.links.has_unsent() {
                limit = limit.min(FLUSH_INTERVAL);
            }
            self.region.sleep(peer, limit, || self.has(peer, awaited));
            if self.has(peer, awaited) {
                return Ok(());
            }
        }
    }

    /// Fails if a rank that has not completed the phase cannot complete it any more. A rank that
    /// has may have left since.
    fn check_peers(&mut self, awaited: Awaited) -> Result<(), (Stop, usize)> {
        if let Some((rank, fault)) = self.peers.local_detector().dead_peer() {
            return Err((Stop::Fault(fault), rank));
        }
        let (region, first) = (self.region, self.first);
        let others = self.others();
        if let Some(on_links) = self.caller_on_links(awaited) {
            return Err(on_links);
        }
        if let Some((rank, fault)) = self.peers.cause(None) {
            // The peer may have published its call over links since the look above.
            let on_links = self.caller_on_links(awaited).filter(|_| fault.is_second_hand());
            if let Some(on_links) = on_links {
                return Err(on_links);
            }
            // A peer that failed because of this rank's call has published its own call before.
            let is_other = |peer: &usize| *peer != region.me();
            let has_begun = |peer: &usize| region.has(*peer, Phase::CopyIn, first + 1);
            let peer = region.index(rank).filter(is_other).filter(has_begun);
            let compared = peer.filter(|_| fault.is_second_hand());
            let stop =
                compared.and_then(|peer| self.mismatch_with(peer, region.call_of(peer, first)));
            return Err((stop.unwrap_or(Stop::Other { peer: rank, fault }), rank));
        }
        let absent = |peer: &usize| !awaited.is_at(region, *peer);
        for peer in others.filter(absent) {
            let rank = region.rank(peer);
            let lost = if region.is_closed(peer) {
                Err(Fault::Lost("it closed its communicator".into()))
            } else if self.peers.local_detector().has_entry_of(rank) {
                // The page says whether the process lives, without a system call for each peer.
                Ok(())
            } else {
                self.peers.links.check_alive(rank)
            };
            // The peer may have completed the phase just before it left.
            if let Err(fault) = lost
                && absent(&peer)
            {
                return Err((Stop::Fault(fault), rank));
            }
        }
        Ok(())
    }

    /// A rank that has not completed the phase and makes another call, over links; the mismatch.
    fn caller_on_links(&self, awaited: Awaited) -> Option<(Stop, usize)> {
        let CallId { sequence, .. } = self.call_id;
        self.others().filter(|&peer| !self.has(peer, awaited)).find_map(|peer| {
            let theirs = self.region.link_call_of(peer, sequence, self.first)?;
            Some((self.difference(theirs)?, self.region.rank(peer)))
        })
    }
}
