//! The channels of one communicator over connections that it may share with others. Its control
//! channels use them, and so does any thread that makes a subgroup.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use super::LAST_MESSAGE_DELAY;
use super::keepalive::configure;
use super::parents::{Parent, ParentNames};
use super::resume::ControlWay;
use super::shared::{Channel, Connections, SharedConnections};
use crate::error::{Error, Result};
use crate::health::control_message::{ControlMessage, GroupMessage, Heartbeat};
use crate::sync::{Instant, MAX_SLEEP};
use crate::transport::LinkContent;
use crate::transport::aead::AeadKeys;

/// How a rank has left to which there is no channel.
const NO_CONNECTION: &str = "there is no connection to it any more";
/// How a rank has left that has said goodbye.
const CLOSED: &str = "it has closed its communicator";

/// How long a sleep lasts while a connection is broken.
const RESUME_POLL: Duration = Duration::from_millis(5);

/// A rank that there is a channel to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linked {
    pub(super) rank: usize,
    /// The number of its connection.
    pub(super) number: usize,
    /// The two ranks send each other heartbeats.
    pub(super) has_heartbeats: bool,
}

/// The channels of one communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    /// The key of the communicator, which all its ranks know.
    pub(super) key: u64,
    /// A host without a sign of life for this long counts as unreachable.
    pub(super) unreachable: Duration,
    pub(super) connections: Arc<SharedConnections>,
    /// The channels by rank, ascending. A rank that waits goes through all of them.
    pub(super) peers: Vec<Linked>,
    /// The parent, if it shares its connections and goes on too.
    pub(super) parent: Option<Arc<Parent>>,
}

impl Channels {
    pub(super) fn new(key: u64, unreachable: Duration) -> Self {
        Self { key, unreachable, ..Self::default() }
    }

    /// The channels of rank `me` of a subgroup with this key, whose ranks here are `members`; these
    /// are the names here, and the call that makes it. Without names, it has no parent to tell.
    pub(super) fn subgroup(
        &self,
        (me, members): (usize, &[usize]),
        (names, call): (Option<&ParentNames>, Option<u64>),
        key: u64,
    ) -> Self {
        let parent = names.map(|names| Parent {
            channels: self.clone(),
            names: names.clone(),
            members: members.into(),
            me: members[me],
            call,
        });
        let others = members.iter().enumerate().filter(|&(rank, _)| rank != me);
        let linked = |(rank, &old): (_, &usize)| {
            Some(Linked { rank, number: self.number(old)?, has_heartbeats: true })
        };
        let peers: Vec<_> = others.filter_map(linked).collect();
        peers.iter().for_each(|linked| self.lock().open(linked.number, key));
        Self {
            key,
            unreachable: self.unreachable,
            connections: Arc::clone(&self.connections),
            peers,
            parent: parent.map(Arc::new),
        }
    }

    pub(super) fn add(
        &mut self,
        (peer, host): (usize, usize),
        (stream, keys): (Socket, Option<AeadKeys>),
    ) -> Result<Arc<Socket>> {
        let is_tcp = configure(&stream, self.unreachable)
            .map_err(|error| Error::io("preparing a control connection", error))?;
        let stream = Arc::new(stream);
        let own = Arc::clone(&stream);
        let connections = &mut *self.connections.lock();
        connections.add((peer, host), (own, is_tcp), keys, self.unreachable)?;
        connections.open(peer, self.key);
        let at = self.peers.partition_point(|linked| linked.rank < peer);
        self.peers.insert(at, Linked { rank: peer, number: peer, has_heartbeats: true });
        Ok(stream)
    }

    /// Limits heartbeats to the ranks for which `are_due` is true. It must be true at those for
    /// this rank, too.
    pub(super) fn limit_heartbeats(&mut self, are_due: impl Fn(usize) -> bool) {
        for linked in &mut self.peers {
            linked.has_heartbeats = are_due(linked.rank);
        }
    }

    /// Sets the way on which the connection of this number is made anew if it breaks.
    pub(crate) fn set_way(&self, number: usize, way: Box<dyn ControlWay>) {
        self.lock().set_way(number, way);
    }

    /// True while `rank` lives and has neither left nor failed, as far as is known.
    pub(crate) fn is_there(&self, rank: usize) -> bool {
        let connections = &self.received();
        self.channel(connections, rank).is_some_and(|Channel { connection, inbox }| {
            let has_ended = connection.ended.is_some() || connection.process_ended.is_some();
            !has_ended && inbox.final_message.is_none()
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock()
    }

    /// The connections, with what has arrived.
    pub(super) fn received(&self) -> MutexGuard<'_, Connections> {
        let mut connections = self.lock();
        connections.receive();
        connections
    }

    /// The stream of the channel to `rank`, which links may share.
    pub(crate) fn stream(&self, rank: usize) -> Option<Arc<Socket>> {
        let connections = &self.lock();
        self.channel(connections, rank).map(|channel| Arc::clone(&channel.connection.stream))
    }

    /// The number of the connection to `rank`.
    pub(crate) fn number(&self, rank: usize) -> Option<usize> {
        self.linked(rank).map(|linked| linked.number)
    }

    fn linked(&self, rank: usize) -> Option<&Linked> {
        let at = self.peers.binary_search_by_key(&rank, |linked| linked.rank).ok()?;
        self.peers.get(at)
    }

    /// True if this rank and `rank` send each other heartbeats.
    pub(super) fn has_heartbeats(&self, rank: usize) -> bool {
        self.linked(rank).is_some_and(|linked| linked.has_heartbeats)
    }

    /// All channels, as they are now.
    pub(super) fn all<'a>(
        &'a self,
        connections: &'a Connections,
    ) -> impl Iterator<Item = (usize, Channel<'a>)> {
        let channel = |&Linked { rank, number, .. }: &Linked| {
            Some((rank, connections.channel(number, self.key)?))
        };
        self.peers.iter().filter_map(channel)
    }

    /// The channel to `rank`, as it is now.
    pub(super) fn channel<'a>(
        &self,
        connections: &'a Connections,
        rank: usize,
    ) -> Option<Channel<'a>> {
        connections.channel(self.number(rank)?, self.key)
    }

    pub(super) fn broadcast(&self, message: &ControlMessage) {
        let (frame, connections) = (message.encode(self.key), &mut *self.lock());
        for linked in &self.peers {
            // A rank without a link learns of the message from those that have one to it.
            if let Some(connection) = connections.connection_mut(linked.number)
                && !connection.is_unused()
            {
                connection.send(&frame, None);
            }
        }
    }

    /// Sends a heartbeat of rank `me` to the ranks that expect one, to the rank that it waits for,
    /// and to those whose own say that they wait for `me`.
    pub(super) fn send_heartbeat(&self, me: usize, heartbeat: Heartbeat) {
        let frame = ControlMessage::Heartbeat(heartbeat).encode(self.key);
        let connections = &mut *self.lock();
        for &Linked { rank, number, has_heartbeats } in &self.peers {
            // A parent may have been dropped here or there.
            let channel = connections.channel(number, self.key);
            let is_due = channel.is_some_and(|Channel { connection, inbox }| {
                let is_expected =
                    has_heartbeats || heartbeat.waits_for == rank as u64 + 1 || inbox.waits_for(me);
                let is_open = inbox.goodbye.is_none() && !connection.is_unused();
                is_expected && is_open && !connection.is_congested()
            });
            if is_due && let Some(connection) = connections.connection_mut(number) {
                connection.send(&frame, None);
            }
        }
    }

    /// Tells the ranks of the parent, and of its parents, that this rank waits in a call of this
    /// communicator, for rank `waits_for` here. They may wait for this rank.
    pub(super) fn send_parents_heartbeat(&self, waits_for: usize) {
        let Some(Parent { channels: parent, members, me, .. }) = self.parent.as_deref() else {
            return;
        };
        let Some(&waits_for) = members.get(waits_for) else { return };
        let heartbeat = Heartbeat { waits_for: waits_for as u64 + 1, ..Heartbeat::default() };
        parent.send_parents_heartbeat(waits_for);
        parent.send_heartbeat(*me, heartbeat);
    }

    /// Waits, for `most`, until the systems of the peers have the frames for them: a connection
    /// that is broken may be made anew by then. A connection that other communicators go on with
    /// sends its own later.
    pub(super) fn await_owed_frames(&self, most: Duration) {
        let until = Instant::now() + most;
        let owes = |connections: &Connections| {
            self.all(connections).any(|(_, Channel { connection, .. })| {
                connection.serves_only(self.key) && connection.owes_frames()
            })
        };
        while owes(&self.received()) && Instant::now() < until {
            std::thread::sleep(RESUME_POLL);
        }
    }

    /// Gives up the connection of this number, which may stand; true if it was in use.
    #[cfg(test)]
    pub(crate) fn give_up_connection(&self, number: usize) -> bool {
        let mut connections = self.lock();
        let connection = connections.connection_mut(number);
        connection.is_some_and(|connection| {
            let is_in_use = !connection.owes_frames();
            if is_in_use {
                connection.break_off(&std::io::ErrorKind::TimedOut.into(), Duration::ZERO);
            }
            is_in_use
        })
    }

    /// Sends a message to rank `to`, with `fd` if it is [`ControlMessage::Descriptor`]; false if
    /// there is no channel to the rank.
    pub(super) fn send(&self, to: usize, message: &ControlMessage, fd: Option<OwnedFd>) -> bool {
        let connections = &mut *self.lock();
        let connection = self.number(to).and_then(|number| connections.connection_mut(number));
        connection.map(|connection| connection.send(&message.encode(self.key), fd)).is_some()
    }

    /// The time without a sign of life after which a host counts as unreachable.
    pub(super) fn unreachable(&self) -> Duration {
        self.unreachable
    }

    /// The key of the communicator, which all its ranks know.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Tells rank `to` that this rank sends on the link of this content. Without this word, the
    /// goodbye of this rank says that nothing comes on that link.
    pub(crate) fn announce_link(&self, to: usize, content: LinkContent) {
        self.send(to, &ControlMessage::Sends(content), None);
    }

    /// Checks that rank `from` may still send on a link of this content that it has not opened.
    ///
    /// # Errors
    /// How the rank has left.
    pub(crate) fn check_sender(
        &self,
        from: usize,
        content: LinkContent,
    ) -> std::result::Result<(), String> {
        let connections = &self.received();
        let channel = self.channel(connections, from);
        let Channel { connection, inbox } = channel.ok_or_else(|| NO_CONNECTION.to_owned())?;
        let sends = inbox.sends.contains(&content);
        match (inbox.goodbye, &connection.ended) {
            // A stream may come after the goodbye, as long as the peer's system sends it again.
            (Some(_), _) if sends && inbox.has_left_within(self.unreachable) => Ok(()),
            (Some(_), _) => Err(CLOSED.into()),
            (None, Some((since, _))) if sends && since.elapsed() <= LAST_MESSAGE_DELAY => Ok(()),
            (None, Some((_, how))) => Err(how.clone()),
            (None, None) => Ok(()),
        }
    }

    /// Checks that the process of `rank` has not died.
    ///
    /// # Errors
    /// How its connection has ended.
    pub(crate) fn check_life(&self, rank: usize) -> std::result::Result<(), String> {
        let connections = &self.received();
        match self.channel(connections, rank).and_then(|channel| channel.silent_end()) {
            // Its last message may be under way.
            Some((since, how)) if since.elapsed() > LAST_MESSAGE_DELAY => Err(how),
            _ => Ok(()),
        }
    }

    /// True for those of a subgroup that shares the connections of its parent.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Checks that rank `to` has not closed its communicator, so that it may still receive.
    ///
    /// # Errors
    /// How the rank has left.
    pub(crate) fn check_receiver(&self, to: usize) -> std::result::Result<(), String> {
        let connections = &self.received();
        let goodbye = self.channel(connections, to).and_then(|channel| channel.inbox.goodbye);
        goodbye.map_or(Ok(()), |_| Err(CLOSED.into()))
    }

    /// Sends rank `to` a message about a group that is being made; false if there is no channel to
    /// it.
    pub(crate) fn send_group_message(&self, to: usize, message: GroupMessage) -> bool {
        self.send(to, &ControlMessage::Group(message), None)
    }

    /// The latest message of rank `from` about a group with this digest. Earlier ones are of
    /// attempts that have ended.
    ///
    /// # Errors
    /// How the rank has left, if no such message can come any more.
    pub(crate) fn receive_group_message(
        &self,
        from: usize,
        digest: u64,
    ) -> std::result::Result<Option<GroupMessage>, String> {
        let connections = &mut *self.received();
        let missing = || NO_CONNECTION.to_owned();
        let number = self.number(from).ok_or_else(missing)?;
        let connection = connections.connection_mut(number).ok_or_else(missing)?;
        let ended = connection.ended.as_ref().map(|(_, how)| how.clone());
        let inbox = connection.inbox_mut(self.key).ok_or_else(missing)?;
        let latest = inbox.groups.iter().rfind(|message| message.digest == digest).copied();
        inbox.groups.retain(|message| message.digest != digest);
        // A rank whose calls have failed may make a group all the same.
        match (latest, ended, inbox.goodbye) {
            (Some(message), ..) => Ok(Some(message)),
            (None, Some(how), _) => Err(how),
            (None, None, Some(_)) => Err(CLOSED.into()),
            (None, None, None) => Ok(None),
        }
    }

    /// Sleeps until a message arrives, at most for `limit`; may return early, and late if another
    /// communicator of these processes takes the message.
    pub(crate) fn sleep(&self, limit: Duration) {
        let connections = self.lock();
        let (arrivals, is_broken) = (connections.arrivals(), connections.any_broken());
        drop(connections);
        // No event tells when a broken connection stands again.
        let limit = if is_broken { limit.min(RESUME_POLL) } else { limit };
        let mut fd =
            arrivals.as_deref().map(|arrivals| PollFd::new(arrivals.0.as_fd(), PollFlags::POLLIN));
        let limit = PollTimeout::try_from(limit.min(MAX_SLEEP)).unwrap_or(PollTimeout::MAX);
        // The caller looks at all channels, whatever `poll` says.
        let _ = poll(fd.as_mut_slice(), limit);
    }
}
