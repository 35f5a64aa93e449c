//! Control channels: one connection beside the links to each linked rank. A failure cause travels
//! over it past all data that waits in the links, and so do heartbeats ("I wait in call N"),
//! goodbyes, descriptors, and the messages of the recovery and about groups; its end shows the end
//! of the process.
//! Communicators of the same processes share their connections: a subgroup uses its parent's.
//! Law: frames have one size, and sending never waits; a process that closes its channel without a
//! goodbye or a failure message has died.

mod channels;
mod connection;
mod heartbeats;
mod host_watch;
mod inbox;
mod keepalive;
mod parents;
mod resume;
#[cfg(test)]
mod resume_tests;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod unlinked;

use crate::sync::{Instant, Process};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::control_message::{ControlMessage, Failure, Heartbeat, RecoveryMessage};
use crate::error::Result;
use crate::error::cause::FailureCause;
use crate::transport::aead::AeadKeys;
use crate::transport::{Fault, MismatchField};
pub(crate) use channels::Channels;
use channels::Linked;
pub(crate) use keepalive::{is_unreachable, set_idle_keepalive, set_keepalive, set_questions};
pub(crate) use parents::ParentNames;
pub(crate) use resume::{ControlWay, NewerControl};
use shared::{Channel, Connections};
pub(crate) use unlinked::ReachRanks;

/// How long the last message of a process may still take to arrive after the process has ended.
const LAST_MESSAGE_DELAY: Duration = Duration::from_millis(300);

/// How long a communicator that closes waits until the peers' systems have its goodbye, on broken
/// connections that are made anew, too: the peers take a rank for dead whose goodbye does not
/// arrive.
const GOODBYE_WAIT: Duration = Duration::from_secs(3);

/// The control channels of one communicator, by rank.
#[derive(Debug, Default)]
pub(crate) struct ControlChannels {
    me: usize,
    /// Ranks of the communicator.
    size: usize,
    channels: Channels,
    /// The process of this rank.
    process: Process,
    /// This rank has announced its failure.
    has_failed: bool,
    /// The cause that this rank's goodbye carries: the failure of another of its communicators.
    goodbye_cause: Option<FailureCause>,
    /// The call of the last heartbeat, the rank that this rank alone waits for, and when the
    /// heartbeat went out.
    last_heartbeat: Option<(u64, Option<usize>, Instant)>,
    /// This rank has sent recovery messages.
    sent_recovery: bool,
    /// The ways to ranks without a channel.
    unlinked: Option<Arc<dyn ReachRanks>>,
}

impl ControlChannels {
    /// For rank `me` of a communicator of `size` ranks with this key, without channels yet.
    pub(crate) fn new((me, size): (usize, usize), key: u64, unreachable: Duration) -> Self {
        Self::over((me, size), Channels::new(key, unreachable))
    }

    fn over((me, size): (usize, usize), channels: Channels) -> Self {
        let mut controls = Self::default();
        (controls.me, controls.size, controls.channels) = (me, size, channels);
        controls
    }

    /// The channels of a subgroup with this key, over the connections of a communicator: `members`
    /// are its ranks there, and this rank is the one at `me`. Each member must have a channel. The
    /// communicator has these names, and makes the subgroup by its call of this number, if any.
    pub(crate) fn subgroup(
        (parent, names): (&Channels, Option<&ParentNames>),
        (me, members): (usize, &[usize]),
        call: Option<u64>,
        key: u64,
    ) -> Self {
        let channels = parent.subgroup((me, members), (names, call), key);
        Self::over((me, members.len()), channels)
    }

    /// The channels, for subgroups.
    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Adds the channel to `peer`, the lowest rank on whose host is `host`; returns its stream,
    /// which links may share.
    ///
    /// # Errors
    /// If the system refuses a setting of the socket.
    pub(crate) fn add(
        &mut self,
        (peer, host): (usize, usize),
        stream: (Socket, Option<AeadKeys>),
    ) -> Result<Arc<Socket>> {
        self.channels.add((peer, host), stream)
    }

    /// Tells all peers that this rank has failed in its call of this number, and the cause; only
    /// the first cause is sent. `first_hand`: this rank found the cause itself.
    pub(crate) fn announce_failure(
        &mut self,
        cause: FailureCause,
        first_hand: bool,
        call: Option<u64>,
    ) {
        if !std::mem::replace(&mut self.has_failed, true) {
            let (failure, call) = (Failure { cause, first_hand }, call.unwrap_or_default());
            self.channels.broadcast(&ControlMessage::Failed { failure, call });
        }
    }

    /// Sets the cause that the goodbye of this rank carries: another of its communicators failed.
    pub(crate) fn set_goodbye_cause(&mut self, cause: FailureCause) {
        self.goodbye_cause = Some(cause);
    }

    /// A rank whose call of the same number differs from this rank's, or that reports such a
    /// difference; and the difference. `call` is the call of this rank, and `ours` returns this
    /// rank's fingerprint of a call.
    pub(crate) fn mismatched_peer(
        &self,
        call: Option<u64>,
        ours: impl Fn(u64) -> Option<u64>,
    ) -> Option<(usize, Fault)> {
        let connections = &self.channels.received();
        self.channels.all(connections).find_map(|(rank, Channel { inbox, .. })| {
            if let Some(ControlMessage::Failed { failure: Failure { cause, .. }, .. }) =
                inbox.final_message
                && cause.is_within(self.size)
                && let Some(fault) = cause.as_mismatch(self.me, call.and_then(&ours))
            {
                return Some((cause.culprit, fault));
            }
            let Heartbeat { call: number, fingerprint: theirs, .. } = inbox.heartbeat;
            let ours = ours(number).filter(|&ours| theirs != 0 && ours != theirs)?;
            let is_current = call == Some(number);
            let field =
                if is_current { MismatchField::Fingerprint } else { MismatchField::Earlier };
            call.map(|_| (rank, Fault::Mismatch { field, ours, theirs }))
        })
    }

    /// The failures that ranks report.
    pub(super) fn failures(&self) -> Vec<(usize, Failure)> {
        self.failures_in(&self.channels.lock()).collect()
    }

    fn failures_in<'a>(
        &'a self,
        connections: &'a Connections,
    ) -> impl Iterator<Item = (usize, Failure)> {
        self.channels.all(connections).filter_map(|(rank, channel)| {
            match channel.inbox.final_message {
                Some(ControlMessage::Failed { failure, .. }) => Some((rank, failure)),
                _ => None,
            }
        })
    }

    /// The causes that ranks report, of their failure or of another communicator's.
    pub(super) fn causes(&self) -> Vec<(usize, FailureCause)> {
        let cause = |(rank, channel): (usize, Channel<'_>)| match channel.inbox.final_message {
            Some(
                ControlMessage::Failed { failure: Failure { cause, .. }, .. }
                | ControlMessage::Goodbye { cause: Some(cause), .. },
            ) => Some((rank, cause)),
            _ => None,
        };
        self.channels.all(&self.channels.lock()).filter_map(cause).collect()
    }

    /// Sends a message of the recovery to rank `to`.
    pub(crate) fn send_recovery(&mut self, to: usize, message: RecoveryMessage) {
        self.sent_recovery |= self.channels.send(to, &ControlMessage::Recovery(message), None);
    }

    /// Sends a descriptor to rank `to`, a process of this host; false if there is no channel to it.
    pub(crate) fn send_descriptor(&self, to: usize, fd: OwnedFd) -> bool {
        self.channels.send(to, &ControlMessage::Descriptor, Some(fd))
    }

    /// The next descriptor that rank `from` has sent, or why it did not arrive.
    pub(crate) fn receive_descriptor(&self, from: usize) -> Option<io::Result<OwnedFd>> {
        let (number, mut connections) = (self.channels.number(from)?, self.channels.received());
        connections.inbox_mut(number, self.channels.key)?.descriptors.pop_front()
    }

    /// Receives what has arrived, so that peers can send more, also at a rank that never waits.
    pub(crate) fn receive(&self) {
        drop(self.channels.received());
    }

    /// The recovery messages that have arrived, with their senders; those of one rank in order.
    pub(crate) fn receive_recovery(&self) -> Vec<(usize, RecoveryMessage)> {
        let connections = &mut *self.channels.received();
        let mut messages = Vec::new();
        for &Linked { rank, number, .. } in &self.channels.peers {
            let taken = connections.take_recovery(number, self.channels.key);
            messages.extend(taken.into_iter().map(|message| (rank, message)));
        }
        messages
    }

    /// Sleeps until a message arrives, at most for `limit`: see [`Channels::sleep`].
    pub(crate) fn sleep(&self, limit: Duration) {
        self.channels.sleep(limit);
    }

    /// True if the channel to a rank has ended because its host was unreachable.
    pub(crate) fn is_unreachable(&self, rank: usize) -> bool {
        let connections = &self.channels.lock();
        let channel = self.channels.channel(connections, rank);
        channel.is_some_and(|channel| channel.connection.is_unreachable)
    }

    /// Whether the channel to a rank has ended; and after a goodbye, whether the rank had sent
    /// recovery messages.
    pub(crate) fn end_of(&self, rank: usize) -> (bool, Option<bool>) {
        let connections = &self.channels.lock();
        let channel = self.channels.channel(connections, rank);
        channel.map_or((false, None), |Channel { connection, inbox }| {
            let sent_recovery = inbox.goodbye.map(|goodbye| goodbye.sent_recovery);
            (connection.ended.is_some(), sent_recovery)
        })
    }

    /// A rank without which calls cannot end, and the evidence: it reports the failure of another,
    /// or its process or host has ended. `has_ended` tells of the end of processes that other
    /// sources have seen.
    pub(crate) fn lost_peer(&self, has_ended: impl Fn(usize) -> bool) -> Option<(usize, Fault)> {
        let connections = &mut *self.channels.received();
        for &Linked { rank, number, .. } in &self.channels.peers {
            if has_ended(rank) {
                connections.note_process_end(number);
            }
        }
        let ended = |(rank, channel): (usize, Channel<'_>)| {
            let (since, fault) = channel.silent_fault()?;
            (since.elapsed() > LAST_MESSAGE_DELAY).then_some((rank, fault))
        };
        self.reported_failure(connections)
            .or_else(|| self.channels.all(connections).find_map(ended))
    }

    /// The cause that is known by now of the end of the links to `rank`.
    pub(crate) fn cause_of_end(&self, rank: usize) -> Option<(usize, Fault)> {
        let connections = &self.channels.received();
        let channel = || self.channels.channel(connections, rank);
        let left = || match channel()?.inbox.final_message {
            Some(ControlMessage::Goodbye { cause: Some(cause), .. }) => {
                (cause.culprit != self.me).then(|| (rank, Fault::GaveUp(Box::new(cause))))
            }
            _ => None,
        };
        let ended = || Some((rank, channel()?.silent_fault()?.1));
        self.reported_failure(connections).or_else(left).or_else(ended)
    }

    /// How long a rank whose connection is open may still take to tell a cause: its host counts as
    /// unreachable after that. `None` if nothing more comes from the rank.
    pub(crate) fn may_tell_within(&self, rank: usize) -> Option<Duration> {
        let connections = &self.channels.received();
        let Channel { connection, inbox } = self.channels.channel(connections, rank)?;
        let is_open = inbox.final_message.is_none()
            && connection.ended.is_none()
            && !connection.is_unused()
            && !connection.is_unreachable;
        is_open.then(|| self.channels.unreachable())
    }

    /// The fault of a rank whose host is unreachable; a link notices that only while it sends.
    pub(crate) fn unreachable_fault(&self, rank: usize) -> Option<Fault> {
        let connections = &self.channels.received();
        let channel = self.channels.channel(connections, rank)?;
        let is_unreachable = channel.connection.is_unreachable;
        if is_unreachable { Some(channel.silent_fault()?.1) } else { None }
    }

    /// Notes that another rank has found the host of `rank` unreachable.
    pub(crate) fn note_loss_elsewhere(&self, rank: usize) {
        if let Some(number) = self.channels.number(rank) {
            self.channels.lock().note_loss_elsewhere(number);
        }
    }

    /// True if this communicator has any control channel.
    pub(crate) fn has_any(&self) -> bool {
        !self.channels.peers.is_empty()
    }

    /// True if a peer is on another host, or may be.
    pub(super) fn leave_host(&self) -> bool {
        let leaves = |(_, channel): (usize, Channel<'_>)| {
            channel.connection.is_tcp && !channel.connection.is_unused()
        };
        self.channels.all(&self.channels.lock()).any(leaves)
    }

    /// A rank that has failed because of another rank than this one.
    fn reported_failure(&self, connections: &Connections) -> Option<(usize, Fault)> {
        self.failures_in(connections).find_map(|(rank, failure)| failure.fault(rank, self.me))
    }

    /// A rank whose channel has ended without a final message.
    pub(crate) fn broken_connection(&self) -> Option<(usize, Fault)> {
        let ended = |(rank, channel): (usize, Channel<'_>)| Some((rank, channel.silent_fault()?.1));
        self.channels.all(&self.channels.lock()).find_map(ended)
    }
}

impl Drop for ControlChannels {
    fn drop(&mut self) {
        // The connections of a forked child are its parent's, and a thread that the child lacks may
        // have held their lock.
        if !self.process.is_current() {
            return;
        }
        let (cause, sent_recovery) = (self.goodbye_cause, self.sent_recovery);
        self.channels.broadcast(&ControlMessage::Goodbye { cause, sent_recovery });
        self.channels.await_owed_frames(GOODBYE_WAIT);
        let connections = &mut *self.channels.lock();
        for linked in &self.channels.peers {
            connections.close(linked.number, self.channels.key);
        }
    }
}
