//! Heartbeats: which ranks wait, in which call or for whose message, and which ranks are silent.
//! Law: a rank tells only what it sees itself, so no report outlives its cause.

use std::time::Duration;

use super::ControlChannels;
use super::shared::Channel;
use crate::health::control_message::Heartbeat;
use crate::sync::Instant;

/// The longest time between two heartbeats of a waiting rank; a call with a short time limit has an
/// eighth of that limit.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

impl ControlChannels {
    /// True if a heartbeat of this rank is due: it waits in `call`, which may take `limit`, or in a
    /// message after it, for rank `waits_for` alone.
    pub(crate) fn is_heartbeat_due(
        &self,
        (call, limit): (u64, Duration),
        waits_for: Option<usize>,
    ) -> bool {
        let interval = HEARTBEAT_INTERVAL.min(limit / 8);
        let is_recent = self.last_heartbeat.is_some_and(|(last, rank, at)| {
            (last, rank) == (call, waits_for) && at.elapsed() < interval
        });
        self.has_any() && !(self.has_failed || is_recent)
    }

    /// Sends a heartbeat to the peers that expect one. They take a rank without heartbeats for
    /// stalled. `stalled` is the rank that this one sees stalled.
    pub(crate) fn send_heartbeats(
        &mut self,
        (call, fingerprint): (u64, u64),
        waits_for: Option<usize>,
        stalled: Option<usize>,
    ) {
        self.last_heartbeat = Some((call, waits_for, Instant::now()));
        // In a call it waits for one rank or another.
        let awaited = waits_for.or(stalled).unwrap_or(usize::from(self.me == 0));
        self.channels.send_parents_heartbeat(awaited);
        let [waits_for, stalled] =
            [waits_for, stalled].map(|rank| rank.map_or(0, |rank| rank as u64 + 1));
        let heartbeat = Heartbeat { call, fingerprint, waits_for, stalled };
        self.channels.send_heartbeat(self.me, heartbeat);
    }

    /// Limits heartbeats in calls of all ranks to the ranks for which `are_due` is true, where it
    /// must be true for this rank, too. Those tell the others of a failure.
    pub(crate) fn limit_heartbeats(&mut self, are_due: impl Fn(usize) -> bool) {
        self.channels.limit_heartbeats(are_due);
    }

    /// True if `rank` has said lately that it waits for a third rank, in a message or in a call of
    /// another communicator.
    pub(crate) fn waits_elsewhere(&self, rank: usize, limit: Duration) -> bool {
        let connections = &self.channels.received();
        let channel = self.channels.channel(connections, rank);
        channel.is_some_and(|Channel { inbox, .. }| {
            inbox.heartbeat.waits_for > 0 && inbox.has_recent_heartbeat(limit)
        })
    }

    /// A rank that another one sees stalled, by a recent heartbeat.
    pub(crate) fn reported_stalled_peer(&self, limit: Duration) -> Option<usize> {
        let connections = &self.channels.received();
        let inboxes = self.channels.all(connections).map(|(_, channel)| channel.inbox);
        let recent = inboxes.filter(|inbox| inbox.has_recent_heartbeat(limit));
        let reported = recent.filter_map(|inbox| (inbox.heartbeat.stalled as usize).checked_sub(1));
        let mut others = reported.filter(|&rank| rank < self.size && rank != self.me);
        others.next()
    }

    /// The first rank of `among` that owes heartbeats and has sent none lately, and the call of its
    /// latest one. A rank with recent heartbeats from another call waits there for a third rank.
    pub(crate) fn silent_peer(
        &self,
        limit: Duration,
        among: impl Fn(usize) -> bool,
    ) -> Option<(usize, u64)> {
        let connections = &self.channels.received();
        self.channels.all(connections).find_map(|(rank, Channel { inbox, .. })| {
            let is_silent = self.channels.has_heartbeats(rank)
                && among(rank)
                && !inbox.has_recent_heartbeat(limit);
            is_silent.then_some((rank, inbox.heartbeat.call))
        })
    }

    /// The call in which `peer` has waited lately, by its heartbeats.
    pub(crate) fn call_of(&self, peer: usize) -> Option<u64> {
        let connections = &self.channels.received();
        let inbox = self.channels.channel(connections, peer)?.inbox;
        let is_in_call = inbox.heartbeat.waits_for == 0;
        let waits = is_in_call && inbox.has_recent_heartbeat(Duration::MAX);
        waits.then_some(inbox.heartbeat.call)
    }

    /// The silent rank at the end of a chain of waits, and the call of its latest heartbeat: this
    /// rank waits for a message of `peer`, which may wait for another rank in turn. The silence of
    /// a rank that owes this one no heartbeats is known to the rank that waits for it.
    pub(crate) fn silent_peer_behind(&self, peer: usize, limit: Duration) -> Option<(usize, u64)> {
        let mut at = peer;
        for _ in 0..self.size {
            let (call, waits_for, is_silent) = {
                let connections = &self.channels.received();
                let inbox = self.channels.channel(connections, at)?.inbox;
                let Heartbeat { call, waits_for, .. } = inbox.heartbeat;
                (call, waits_for, !inbox.has_recent_heartbeat(limit))
            };
            if is_silent {
                let is_expected = at == peer || self.channels.has_heartbeats(at);
                return is_expected.then_some((at, call));
            }
            match usize::try_from(waits_for).ok()?.checked_sub(1) {
                Some(next) => at = next,
                // The peer is in a call of all ranks, where another one may be missing.
                None => return self.silent_peer(limit, |_| true),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::*;

    /// Waits until `has_come`, for as long as a busy machine may take.
    fn receives(controls: &ControlChannels, has_come: impl Fn(&ControlChannels) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !has_come(controls) {
            assert!(Instant::now() < until, "no heartbeat");
            controls.receive();
        }
    }

    #[test]
    fn a_rank_that_owes_no_heartbeats_sends_them_to_one_that_waits_for_it() {
        let limit = Duration::from_secs(60);
        let [mut one, mut other] = pair();
        one.limit_heartbeats(|_| false);
        other.limit_heartbeats(|_| false);
        one.send_heartbeats((7, 0), None, None);
        other.send_heartbeats((7, 0), None, None);
        assert!(one.silent_peer(limit, |_| true).is_none(), "none is owed");
        one.send_heartbeats((8, 0), Some(1), None);
        receives(&other, |other| other.waits_elsewhere(0, limit));
        other.send_heartbeats((9, 0), None, None);
        receives(&one, |one| one.call_of(1) == Some(9));
        for (controls, from) in [(&one, 1), (&other, 0)] {
            let received = controls.channels.lock().connection_mut(from).unwrap().received;
            assert_eq!(received, 1, "heartbeats of calls that the other one does not wait for");
        }
    }
}
