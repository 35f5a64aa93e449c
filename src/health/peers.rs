//! The peers of one rank: the links to them, and the sources of the failure detector. Each question
//! (which peer is dead, stalled, in another call, the cause of a failure?) goes to all sources
//! here. Status entries come first, since their words are of shared memory, then slots on links and
//! control channels; the launcher's table says which processes have ended. For a mismatch control
//! channels are asked before slots.

mod losses;

use std::time::Duration;

use super::WaitTime;
use super::control_channel::ControlChannels;
use super::last_vote::LAST_VOTE_BYTES;
use super::local_detector::LocalDetector;
use super::process_table::LaunchedRanks;
use crate::error::Stall;
use crate::error::cause::{FailureCause, FailureReason};
use crate::sync::Instant;
use crate::transport::tcp::keep_up_streams;
use crate::transport::{Fault, Frame, LinkSet};

/// A rank that waits in a call for this long sends its first heartbeat, by which peers in other
/// calls find the mismatch. A quarter of the call's time limit, if that is shorter.
const HEARTBEAT_DELAY: Duration = Duration::from_millis(20);
/// The delay of the first heartbeat between ranks of one host, whose status entries tell of
/// mismatches. A heartbeat tells that a rank waits; a rank that has entered the call and sends none
/// is the one waited for.
const LOCAL_HEARTBEAT_DELAY: Duration = Duration::from_secs(1);
/// How long the cause of a failure may take to arrive after the links of the failed rank have
/// ended, which reports it before it closes them; or after a timeout, by ranks that know the cause.
pub(crate) const CAUSE_WAIT: Duration = Duration::from_millis(50);

/// The links to the peers of a rank, and the sources of the failure detector.
#[derive(Debug, Default)]
pub struct Peers {
    pub links: LinkSet,
    /// The process pages and status entries of the ranks of this host.
    local_detector: LocalDetector,
    /// The control channels to ranks of other hosts.
    control_channels: ControlChannels,
    /// The ranks in the launcher's process table.
    pub(crate) launched_ranks: LaunchedRanks,
}

impl Peers {
    /// The peers at the other ends of `links`, without any source yet.
    #[must_use]
    pub fn new(links: LinkSet) -> Self {
        Self { links, ..Self::default() }
    }

    /// Sets the sources for ranks of this host and of this launcher.
    pub(crate) fn set_local_sources(
        &mut self,
        local_detector: LocalDetector,
        launched_ranks: LaunchedRanks,
    ) {
        (self.local_detector, self.launched_ranks) = (local_detector, launched_ranks);
    }

    pub(crate) fn set_control_channels(&mut self, control_channels: ControlChannels) {
        self.control_channels = control_channels;
    }

    /// Publishes the last vote of this rank, for survivors to read after its death.
    pub(crate) fn publish_last_vote(&self, vote: &[u8; LAST_VOTE_BYTES]) {
        self.local_detector.publish_last_vote(vote);
        self.launched_ranks.publish_last_vote(vote);
    }

    /// `Some` if it is certain that the process of a rank has ended, with its last vote; no vote
    /// inside if the rank had no room to publish one.
    pub(crate) fn last_vote_of(&self, rank: usize) -> Option<Option<[u8; LAST_VOTE_BYTES]>> {
        let launched = self.launched_ranks.last_vote_of(rank);
        let has_ended = launched.is_some() || self.local_detector.has_ended(rank);
        has_ended.then(|| self.local_detector.vote_of(rank).or(launched.flatten()))
    }

    pub(crate) fn control_channels(&mut self) -> &mut ControlChannels {
        &mut self.control_channels
    }

    /// The rank that delays this rank's call, which may take `most`, if a source knows it.
    pub(crate) fn stalled_peer(&mut self, most: Duration) -> Option<(usize, Stall)> {
        self.stalled_among(|_| true, most)
    }

    /// As [`Self::stalled_peer`], in a call where this rank waits for the ranks in `among` alone.
    pub(crate) fn stalled_among(
        &mut self,
        among: impl Fn(usize) -> bool,
        most: Duration,
    ) -> Option<(usize, Stall)> {
        let current = self.local_detector.current()?;
        let stalled = self.stalled_on_host(current, most).filter(|it| among(it.0));
        let Self { local_detector, control_channels, .. } = self;
        let silent = local_detector.silence();
        let stalled = stalled.or_else(|| control_channels.silent_peer(most, among).map(silent));
        stalled.or_else(|| {
            let reported = control_channels.reported_stalled_peer(most)?;
            Some((reported, Stall::Silent { waited: 0 }))
        })
    }

    /// A rank of this host that is stopped, or does not come to `call` and does not say that it
    /// waits elsewhere.
    fn stalled_on_host(&self, call: u64, most: Duration) -> Option<(usize, Stall)> {
        self.local_detector.stalled_in(call).filter(|&(rank, state)| {
            let is_stopped = matches!(state, Stall::Paused { .. });
            is_stopped || !self.control_channels.waits_elsewhere(rank, most)
        })
    }

    /// The cause of this rank's timeout after `most`, by other ranks' news. A slow rank that this
    /// one has no link to is known to others, whose timeouts may end a moment later: waits for them
    /// up to `wait`, if this rank knows no stalled peer itself.
    pub(crate) fn cause_of_timeout(
        &mut self,
        most: Duration,
        wait: Duration,
    ) -> Option<(usize, Fault)> {
        let began = Instant::now();
        while self.local_detector.current().is_some() && self.stalled_peer(most).is_none() {
            let cause = self.cause(None);
            if cause.is_some() || began.elapsed() >= wait {
                return cause;
            }
            std::thread::sleep(CAUSE_WAIT / 20);
        }
        None
    }

    /// The rank that delays a message of `peer`, or to it, and what it does instead, if a source
    /// knows it: a stopped process, a rank of another host that is silent, a peer in a call of all
    /// ranks, or the rank that this call waits for, if it is a call up to `made`, this rank's last
    /// one. Peers of peers count, since ranks wait for messages in chains.
    pub(crate) fn stalled_behind(
        &mut self,
        peer: usize,
        made: u64,
        most: Duration,
    ) -> Option<(usize, Stall)> {
        let silent = self.local_detector.silence();
        let Self { local_detector, control_channels, .. } = &*self;
        let paused = local_detector.paused_peer(peer);
        let found = paused.or_else(|| control_channels.silent_peer_behind(peer, most).map(silent));
        let call = |peer| local_detector.call_of(peer).or_else(|| control_channels.call_of(peer));
        let ahead = || {
            let entered = call(peer).filter(|&call| call > made)?;
            Some((peer, Stall::InCall { entered }))
        };
        let behind = || {
            let last = local_detector.end_of_messages(peer);
            let call = local_detector.call_of(last).filter(|&call| call <= made)?;
            self.stalled_on_host(call, most).filter(|&(rank, _)| rank != last)
        };
        found.or_else(ahead).or_else(behind)
    }

    /// Sends the others what this rank owes them while it waits: bytes of calls that it has
    /// finished, which were lost with a connection of whichever communicator, and heartbeats.
    pub(crate) fn keep_up(&mut self, wait: WaitTime) {
        keep_up_streams();
        let WaitTime { waited, timeout: most } = wait;
        let is_far = self.control_channels.leave_host();
        let delay = if is_far { HEARTBEAT_DELAY } else { LOCAL_HEARTBEAT_DELAY };
        if waited <= delay.min(most / 4) {
            return;
        }
        if let Some(call) = self.local_detector.current()
            && self.control_channels.is_heartbeat_due((call, most), None)
        {
            let fingerprint = self.local_detector.fingerprint(call).unwrap_or(0);
            let stalled = self.stalled_on_host(call, most).map(|it| it.0);
            let silent = || self.control_channels.silent_peer(most, |_| true).map(|it| it.0);
            let stalled = stalled.or_else(silent);
            self.control_channels.send_heartbeats((call, fingerprint), None, stalled);
        }
    }

    /// Sends the heartbeats of a message after call number `call` for which this rank waits for
    /// `peer` alone.
    pub(crate) fn send_heartbeats_in_message(
        &mut self,
        WaitTime { waited, timeout: most }: WaitTime,
        (call, peer): (u64, usize),
    ) {
        if waited <= HEARTBEAT_DELAY.min(most / 4) {
            return;
        }
        self.local_detector.wait_for_message(Some(peer));
        if self.control_channels.is_heartbeat_due((call, most), Some(peer)) {
            self.control_channels.send_heartbeats((call, 0), Some(peer), None);
        }
    }

    /// The rank because of which this rank's call cannot end, and the fault: a dead rank, a rank in
    /// another call, or a failed rank with its cause. `call` is the header of all slots of the
    /// call, if they have the same.
    pub(crate) fn cause(&mut self, call: Option<&Frame>) -> Option<(usize, Fault)> {
        let dead = self.local_detector.dead_peer();
        let other = dead.or_else(|| self.mismatched_peer());
        let other = other.or_else(|| self.links.slot_of_other_call(call));
        let failed = other.or_else(|| self.local_detector.failed_peer());
        let in_call = self.local_detector.current().is_some();
        let Self { control_channels, launched_ranks, .. } = self;
        let has_ended = |rank| launched_ranks.ended(rank).is_some();
        let far = || if in_call { control_channels.lost_peer(has_ended) } else { None };
        failed.or_else(far).map(|found| self.unless_alive(found))
    }

    /// A rank in another call than this one, by status entries and heartbeats; and the difference.
    fn mismatched_peer(&mut self) -> Option<(usize, Fault)> {
        let Self { local_detector, control_channels, .. } = self;
        let call = local_detector.current();
        let local = local_detector.mismatched_peer();
        local.or_else(|| {
            control_channels.mismatched_peer(call, |number| local_detector.fingerprint(number))
        })
    }

    /// True if `peer` has told that it has failed.
    pub(crate) fn has_failed(&self, peer: usize) -> bool {
        let all = self.local_detector.failures().chain(self.control_channels.failures());
        all.map(|(rank, _)| rank).any(|rank| rank == peer)
    }

    /// Tells all peers, once, that this rank has failed, and the cause. `first_hand`: this rank
    /// found the cause itself.
    pub(crate) fn report_failure(&mut self, cause: FailureCause, first_hand: bool) {
        self.local_detector.fail(&cause, first_hand);
        let call = self.local_detector.current();
        self.control_channels.announce_failure(cause, first_hand, call);
    }

    /// Tells all peers, once, that this rank has failed by itself.
    pub(crate) fn report_own_failure(&mut self, reason: FailureReason) {
        self.report_failure(FailureCause { culprit: self.local_detector.me, reason }, true);
    }

    /// The cause of the end of a link to or from one of `peers`. Waits up to `most` for the first
    /// cause to arrive, which may be the failure of a rank that this one has no link to.
    pub(crate) fn cause_of_end(
        &mut self,
        peers: &[usize],
        most: Duration,
    ) -> Option<(usize, Fault)> {
        let began = Instant::now();
        while self.control_channels.has_any()
            || peers.iter().any(|&peer| self.local_detector.has_page_of(peer))
        {
            let local = match self.local_detector.current() {
                Some(_) => {
                    let dead = self.local_detector.dead_peer();
                    let mismatched = dead.or_else(|| self.mismatched_peer());
                    mismatched.or_else(|| self.local_detector.failed_peer())
                }
                None => {
                    let cause = |&peer| self.local_detector.cause_outside_calls(peer);
                    peers.iter().find_map(cause).or_else(|| self.mismatched_peer())
                }
            };
            let mut remote =
                || peers.iter().find_map(|&peer| self.control_channels.cause_of_end(peer));
            if let Some(cause) = local.or_else(&mut remote) {
                return Some(self.unless_alive(cause));
            }
            if began.elapsed() > most {
                break;
            }
            std::thread::sleep(CAUSE_WAIT / 20);
        }
        // Peers may have lost this rank, by a connection that ended: then this rank is the cause.
        let by = self.accuser();
        // A rank that lost this one at first hand may have broken its channel to say so.
        let broken = || self.control_channels.broken_connection();
        if let Some(broken) = broken().filter(|_| by.is_none_or(|(hearsay, _)| hearsay)) {
            return Some(broken);
        }
        let by = by?;
        Some((by.1, Fault::GaveUp(Box::new(FailureCause::lost(self.local_detector.me)))))
    }

    /// The cause of the end of a link in the middle of a call, which may take `most`. A peer that
    /// lives tells its cause before it closes a link; where its host's network was cut, the message
    /// may come as late as its host may be silent. `is_over` ends the wait.
    pub(crate) fn cause_of_broken_link(
        &mut self,
        peer: usize,
        most: Duration,
        is_over: impl Fn() -> bool,
    ) -> Option<(usize, Fault)> {
        let began = Instant::now();
        loop {
            let found = self.cause_of_end(&[peer], CAUSE_WAIT);
            let has_ended = is_over() || self.launched_ranks.ended(peer).is_some();
            let limit = self.control_channels.may_tell_within(peer).filter(|_| !has_ended);
            if found.is_some() || limit.is_none_or(|limit| began.elapsed() > limit.min(most)) {
                return found;
            }
        }
    }

    pub(crate) fn local_detector(&self) -> &LocalDetector {
        &self.local_detector
    }

    /// Makes the failure of another communicator the cause for which this rank leaves this one.
    pub(crate) fn set_goodbye_cause(&mut self, cause: FailureCause) {
        self.local_detector.fail(&cause, false);
        self.control_channels.set_goodbye_cause(cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 2 is on another host, and only rank 1 has a link to it.
    #[test]
    fn a_timeout_waits_for_the_cause_that_another_rank_knows() {
        let memory = LocalDetector::private_memory(3).unwrap();
        let of = |me: usize| {
            let local_detector = LocalDetector::of_threads((me, 3), 0..2, &memory).unwrap();
            local_detector.enter(1, 7);
            local_detector
        };
        let (local_detector, other) = (of(0), of(1));
        let mut peers = Peers { local_detector, ..Peers::default() };
        let most = Duration::from_secs(1);
        assert!(peers.cause_of_timeout(most, Duration::ZERO).is_none(), "nobody knows it");
        let cause = FailureCause::stalled(2, Stall::Silent { waited: 0 }, most);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(2 * CAUSE_WAIT / 5);
                other.fail(&cause, true);
            });
            peers.cause_of_timeout(most, Duration::from_secs(60))
        });
        let Some((1, Fault::GaveUp(found))) = found else { panic!("{found:?}") };
        assert_eq!(found.culprit, 2);
    }

    /// Rank 1 waits for rank 2 in a call that rank 0 has made, which waits for a message of rank 1.
    #[test]
    fn a_message_of_a_rank_in_an_earlier_call_waits_for_the_rank_that_is_absent_there() {
        let memory = LocalDetector::private_memory(3).unwrap();
        let ranks = [0, 1, 2].map(|me| LocalDetector::of_threads((me, 3), 0..3, &memory).unwrap());
        ranks.iter().for_each(|rank| rank.enter(1, 7));
        ranks.iter().for_each(|rank| rank.leave(1));
        ranks[0].enter(2, 7);
        ranks[0].leave(2);
        let [local_detector, one, _two] = ranks;
        let mut peers = Peers { local_detector, ..Peers::default() };
        let mut behind = || peers.stalled_behind(1, 2, Duration::from_secs(1));
        assert_eq!(behind(), None, "outside calls");
        one.enter(2, 7);
        assert_eq!(behind(), Some((2, Stall::NeverEntered { entered: 1 })));
        one.leave(2);
        one.enter(3, 7);
        assert_eq!(behind(), Some((1, Stall::InCall { entered: 3 })));
    }
}
