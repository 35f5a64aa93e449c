//! The handling of messages, by their epoch.
//! Law: of the messages of an older epoch only a member's goodbye changes the state; a sender that
//! still works in such an epoch is answered with the decision that it missed, or that it is
//! evicted. A message of a newer epoch waits, unless it proves that this rank is evicted.

use super::member::{Member, State};
use super::message::{AgreementKind, Body, Message};
use super::slot::SETTLE;
use super::verdict::Verdict;

/// The most messages of later epochs that wait: of each member, or among few members.
const PARKED_PER_MEMBER: usize = 8;
const MAX_PARKED: usize = 2048;

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
        match &message.body {
            // Neither message needs an answer: a sender that is behind will send another message.
            Body::Evicted | Body::Decide(_) => {}
            Body::Goodbye(votes) if member => self.goodbye(from, votes.clone()),
            Body::Goodbye(_) => {}
            _ => self.answer_late_sender(message.epoch, member),
        }
    }

    /// Answers a sender in an older epoch: a member that is one epoch behind with the decision that
    /// it missed, any other sender with its eviction.
    fn answer_late_sender(&mut self, epoch: u32, member: bool) {
        let late = member && epoch + 1 == self.epoch;
        let reply = match self.origin.as_ref().filter(|_| late) {
            Some((slot, value)) => {
                Message { epoch, slot: *slot, body: Body::Decide(value.clone()) }
            }
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
        if self.parked.len() < MAX_PARKED.max(PARKED_PER_MEMBER * self.members.len() as usize) {
            self.parked.push((from, message.clone()));
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
            Body::Goodbye(votes) => self.goodbye(from, votes.clone()),
            Body::Revoke(cause, ends) => {
                self.note_told(from, &message.body, at);
                self.answered.insert(from);
                self.expect_ends(from);
                self.learn_ends(*cause, ends);
            }
            body => {
                if at > self.calls.saturating_add(MAX_SLOTS_AHEAD) {
                    return;
                }
                if matches!(body, Body::Ask) {
                    self.answer_ask(from);
                }
                let decided = self.slots.get(&at).and_then(|slot| slot.decided.as_ref());
                let answer = !matches!(body, Body::Decide(_) | Body::Accept(_));
                match decided.filter(|_| answer).cloned() {
                    Some(value) => self.send(from, at, Body::Decide(value)),
                    None => self.receive_ballot(from, at, body),
                }
            }
        }
    }

    fn receive_ballot(&mut self, from: u32, at: u32, body: &Body) {
        match body {
            Body::Enter(entry) => self.entered(from, at, *entry),
            Body::Withdraw => self.withdrawn(from, at),
            Body::Prepare(ballot) => self.prepare(from, at, *ballot),
            Body::Promise(ballot, report) => self.promised(from, at, *ballot, report),
            Body::Refuse(refused, promised) => self.refused(at, *refused, *promised),
            Body::Propose(ballot, value, participants) => {
                self.proposed(from, at, *ballot, value, participants);
            }
            Body::Accept(ballot) => self.accepted(from, at, *ballot),
            // The last agreements are kept; one before them is no news.
            Body::Decide(_)
                if at != SETTLE && at <= self.calls && !self.slots.contains_key(&at) => {}
            Body::Decide(value) => {
                self.note_told(from, body, at);
                self.decided(at, value.clone());
            }
            Body::Ask | Body::Goodbye(_) | Body::Evicted | Body::Revoke(..) => {}
        }
    }
}
