//! One connection of a store's server: what it said, waits for and is still owed. May touch:
//! entry, progress, wire, socket. Law: one request at a time; what is kept for it is bounded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::protocol::{Frame, Inbox, Kind};
use crate::bootstrap::auth::acceptor::{Entry, Sealing};
use crate::bootstrap::progress::Progress;
use crate::bootstrap::socket::send_now;
use crate::transport::aead::{Sealer, Seals};

/// How long a client may be silent before its first message, or pause inside one.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection.
pub(super) struct Guest {
    pub(super) socket: Socket,
    pub(super) inbox: Inbox,
    pub(super) outbox: Vec<u8>,
    /// What it is told is sealed by this, if it had to prove who it is.
    sealer: Option<Sealer>,
    /// Its handshake, until it has proved who it is. Who was brought by this process need not.
    pub(super) entry: Option<Entry>,
    /// The rank that the client has proved to be in its handshake; none for an adopted connection.
    pub(super) proved: Option<u32>,
    /// The number of its present meeting, from 1; 0 before its first message.
    pub(super) meeting: u64,
    /// What it waits for.
    pub(super) waiting: Option<Waiting>,
    /// Its ticket while it waits outside, and what it says of itself.
    pub(super) outside: Option<(u64, Vec<u8>)>,
    /// Did it come to a job that runs?
    pub(super) came_later: bool,
    pub(super) progress: Progress,
    /// When it connected, or when its present message began to come.
    pub(super) since: Instant,
    pub(super) gone: bool,
}

pub(super) struct Waiting {
    pub(super) id: u32,
    pub(super) keys: String,
    pub(super) until: Instant,
}

impl Guest {
    /// One that this process brings, or else one that has to pass `entry`.
    pub(super) fn new(socket: Socket, entry: Option<Entry>) -> Self {
        Self {
            socket,
            proved: None,
            entry,
            inbox: Inbox::default(),
            outbox: Vec::new(),
            sealer: None,
            meeting: 0,
            waiting: None,
            outside: None,
            came_later: false,
            progress: Progress::default(),
            since: Instant::now(),
            gone: false,
        }
    }

    /// The client has proved that it is `rank` of this job.
    pub(super) fn let_in(&mut self, rank: u32, sealing: Sealing) {
        (self.entry, self.proved, self.since) = (None, Some(rank), Instant::now());
        if let Some(Seals { sealer, opener }) = sealing {
            (self.sealer, self.inbox) = (Some(sealer), Inbox::sealed(opener));
        }
    }

    /// When it is dropped unless it goes on speaking before. Who came by itself owes its first
    /// message, everybody the rest of one.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        if let Some(entry) = &self.entry {
            return Some(entry.until);
        }
        let owes = self.proved.is_some() && self.meeting == 0 || self.inbox.is_partial();
        owes.then_some(self.since + PATIENCE)
    }

    pub(super) fn say(&mut self, kind: Kind, id: u32, key: &str, value: &[u8]) {
        let frame = Frame { kind, id, wait_ms: 0, key: key.into(), value: value.to_vec() };
        match frame.travelling(self.sealer.as_mut()) {
            Some(bytes) => self.outbox.extend(bytes),
            None => self.gone = true,
        }
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match send_now(&self.socket, &self.outbox) {
                Ok(Some(count)) => drop(self.outbox.drain(..count)),
                Ok(None) => return,
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }

    /// Answers its wait if one of the keys has a value.
    pub(super) fn look(&mut self, values: &BTreeMap<(u64, String), Vec<u8>>) {
        let Some(waiting) = self.waiting.take() else { return };
        for key in waiting.keys.lines() {
            if let Some(value) = values.get(&(self.meeting, key.into())) {
                self.say(Kind::Value, waiting.id, key, value);
                return;
            }
        }
        self.waiting = Some(waiting);
    }
}
