//! Decisions, and the start of the next epoch.
//! Law: an agreement is decided once; epochs go up by one; of the state of an epoch, only the lost
//! ranks carry over to the next.

use super::member::{Member, Pending, State};
use super::message::{AgreementKind, Cause, Evidence, Value};
use super::ranks::Ranks;
use super::verdict::Verdict;

/// The most decisions that are kept for members that missed them.
const MAX_KEPT_DECISIONS: u32 = 8;

impl Member {
    pub(super) fn decided(&mut self, at: u32, value: Value) {
        let slot = self.slots.entry(at).or_default();
        if slot.decided.is_some() {
            return;
        }
        slot.decided = Some(value.clone());
        slot.lead = None;
        slot.alarm = None;
        self.has_news = true;
        self.spread();
        match value.kind {
            AgreementKind::Settle => self.settled(value.recovery.low),
            AgreementKind::Agree | AgreementKind::Close => {
                if value.kind == AgreementKind::Agree {
                    self.tell_decision(at, &value);
                }
                let oldest = at.saturating_sub(MAX_KEPT_DECISIONS);
                self.slots.retain(|&slot, _| slot == 0 || slot >= oldest);
                self.known_facts.values_mut().for_each(|known| known.forget_before(oldest));
                self.agreed(at, &value);
            }
            AgreementKind::Change if value.members.contains(self.me) => self.install(at, value),
            AgreementKind::Change => {
                self.end(Some(Verdict::Evicted { epoch: self.epoch.saturating_add(1) }));
            }
        }
    }

    /// Starts the epoch that agreement `slot` of this epoch has decided.
    pub(super) fn install(&mut self, slot: u32, value: Value) {
        let is_change = |pending: &Pending| pending.call.kind == AgreementKind::Change;
        self.is_unclaimed = !self.pending.as_ref().is_some_and(is_change);
        let again = self.overtake(&value.members);
        self.epoch = self.epoch.saturating_add(1);
        self.members = value.members.clone();
        self.gone = &self.gone & &value.members;
        self.left = &self.left & &value.members;
        self.suspected = &self.suspected & &value.members;
        self.dead_votes.retain(|&rank, _| value.members.contains(rank));
        self.never_voted = &self.never_voted & &value.members;
        self.state = State::Healthy;
        self.slots.clear();
        self.is_closed = false;
        self.calls = 0;
        self.grace = None;
        self.quorum_deadline = None;
        let last = value.recovery.high;
        if self.settings.uniform {
            // No settlement decides operations of this epoch any more. One without a result here
            // has returned `Ok` nowhere; one with a result may have, and its caller does not learn
            // of it.
            let full = self.progress.full;
            self.succeed(last.min(full));
            self.progress.done = self.progress.done.max(full);
            self.fail_rest();
        }
        self.origin = Some((slot, value));
        self.known_facts.clear();
        self.ends_asked_by = Ranks::NONE;
        (self.progress.begun, self.progress.full, self.progress.done) = (last, last, last);
        self.tell_membership();
        self.carry_over_losses();
        if let Some(Pending { call, deadline, evict_missing, .. }) = again {
            self.call(call, deadline, evict_missing);
        }
        self.unpark();
    }

    /// Tells the program of the decision that began this epoch.
    pub(super) fn tell_membership(&mut self) {
        if let Some((_, Value { members, recovery, cause, .. })) = self.origin.clone() {
            self.tell(Verdict::Membership { epoch: self.epoch, members, recovery, cause });
        }
    }

    /// Answers the waiting call, which a change to these members overtakes. An agreement ends where
    /// other members wait for this one to connect, and else is returned: all have given up the
    /// change, and agree in its epoch.
    fn overtake(&mut self, members: &Ranks) -> Option<Pending> {
        let changing = &self.without_this_call() & members;
        let pending = self.pending.take()?;
        match pending.call.kind {
            AgreementKind::Settle | AgreementKind::Change => {}
            AgreementKind::Close => {
                let (epoch, missing) = (self.epoch, &self.members - members);
                self.tell(Verdict::Undone { epoch, missing });
            }
            AgreementKind::Agree if changing.is_empty() => return Some(pending),
            AgreementKind::Agree => self.tell(Verdict::TimedOut { missing: changing }),
        }
        None
    }

    /// Revokes the new epoch for ranks that were lost during the decision.
    fn carry_over_losses(&mut self) {
        let sequence = self.progress.next();
        let cause =
            |lost: &Ranks, evidence| lost.lowest().map(|rank| Cause { rank, evidence, sequence });
        let certain = cause(&(&self.gone - &self.left), Evidence::Certain);
        if let Some(cause) = certain.or_else(|| cause(&self.suspected, Evidence::Suspected)) {
            self.revoke(cause);
            self.advance_all();
        }
    }
}
