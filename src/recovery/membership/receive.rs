//! Messages, by their epoch. May touch: the room. Laws: an older epoch's change nothing, a newer
//! one's wait; whoever speaks from an epoch long past is told so.

use super::member::{Member, State, Verdict};
use super::message::{Body, Kind, Message, Value};
use super::ranks::Ranks;

/// So many messages of later epochs are kept.
const PARKED: usize = 8 * Ranks::CAPACITY as usize;

/// Members are at most one agreement apart; more room than that is not needed.
const AHEAD: u32 = 8;

impl Member {
    pub(super) fn receive(&mut self, from: u32, message: &Message) {
        if self.state == State::Joining {
            return self.receive_joining(from, message);
        }
        match message.epoch.cmp(&self.epoch) {
            core::cmp::Ordering::Less => self.receive_older(from, message),
            core::cmp::Ordering::Equal => self.receive_same(from, message),
            core::cmp::Ordering::Greater => self.receive_newer(from, message),
        }
    }

    fn receive_joining(&mut self, from: u32, message: &Message) {
        match &message.body {
            Body::Evicted => self.end(Some(Verdict::Evicted { epoch: message.epoch })),
            Body::Decide(value) if value.joined.contains(self.me) => {
                self.epoch = message.epoch;
                self.forget(value.joined);
                self.install(message.slot, *value);
            }
            _ => self.park(from, message),
        }
    }

    /// The sender missed how this epoch began, or belongs to the past.
    fn receive_older(&mut self, from: u32, message: &Message) {
        let born = self.born.get(&from).copied().unwrap_or(0);
        let member = self.members.contains(from) && message.epoch >= born;
        match message.body {
            // Answers to nothing: who is behind will speak again.
            Body::Evicted | Body::Decide(_) => {}
            Body::Goodbye(will) if member => self.goodbye(from, will),
            Body::Goodbye(_) => {}
            _ => self.catch_up(message.epoch, member),
        }
    }

    fn catch_up(&mut self, epoch: u32, member: bool) {
        let late = member && epoch + 1 == self.epoch;
        let reply = match self.origin.filter(|_| late) {
            Some((slot, value)) => Message { epoch, slot, body: Body::Decide(value) },
            None => Message { epoch: self.epoch, slot: 0, body: Body::Evicted },
        };
        self.out.replies.push(reply);
    }

    fn receive_newer(&mut self, from: u32, message: &Message) {
        match &message.body {
            Body::Evicted => self.end(Some(Verdict::Evicted { epoch: message.epoch })),
            // Whoever takes part in that epoch has been in it: this rank is not among them.
            Body::Decide(value) if value.kind == Kind::Change => {
                self.end(Some(Verdict::Evicted { epoch: message.epoch.saturating_add(1) }));
            }
            _ => {
                if !self.parked.iter().any(|&(parked, _)| parked == from) {
                    let body = Body::Ask;
                    self.out.replies.push(Message { epoch: self.epoch, slot: 0, body });
                }
                self.park(from, message);
            }
        }
    }

    fn park(&mut self, from: u32, message: &Message) {
        if self.parked.len() < PARKED {
            self.parked.push((from, *message));
        }
    }

    /// What was said to this epoch before it was one.
    pub(super) fn unpark(&mut self) {
        for (from, message) in core::mem::take(&mut self.parked) {
            let lasts = matches!(message.body, Body::Goodbye(_));
            if (lasts || message.epoch >= self.epoch) && self.state != State::Ended {
                self.receive(from, &message);
            }
        }
    }

    fn receive_same(&mut self, from: u32, message: &Message) {
        let at = message.slot;
        // Joiners tell of the decision that made them members.
        let joined = |value: &Value| value.joined.contains(from);
        let known = self.members.contains(from)
            || matches!(&message.body, Body::Decide(value) if joined(value));
        if !known || from == self.me {
            return;
        }
        match &message.body {
            Body::Evicted => {}
            Body::Goodbye(will) => self.goodbye(from, *will),
            Body::Revoke(cause, will) => self.learn(*cause, *will, Some(from)),
            body => {
                if at > self.calls.saturating_add(AHEAD) {
                    return;
                }
                let known = self.slots.get(&at).and_then(|slot| slot.decided);
                let answer = !matches!(body, Body::Decide(_) | Body::Accept(_));
                match known.filter(|_| answer) {
                    Some(value) => self.send(from, at, Body::Decide(value)),
                    None => self.receive_ballot(from, at, body),
                }
            }
        }
    }

    fn receive_ballot(&mut self, from: u32, at: u32, body: &Body) {
        match body {
            Body::Enter(kind) => {
                self.slots.entry(at).or_default().enter(from, *kind);
                self.advance(at);
            }
            Body::Gather(ballot) => self.gather(from, at, *ballot),
            Body::Promise(ballot, report) => self.promised(from, at, *ballot, report),
            Body::Refuse(refused, promised) => self.refused(at, *refused, *promised),
            Body::Propose(ballot, value, takers) => {
                self.proposed(from, at, *ballot, value, *takers);
            }
            Body::Accept(ballot) => self.accepted(from, at, *ballot),
            Body::Decide(value) => self.decided(at, *value),
            Body::Ask | Body::Goodbye(_) | Body::Evicted | Body::Revoke(..) => {}
        }
    }
}
