//! The handling of messages, by their epoch.
//! Law: of the messages of an older epoch only a member's goodbye changes the state; a sender that
//! still works in such an epoch is answered with the decision that it missed, or that it is
//! evicted. A message of a newer epoch waits, unless it proves that this rank is evicted.

use super::member::{Member, State, Verdict};
use super::message::{AgreementKind, Body, Message};
use super::ranks::Ranks;
use super::slot::SETTLE;

/// The most messages of later epochs that wait.
const MAX_PARKED: usize = 8 * Ranks::CAPACITY as usize;

/// The most agreements that a message may be ahead; members are at most one apart.
const MAX_SLOTS_AHEAD: u32 = 8;

impl Member {
    pub(super) fn receive(&mut self, from: u32, message: &Message) {
        match message.epoch.cmp(&self.epoch) {
            core::cmp::Ordering::Less => self.receive_older(from, message),
            core::cmp::Ordering::Equal => self.receive_same(from, message),
            core::cmp::Ordering::Greater => self.receive_newer(from, message),
        }
    }

    /// Handles a message from a sender that missed the start of this epoch, or is no member of it.
    fn receive_older(&mut self, from: u32, message: &Message) {
        let member = self.members.contains(from);
        match message.body {
            // Neither message needs an answer: a sender that is behind will send another message.
            Body::Evicted | Body::Decide(_) => {}
            Body::Goodbye(vote) if member => self.goodbye(from, vote),
            Body::Goodbye(_) => {}
            _ => self.answer_late_sender(message.epoch, member),
        }
    }

    /// Answers a sender in an older epoch: a member that is one epoch behind with the decision that
    /// it missed, any other sender with its eviction.
    fn answer_late_sender(&mut self, epoch: u32, member: bool) {
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
            // All participants of this decision were in the later epoch. This rank was not, so the
            // next epoch is without it.
            Body::Decide(value) if value.kind == AgreementKind::Change => {
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
        if self.parked.len() < MAX_PARKED {
            self.parked.push((from, *message));
        }
    }

    /// Handles the messages that waited for this epoch.
    pub(super) fn unpark(&mut self) {
        for (from, message) in core::mem::take(&mut self.parked) {
            let is_goodbye = matches!(message.body, Body::Goodbye(_));
            if (is_goodbye || message.epoch >= self.epoch) && self.state != State::Ended {
                self.receive(from, &message);
            }
        }
    }

    fn receive_same(&mut self, from: u32, message: &Message) {
        let at = message.slot;
        if !self.members.contains(from) || from == self.me {
            return;
        }
        match &message.body {
            Body::Evicted => {}
            Body::Goodbye(vote) => self.goodbye(from, *vote),
            Body::Revoke(cause, vote) => self.learn_cause(*cause, *vote, Some(from)),
            body => {
                if at > self.calls.saturating_add(MAX_SLOTS_AHEAD) {
                    return;
                }
                let decided = self.slots.get(&at).and_then(|slot| slot.decided);
                let answer = !matches!(body, Body::Decide(_) | Body::Accept(_));
                match decided.filter(|_| answer) {
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
                self.give_up_closing();
            }
            Body::Prepare(ballot) => self.prepare(from, at, *ballot),
            Body::Promise(ballot, report) => self.promised(from, at, *ballot, report),
            Body::Refuse(refused, promised) => self.refused(at, *refused, *promised),
            Body::Propose(ballot, value, participants) => {
                self.proposed(from, at, *ballot, value, *participants);
            }
            Body::Accept(ballot) => self.accepted(from, at, *ballot),
            // The last agreements are kept; one before them is no news.
            Body::Decide(_)
                if at != SETTLE && at <= self.calls && !self.slots.contains_key(&at) => {}
            Body::Decide(value) => self.decided(at, *value),
            Body::Ask | Body::Goodbye(_) | Body::Evicted | Body::Revoke(..) => {}
        }
    }
}
