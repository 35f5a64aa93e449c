//! Control channels to ranks without a link. A world of many ranks connects few pairs; a recovery
//! then makes the channels that it needs, each when the first frame is sent on it.
//! Law: either end may begin; until then a channel takes no descriptor, and tells nothing of the
//! other rank's end.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::{Domain, Socket, Type};

use super::ControlChannels;
use super::channels::{Channels, Linked};
use super::connection::ControlConnection;
use super::resume::ControlWay;
use super::shared::{Connections, PORT_EVENT, PREPARING};
use crate::error::{Error, Result};
use crate::transport::tcp::Attempt;

/// The way to the ranks of a communicator that this rank has no control channel to.
pub(crate) trait ReachRanks: Send + Sync + fmt::Debug {
    /// The way to a rank, and the lowest rank on its host; `None` if there is none.
    fn way_to(&self, rank: usize) -> Option<(Box<dyn ControlWay>, usize)>;

    /// The descriptor that is readable while connections may have come.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The ranks whose connections have come and that no channel has taken. Never waits.
    fn ranks_to_accept(&self) -> Vec<usize>;

    /// The number of connections that have come so far, those that another thread has taken in
    /// included.
    fn connections_received(&self) -> u64;
}

impl ControlChannels {
    /// Sets the ways to the ranks that have no channel.
    pub(crate) fn set_unlinked(&mut self, ways: Arc<dyn ReachRanks>) {
        self.unlinked = Some(ways);
    }

    /// Sees to channels to all other ranks; false if there is no way to one of them, as where ranks
    /// are threads.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub(crate) fn reach_all(&mut self) -> Result<bool> {
        let has_none = |rank: &usize| *rank != self.me && self.channels.number(*rank).is_none();
        let missing: Vec<_> = (0..self.size).filter(has_none).collect();
        match self.unlinked.clone() {
            _ if missing.is_empty() => Ok(true),
            None => Ok(false),
            Some(ways) => self.channels.add_unlinked(&missing, ways),
        }
    }

    /// Gives up a channel to a rank that has not answered yet, since others go on without the rank.
    pub(crate) fn give_up_unanswered(&self, rank: usize) {
        let mut connections = self.channels.lock();
        let number = self.channels.number(rank);
        if let Some(connection) = number.and_then(|number| connections.connection_mut(number))
            && !connection.has_stood()
        {
            connection.end("others go on without it".into());
        }
    }

    /// True if there is a control channel to `rank`, and a frame would not be its first one.
    pub(crate) fn is_in_use(&self, rank: usize) -> bool {
        let connections = &self.channels.lock();
        let channel = self.channels.channel(connections, rank);
        channel.is_some_and(|channel| !channel.connection.is_unused())
    }
}

impl Channels {
    /// Adds channels to these ranks without links, which connect with the first frame; false if
    /// there is no way to one of them.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub(super) fn add_unlinked(
        &mut self,
        ranks: &[usize],
        ways: Arc<dyn ReachRanks>,
    ) -> Result<bool> {
        let io = |error| Error::io("preparing control channels", error);
        let nowhere = Arc::new(Socket::new(Domain::UNIX, Type::STREAM, None).map_err(io)?);
        let found = ranks.iter().map(|&rank| Some((rank, ways.way_to(rank)?)));
        let Some(found) = found.collect::<Option<Vec<_>>>() else { return Ok(false) };
        let connections = &mut *self.connections.lock();
        connections.watch_for(ways)?;
        for (rank, (way, host)) in found {
            let nowhere = Arc::clone(&nowhere);
            let mut unused = ControlConnection::new(host, (nowhere, true), None, self.unreachable);
            unused.set_way(way, true);
            connections.insert(rank, unused);
            connections.open(rank, self.key);
            self.peers.push(Linked { rank, number: rank, has_heartbeats: false });
        }
        self.peers.sort_unstable_by_key(|linked| linked.rank);
        // Connections that have come are no event of the port any more.
        connections.note_arrived(true);
        Ok(true)
    }
}

impl Connections {
    /// Watches for connections that ranks without a link make.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub(super) fn watch_for(&mut self, ways: Arc<dyn ReachRanks>) -> Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, PORT_EVENT);
        let added = self.arrivals_or_new()?.add(ways.descriptor(), event);
        added.map_err(|no| Error::io(PREPARING, no))?;
        self.unlinked = Some(ways);
        Ok(())
    }

    /// Notes which ranks without a link have made connections, if the port `is_ready` or another
    /// thread has taken in what came there.
    pub(super) fn note_arrived(&mut self, is_ready: bool) {
        let Some(ranks) = self.unlinked.clone() else { return };
        // A connection that another thread takes in meanwhile must be looked for again.
        let received = ranks.connections_received();
        if !is_ready && received == self.connections_noted {
            return;
        }
        for number in ranks.ranks_to_accept() {
            if let Some(connection) = self.connection_mut(number) {
                connection.has_come = true;
            }
        }
        self.connections_noted = received;
    }
}

impl ControlConnection {
    /// True until the first frame for or from a rank without a link.
    pub(super) fn is_unused(&self) -> bool {
        self.resumption.as_deref().is_some_and(|it| !it.has_stood && it.attempt.is_none())
    }

    /// Begins to use a channel to a rank without a link: this end makes a connection.
    pub(super) fn begin_use(&mut self) {
        if self.make_keys()
            && let Some(it) = self.resumption.as_deref_mut()
        {
            let how = "nothing listens at its address, so its process ended".into();
            it.attempt = Some(Attempt::new(how, 0, Duration::ZERO, self.unreachable_after));
        }
    }

    /// Makes the keys of a channel to a rank without a link; false if the channel has ended.
    pub(super) fn make_keys(&mut self) -> bool {
        let keys = self.resumption.as_deref().and_then(|it| it.way.keys());
        self.keys = keys.map(Box::new);
        if self.keys.is_none() {
            self.end("its record has no key for a control channel".into());
        }
        self.keys.is_some()
    }

    /// True once a connection has been made, and of each channel that has ended. A rank without a
    /// link may have none yet.
    pub(super) fn has_stood(&self) -> bool {
        self.resumption.as_deref().is_none_or(|it| it.has_stood)
    }
}
