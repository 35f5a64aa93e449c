//! One connection of a store's server: what it said, waits for and is still owed. May touch: wire,
//! socket. Law: one request at a time; what is kept for it is bounded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::socket::send_now;
use super::wire::{Frame, Inbox, Kind};

/// How long a connection may be silent before its first message, or pause inside one.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection.
pub(super) struct Guest {
    pub(super) socket: Socket,
    pub(super) inbox: Inbox,
    pub(super) outbox: Vec<u8>,
    /// Did this process bring it?
    adopted: bool,
    /// The number of its present meeting, from 1; 0 before its first message.
    pub(super) meeting: u64,
    /// What it waits for.
    pub(super) waiting: Option<Waiting>,
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
    pub(super) fn new(socket: Socket, adopted: bool) -> Self {
        Self {
            socket,
            inbox: Inbox::default(),
            outbox: Vec::new(),
            adopted,
            meeting: 0,
            waiting: None,
            since: Instant::now(),
            gone: false,
        }
    }

    /// Did it come by itself and say nothing yet?
    pub(super) fn is_stranger(&self) -> bool {
        !self.adopted && self.meeting == 0
    }

    /// Must it go on speaking? A stranger owes its first message, everybody the rest of one.
    fn is_unfinished(&self) -> bool {
        self.is_stranger() || self.inbox.is_partial()
    }

    /// When it is dropped unless it goes on speaking before.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.is_unfinished().then_some(self.since + PATIENCE)
    }

    pub(super) fn say(&mut self, kind: Kind, id: u32, key: &str, value: &[u8]) {
        let frame = Frame { kind, id, wait_ms: 0, key: key.into(), value: value.to_vec() };
        self.outbox.extend(frame.encode());
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
