//! Control channels: one connection beside the links to each linked rank. A failure
//! cause travels over it past all data that waits in the links, and so do heartbeats ("I wait in
//! call N"), goodbyes and the messages of the recovery; its end shows the end of the process.
//! Law: frames have one size, and sending never waits; a process that closes its channel without a
//! goodbye or a failure message has died.

mod connection;
mod heartbeats;
mod keepalive;
#[cfg(test)]
mod tests;

use crate::sync::{Instant, MAX_SLEEP};
use std::collections::{BTreeMap, VecDeque};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::control_message::{ControlMessage, FRAME_BYTES, Failure, Heartbeat, RecoveryMessage};
use crate::error::cause::FailureCause;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result};
use crate::transport::aead::{AeadKeys, TAG};
use crate::transport::{Fault, MismatchField};
use connection::ControlConnection;
use keepalive::configure;
pub(crate) use keepalive::{is_unreachable, set_keepalive};

/// How long the last message of a process may still take to arrive after the process has ended.
const LAST_MESSAGE_DELAY: Duration = Duration::from_millis(300);

/// How often the system is asked whether the other hosts still give a sign of life.
const KEEPALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The most channels of which one system call tells that something has arrived.
const EVENTS_PER_POLL: usize = 32;

/// The control channels of one communicator, by rank.
#[derive(Debug, Default)]
pub(crate) struct ControlChannels {
    me: usize,
    /// A host without a sign of life for this long counts as unreachable.
    unreachable: Duration,
    /// Ranks of the communicator.
    size: usize,
    /// The ranks that there is a channel to. A rank that waits goes through all of them. A node of
    /// the map has room for eleven.
    peers: BTreeMap<usize, Box<ControlConnection>>,
    /// Tells on which channels something has arrived since it was last asked, so that a rank that
    /// waits makes one system call and not one for each peer.
    arrivals: Option<Epoll>,
    /// When the hosts' signs of life were last looked for.
    keepalive_checked: Option<Instant>,
    /// This rank has announced its failure.
    has_failed: bool,
    /// The cause that this rank's goodbye carries: the failure of another of its communicators.
    goodbye_cause: Option<FailureCause>,
    /// The call of the last heartbeat, the rank that this rank alone waits for, and when the
    /// heartbeat went out.
    last_heartbeat: Option<(u64, Option<usize>, Instant)>,
    /// This rank has sent recovery messages.
    sent_recovery: bool,
}

impl ControlChannels {
    pub(crate) fn new(me: usize, size: usize, unreachable: Duration) -> Self {
        let mut channels = Self::default();
        (channels.me, channels.size, channels.unreachable) = (me, size, unreachable);
        channels
    }

    /// Adds the channel to `peer`; returns its stream, which links may share.
    ///
    /// # Errors
    /// If the system refuses a setting of the socket.
    pub(crate) fn add(
        &mut self,
        peer: usize,
        (stream, keys): (Socket, Option<AeadKeys>),
    ) -> Result<Arc<Socket>> {
        let io = |error| Error::io("preparing a control connection", error);
        let unreachable = self.unreachable;
        let is_tcp = configure(&stream, unreachable).map_err(io)?;
        let arrivals = match self.arrivals.take() {
            Some(arrivals) => arrivals,
            None => Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
                .map_err(|no| io(name_refused_call("epoll_create1", no)))?,
        };
        // Edge-triggered: a channel that has ended is told once.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let added = arrivals.add(&stream, EpollEvent::new(flags, peer as u64));
        self.arrivals = Some(arrivals);
        added.map_err(|no| io(no.into()))?;
        let stream = Arc::new(stream);
        let connection = ControlConnection {
            stream: Arc::clone(&stream),
            unreachable_after: unreachable,
            is_tcp,
            is_unreachable: false,
            // Reserved now, because a heartbeat must not allocate.
            unsent: Vec::with_capacity(4 * (FRAME_BYTES + TAG)),
            keys,
            frame: [0; FRAME_BYTES + TAG],
            filled: 0,
            final_message: None,
            goodbye: None,
            heartbeat: Heartbeat::default(),
            heartbeat_at: Instant::now(),
            recovery: VecDeque::new(),
            ended: None,
            process_ended: None,
        };
        self.peers.insert(peer, Box::new(connection));
        Ok(stream)
    }

    /// Tells all peers that this rank has failed, and the cause; only the first cause is sent.
    /// `first_hand`: this rank found the cause itself.
    pub(crate) fn announce_failure(&mut self, cause: FailureCause, first_hand: bool) {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.broadcast(&ControlMessage::Failed(Failure { cause, first_hand }));
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
        &mut self,
        call: Option<u64>,
        ours: impl Fn(u64) -> Option<u64>,
    ) -> Option<(usize, Fault)> {
        self.receive();
        self.peers.iter().find_map(|(&rank, connection)| {
            if let Some(ControlMessage::Failed(Failure { cause, .. })) = connection.final_message
                && cause.is_within(self.size)
                && let Some(fault) = cause.as_mismatch(self.me, call.and_then(&ours))
            {
                return Some((cause.culprit, fault));
            }
            let Heartbeat { call: number, fingerprint: theirs, .. } = connection.heartbeat;
            let ours = ours(number).filter(|&ours| theirs != 0 && ours != theirs)?;
            let is_current = call == Some(number);
            let field =
                if is_current { MismatchField::Fingerprint } else { MismatchField::Earlier };
            call.map(|_| (rank, Fault::Mismatch { field, ours, theirs }))
        })
    }

    /// The failures that ranks report.
    pub(super) fn failures(&self) -> impl Iterator<Item = (usize, Failure)> {
        self.peers.iter().filter_map(|(&rank, connection)| match connection.final_message {
            Some(ControlMessage::Failed(failure)) => Some((rank, failure)),
            _ => None,
        })
    }

    /// The causes that ranks report, of their failure or of another communicator's.
    pub(super) fn causes(&self) -> impl Iterator<Item = (usize, FailureCause)> {
        self.peers.iter().filter_map(|(&rank, connection)| match connection.final_message {
            Some(
                ControlMessage::Failed(Failure { cause, .. })
                | ControlMessage::Goodbye { cause: Some(cause), .. },
            ) => Some((rank, cause)),
            _ => None,
        })
    }

    fn broadcast(&mut self, message: &ControlMessage) {
        let frame = message.encode();
        self.peers.values_mut().for_each(|connection| connection.send(&frame));
    }

    /// Sends a message of the recovery to rank `to`.
    pub(crate) fn send_recovery(&mut self, to: usize, message: RecoveryMessage) {
        if let Some(connection) = self.peers.get_mut(&to) {
            connection.send(&ControlMessage::Recovery(message).encode());
            self.sent_recovery = true;
        }
    }

    /// Receives what has arrived, so that peers can send more, also at a rank that never waits.
    pub(crate) fn receive(&mut self) {
        let Some(arrivals) = &self.arrivals else { return };
        loop {
            let mut events = [EpollEvent::empty(); EVENTS_PER_POLL];
            // A poll that does not wait fails for no reason that could pass.
            let Ok(count) = arrivals.wait(&mut events, EpollTimeout::ZERO) else { return };
            for event in &events[..count] {
                if let Some(connection) = self.peers.get_mut(&(event.data() as usize)) {
                    connection.receive();
                }
            }
            if count < EVENTS_PER_POLL {
                break;
            }
        }
        let is_due = |checked: Instant| checked.elapsed() >= KEEPALIVE_CHECK_INTERVAL;
        let checks = self.keepalive_checked.is_none_or(is_due);
        if checks {
            self.keepalive_checked = Some(Instant::now());
        }
        for connection in self.peers.values_mut() {
            connection.flush();
            if checks {
                connection.check_host();
            }
        }
    }

    /// The recovery messages that have arrived, with their senders; those of one rank in order.
    pub(crate) fn receive_recovery(&mut self) -> Vec<(usize, RecoveryMessage)> {
        self.receive();
        let mut messages = Vec::new();
        for (&rank, connection) in &mut self.peers {
            messages.extend(connection.recovery.drain(..).map(|message| (rank, message)));
        }
        messages
    }

    /// Sleeps until a message arrives, at most for `limit`; may return early.
    pub(crate) fn sleep(&self, limit: Duration) {
        let open = self.peers.values().filter(|connection| connection.ended.is_none());
        let mut fds: Vec<_> = open
            .map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN))
            .collect();
        let limit = PollTimeout::try_from(limit.min(MAX_SLEEP)).unwrap_or(PollTimeout::MAX);
        // The caller looks at all channels, whatever `poll` says.
        let _ = poll(&mut fds, limit);
    }

    /// Whether the channel to a rank has ended; and after a goodbye, whether the rank had sent
    /// recovery messages.
    pub(crate) fn end_of(&self, rank: usize) -> (bool, Option<bool>) {
        let connection = self.peers.get(&rank);
        let ended = connection.is_some_and(|connection| connection.ended.is_some());
        (ended, connection.and_then(|connection| connection.goodbye))
    }

    /// A rank without which calls cannot end, and the evidence: it reports the failure of another,
    /// or its process or host has ended. `has_ended` tells of the end of processes that other
    /// sources have seen.
    pub(crate) fn lost_peer(
        &mut self,
        has_ended: impl Fn(usize) -> bool,
    ) -> Option<(usize, Fault)> {
        self.receive();
        for (&rank, connection) in &mut self.peers {
            if connection.process_ended.is_none() && has_ended(rank) {
                connection.process_ended = Some(Instant::now());
            }
        }
        let ended = |rank| {
            let (since, evidence) = self.silent_end(rank)?;
            (since.elapsed() > LAST_MESSAGE_DELAY).then_some((rank, Fault::Lost(evidence)))
        };
        self.reported_failure().or_else(|| self.peers.keys().copied().find_map(ended))
    }

    /// The cause that is known by now of the end of the links to `rank`.
    pub(crate) fn cause_of_end(&mut self, rank: usize) -> Option<(usize, Fault)> {
        self.receive();
        let left = || match &self.peers.get(&rank)?.final_message {
            Some(ControlMessage::Goodbye { cause: Some(cause), .. }) => {
                (cause.culprit != self.me).then(|| (rank, Fault::GaveUp(Box::new(*cause))))
            }
            _ => None,
        };
        let ended = || Some((rank, Fault::Lost(self.silent_end(rank)?.1)));
        self.reported_failure().or_else(left).or_else(ended)
    }

    /// The fault of a rank whose host is unreachable; a link notices that only while it sends.
    pub(crate) fn unreachable_fault(&mut self, rank: usize) -> Option<Fault> {
        self.receive();
        let connection = self.peers.get(&rank)?;
        if connection.is_unreachable { Some(Fault::Lost(self.silent_end(rank)?.1)) } else { None }
    }

    /// True if this communicator has any control channel.
    pub(crate) fn has_any(&self) -> bool {
        !self.peers.is_empty()
    }

    /// True if a peer is on another host, or may be.
    pub(super) fn leave_host(&self) -> bool {
        self.peers.values().any(|connection| connection.is_tcp)
    }

    /// True if there is a control channel to `rank`.
    pub(crate) fn has(&self, rank: usize) -> bool {
        self.peers.contains_key(&rank)
    }

    /// A rank that has failed because of another rank than this one.
    fn reported_failure(&self) -> Option<(usize, Fault)> {
        self.failures().find_map(|(rank, failure)| failure.fault(rank, self.me))
    }

    /// A rank whose channel has ended without a final message.
    pub(crate) fn broken_connection(&self) -> Option<(usize, Fault)> {
        let ended = |rank| Some((rank, Fault::Lost(self.silent_end(rank)?.1)));
        self.peers.keys().copied().find_map(ended)
    }

    /// When and how a rank has ended that sent neither a goodbye nor a failure.
    fn silent_end(&self, rank: usize) -> Option<(Instant, String)> {
        let connection = self.peers.get(&rank)?;
        let process =
            connection.process_ended.map(|since| (since, "its process ended".to_string()));
        connection.ended.clone().or(process).filter(|_| connection.final_message.is_none())
    }
}

impl Drop for ControlChannels {
    fn drop(&mut self) {
        let (cause, sent_recovery) = (self.goodbye_cause, self.sent_recovery);
        self.broadcast(&ControlMessage::Goodbye { cause, sent_recovery });
        for connection in self.peers.values_mut() {
            // Unread bytes would make the system reset the connection before the goodbye arrives.
            connection.receive();
            // A Unix stream shows the life of this process to links that are still open.
            if connection.is_tcp {
                let _ = connection.stream.shutdown(Shutdown::Write);
            }
        }
    }
}
