//! The control connections of a process, which the communicators of the same processes share: a
//! communicator that met through a store has made them, and its subgroups use them too.
//! Law: a connection ends with the last communicator here that uses it.

use std::collections::{BTreeMap, VecDeque};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::connection::ControlConnection;
use super::host_watch::HostWatch;
use super::inbox::Inbox;
use super::resume::ControlWay;
use super::unlinked::ReachRanks;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result};
use crate::health::control_message::RecoveryMessage;
use crate::sync::Instant;
use crate::transport::Fault;
use crate::transport::aead::AeadKeys;

/// How often the system is asked whether the other hosts still give a sign of life, and how much
/// longer that takes for each connection: a process of many has other things to do.
const KEEPALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const INTERVAL_PER_CONNECTION: Duration = Duration::from_millis(1);

/// How long the report of another rank counts that a host is unreachable, which may come back.
const REPORTED_LOSS_TIME: Duration = Duration::from_secs(30);

/// Stands for the port of this process among the numbers of connections.
pub(super) const PORT_EVENT: u64 = u64::MAX;

pub(super) const PREPARING: &str = "preparing a control connection";

/// The most connections of which one system call tells that something has arrived.
const EVENTS_PER_POLL: usize = 32;

/// The connections, for any thread. No thread sleeps while it holds the lock.
#[derive(Debug, Default)]
pub(super) struct SharedConnections(Mutex<Connections>);

impl SharedConnections {
    pub(super) fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Edge-triggered: a channel that has ended is told once.
fn event(number: usize) -> EpollEvent {
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
    EpollEvent::new(flags, number as u64)
}

/// The connections by their numbers: the ranks in the communicator that made them.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<Option<Box<ControlConnection>>>,
    /// Tells on which connections something has arrived since it was last asked, so that a rank
    /// that waits makes one system call and not one for each peer.
    arrivals: Option<Arc<Epoll>>,
    /// The ways to ranks without a link, which may make connections too.
    pub(super) unlinked: Option<Arc<dyn ReachRanks>>,
    /// How many of their connections had come when they were last looked for.
    pub(super) connections_noted: u64,
    /// The look at each host.
    hosts: Vec<HostWatch>,
    /// The hosts that other ranks have found unreachable, and when this one learned so.
    lost_elsewhere: BTreeMap<usize, Instant>,
    /// When the hosts' signs of life were last looked for.
    keepalive_checked: Option<Instant>,
}

/// The control channel to one rank: a connection, and the communicator's inbox there.
pub(super) struct Channel<'a> {
    pub(super) connection: &'a ControlConnection,
    pub(super) inbox: &'a Inbox,
}

impl Channel<'_> {
    /// When and how a rank has ended that sent neither a goodbye nor a failure.
    pub(super) fn silent_end(&self) -> Option<(Instant, String)> {
        let Self { connection, inbox } = self;
        let process =
            connection.process_ended.map(|since| (since, "its process ended".to_string()));
        connection.ended.clone().or(process).filter(|_| inbox.final_message.is_none())
    }

    /// As [`Self::silent_end`], as a fault: of the rank, or of this process.
    pub(super) fn silent_fault(&self) -> Option<(Instant, Fault)> {
        let (since, how) = self.silent_end()?;
        let own = self.connection.own_lack.clone().map(|error| Fault::NoMemory(Box::new(error)));
        Some((since, own.unwrap_or(Fault::Lost(how))))
    }
}

impl Connections {
    /// Adds a connection, whose socket does not wait.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub(super) fn add(
        &mut self,
        (number, host): (usize, usize),
        (stream, is_tcp): (Arc<Socket>, bool),
        keys: Option<AeadKeys>,
        unreachable: Duration,
    ) -> Result<()> {
        let added = self.arrivals_or_new()?.add(&stream, event(number));
        added.map_err(|no| Error::io(PREPARING, no))?;
        let stream = (stream, is_tcp);
        self.insert(number, ControlConnection::new(host, stream, keys, unreachable));
        Ok(())
    }

    /// Adds a connection that nothing arrives on yet.
    pub(super) fn insert(&mut self, number: usize, connection: Box<ControlConnection>) {
        if self.hosts.len() <= connection.host {
            self.hosts.resize(connection.host + 1, HostWatch::default());
        }
        if self.all.len() <= number {
            self.all.resize_with(number + 1, || None);
        }
        self.all[number] = Some(connection);
    }

    pub(super) fn arrivals_or_new(&mut self) -> Result<&Arc<Epoll>> {
        let arrivals = match self.arrivals.take() {
            Some(arrivals) => arrivals,
            None => Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
                .map_err(|no| Error::io(PREPARING, name_refused_call("epoll_create1", no)))?
                .into(),
        };
        Ok(self.arrivals.insert(arrivals))
    }

    fn get(&self, number: usize) -> Option<&ControlConnection> {
        self.all.get(number)?.as_deref()
    }

    fn get_mut(&mut self, number: usize) -> Option<&mut ControlConnection> {
        self.all.get_mut(number)?.as_deref_mut()
    }

    /// Sets the way on which a connection is made anew if it breaks.
    pub(super) fn set_way(&mut self, number: usize, way: Box<dyn ControlWay>) {
        if let Some(connection) = self.get_mut(number) {
            connection.set_way(way, false);
        }
    }

    /// Opens the channel of the communicator `key` over a connection.
    pub(super) fn open(&mut self, number: usize, key: u64) {
        if let Some(connection) = self.get_mut(number) {
            connection.open(key);
        }
    }

    /// Closes the channel of the communicator `key`, and a connection that no other one uses.
    pub(super) fn close(&mut self, number: usize, key: u64) {
        let Some(connection) = self.all.get_mut(number).and_then(Option::as_mut) else { return };
        // Unread bytes would make the system reset the connection before the goodbye arrives.
        connection.receive();
        connection.may_be_busy = true;
        if !connection.leave(key) {
            return;
        }
        // A Unix stream shows the life of this process to links that are still open.
        if connection.is_tcp {
            let _ = connection.stream.shutdown(Shutdown::Write);
        }
        if let Some(arrivals) = &self.arrivals {
            let _ = arrivals.delete(&connection.stream);
        }
        self.all[number] = None;
    }

    pub(super) fn channel(&self, number: usize, key: u64) -> Option<Channel<'_>> {
        let connection = self.get(number)?;
        Some(Channel { connection, inbox: connection.inbox(key)? })
    }

    /// The number of inboxes of a connection.
    #[cfg(test)]
    pub(super) fn inboxes(&self, number: usize) -> usize {
        self.get(number).map_or(0, |connection| connection.inboxes())
    }

    /// A connection, to send on.
    pub(super) fn connection_mut(&mut self, number: usize) -> Option<&mut ControlConnection> {
        let connection = self.get_mut(number)?;
        connection.may_be_busy = true;
        Some(connection)
    }

    /// The inbox of the communicator `key`, to take from.
    pub(super) fn inbox_mut(&mut self, number: usize, key: u64) -> Option<&mut Inbox> {
        self.get_mut(number)?.inbox_mut(key)
    }

    /// Takes the recovery messages of a connection for the communicator `key`.
    pub(super) fn take_recovery(&mut self, number: usize, key: u64) -> VecDeque<RecoveryMessage> {
        self.get_mut(number).map(|connection| connection.take_recovery(key)).unwrap_or_default()
    }

    /// Notes that another source has seen the end of the process at the other end.
    pub(super) fn note_process_end(&mut self, number: usize) {
        if let Some(connection) = self.get_mut(number) {
            connection.process_ended.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that another rank has found the host of a connection unreachable.
    pub(super) fn note_loss_elsewhere(&mut self, number: usize) {
        if let Some(host) = self.get(number).map(|connection| connection.host) {
            self.lost_elsewhere.insert(host, Instant::now());
        }
    }

    /// The poll that tells that something has arrived.
    pub(super) fn arrivals(&self) -> Option<Arc<Epoll>> {
        self.arrivals.clone()
    }

    /// True if a connection is being made anew, which no arrival tells.
    pub(super) fn any_broken(&self) -> bool {
        self.all.iter().flatten().any(|connection| connection.is_broken())
    }

    /// Receives what has arrived, for all communicators.
    pub(super) fn receive(&mut self) {
        let Some(arrivals) = self.arrivals.clone() else { return };
        let mut port_is_ready = false;
        loop {
            let mut events = [EpollEvent::empty(); EVENTS_PER_POLL];
            // A poll that does not wait fails for no reason that could pass.
            let Ok(count) = arrivals.wait(&mut events, EpollTimeout::ZERO) else { return };
            for event in &events[..count] {
                if event.data() == PORT_EVENT {
                    port_is_ready = true;
                } else if let Some(connection) = self.connection_mut(event.data() as usize) {
                    connection.receive();
                }
            }
            if count < EVENTS_PER_POLL {
                break;
            }
        }
        self.note_arrived(port_is_ready);
        let interval = KEEPALIVE_CHECK_INTERVAL + INTERVAL_PER_CONNECTION * self.all.len() as u32;
        let is_due = |checked: Instant| checked.elapsed() >= interval;
        let checks = self.keepalive_checked.is_none_or(is_due);
        if checks {
            self.keepalive_checked = Some(Instant::now());
            self.hosts.fill(HostWatch::default());
            for (&host, since) in &self.lost_elsewhere {
                if since.elapsed() < REPORTED_LOSS_TIME {
                    self.hosts[host].note_loss_elsewhere();
                }
            }
            for connection in self.all.iter().flatten() {
                self.hosts[connection.host].note_loss(connection);
            }
        }
        for (number, connection) in self.all.iter_mut().enumerate() {
            let looked =
                |connection: &&mut Box<ControlConnection>| checks || connection.may_be_busy;
            let Some(connection) = connection.as_mut().filter(looked) else { continue };
            let has_come = std::mem::take(&mut connection.has_come);
            if connection.resume(checks || has_come)
                && let Err(error) = arrivals.add(&connection.stream, event(number))
            {
                let how = format!("no place for its new connection: {error}");
                connection.end(how);
            }
            connection.flush();
            if checks {
                self.hosts[connection.host].look(connection);
            }
            connection.may_be_busy = connection.is_busy();
        }
    }
}
