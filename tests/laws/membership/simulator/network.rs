//! The event queue: messages under way, faults, and the actions of programs.
//! Law: messages of one process to another on one channel arrive in order, or not at all.

use std::collections::{BTreeMap, BinaryHeap};

use core::cmp::Reverse;

use super::DELAY;
use super::connecting::Greeting;
use super::faults::Fault;
use ringreduce::recovery::membership::{Evidence, Message, Time};
use ringreduce::sim::Random;

/// A message of an operation, which the membership does not see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) epoch: u32,
    pub(super) sequence: u64,
    /// True: the sender's result is complete. False: the message is the sender's part.
    pub(super) full: bool,
}

/// An event. Processes have numbers, because a rank may have several processes, one after the
/// other.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Message {
        from: usize,
        to: usize,
        /// The communicator of the state machines.
        group: usize,
        message: Box<Message>,
    },
    Token {
        from: usize,
        to: usize,
        group: usize,
        token: Token,
    },
    Greeting {
        from: usize,
        to: usize,
        greeting: Greeting,
    },
    /// The time to connect after the decision of an epoch of a communicator is over; for a joiner,
    /// the time to be admitted to the communicator.
    Limit {
        at: usize,
        group: usize,
        epoch: u32,
    },
    Tick {
        at: usize,
    },
    /// The next action of the program.
    Move {
        at: usize,
    },
    Evidence {
        at: usize,
        of: usize,
        evidence: Evidence,
    },
    /// An operation of `epoch` still waits for a rank that said goodbye.
    Awaited {
        at: usize,
        of: usize,
        epoch: u32,
    },
    Fault(Fault),
    Resume {
        at: usize,
    },
    Start,
    /// Process `at` learns that process `of` is ready to join.
    Ready {
        at: usize,
        of: usize,
    },
}

/// Sender, receiver, and true for messages of operations.
type Channel = (usize, usize, bool);

pub(super) struct Network {
    pub(super) now: Time,
    queue: BinaryHeap<Reverse<(Time, u32)>>,
    events: Vec<Event>,
    /// The arrival of the last message of each channel.
    last: BTreeMap<Channel, Time>,
    /// The time until which messages of a link are delayed; `Time::MAX` loses them.
    blocked: BTreeMap<(usize, usize), Time>,
    /// The time from which no message of a link arrives.
    broken: BTreeMap<(usize, usize), Time>,
}

impl Network {
    pub(super) fn new() -> Self {
        let (last, blocked, broken) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (queue, events) = (BinaryHeap::new(), Vec::new());
        Self { now: 0, queue, events, last, blocked, broken }
    }

    pub(super) fn at(&mut self, time: Time, event: Event) {
        self.queue.push(Reverse((time.max(self.now), self.events.len() as u32)));
        self.events.push(event);
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        let Reverse((time, number)) = self.queue.pop()?;
        self.now = time;
        self.events.get(number as usize).cloned()
    }

    pub(super) fn send(&mut self, from: usize, to: usize, event: Event, random: &mut Random) {
        let link = (from, to);
        let free = self.blocked.get(&link).copied().unwrap_or(0);
        if free == Time::MAX || self.broken.contains_key(&link) {
            return;
        }
        let earliest = self.now.max(free) + 1 + random.below(DELAY) as Time;
        let last = self.last.entry((from, to, matches!(event, Event::Token { .. }))).or_insert(0);
        *last = earliest.max(*last + 1);
        let time = *last;
        self.at(time, event);
    }

    /// True if messages from one process to the other arrive now.
    pub(super) fn arrives(&self, from: usize, to: usize) -> bool {
        self.broken.get(&(from, to)).is_none_or(|&since| self.now <= since)
    }

    pub(super) fn block(&mut self, from: usize, to: usize, until: Time) {
        let blocked = self.blocked.entry((from, to)).or_insert(0);
        *blocked = until.max(*blocked);
    }

    pub(super) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.blocked.get(&(from, to)).is_some_and(|&until| until > self.now)
    }

    /// True if messages between two processes were never delayed or lost.
    pub(super) fn was_always_open(&self, one: usize, other: usize) -> bool {
        let links = [(one, other), (other, one)];
        links.iter().all(|it| !self.blocked.contains_key(it) && !self.broken.contains_key(it))
    }

    /// Loses all messages that would arrive after `since`.
    pub(super) fn sever(&mut self, from: usize, to: usize, since: Time) {
        let broken = self.broken.entry((from, to)).or_insert(since);
        *broken = since.min(*broken);
    }
}
