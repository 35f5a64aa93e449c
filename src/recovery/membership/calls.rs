//! Calls of the program: operations, agreements, and changes of the membership.
//! Law: after a revocation no operation returns `Ok`, except by agreement in uniform mode.

use super::member::{Member, Pending, State, Time, Verdict};
use super::message::{AgreementKind, Body, Call, Value};
use super::ranks::Ranks;
use super::slot::SETTLE;

impl Member {
    pub(super) fn begin(&mut self, sequence: u64) {
        self.progress.begun = self.progress.begun.max(sequence);
        let settled = self.slots.get(&SETTLE).is_some_and(|slot| slot.decided.is_some());
        if self.revoked().is_some() && (settled || !self.settings.uniform) {
            self.fail_rest();
        }
    }

    /// Notes a complete result. After a revocation, what this rank brings to the settlement is
    /// fixed.
    pub(super) fn full(&mut self, sequence: u64) {
        if self.state == State::Healthy {
            self.progress.full = self.progress.full.max(sequence);
        }
    }

    pub(super) fn passed(&mut self, sequence: u64) {
        if self.state == State::Healthy {
            self.succeed(sequence);
        }
    }

    fn succeed(&mut self, last: u64) {
        // No caller waits for the outcome of other operations.
        for sequence in self.progress.next()..=last.min(self.progress.begun) {
            self.tell(Verdict::Ok(sequence));
        }
        self.progress.done = self.progress.done.max(last);
        self.progress.full = self.progress.full.max(last);
    }

    fn fail_rest(&mut self) {
        for sequence in self.progress.next()..=self.progress.begun {
            self.tell(Verdict::Failed(sequence));
        }
        self.progress.begun = self.progress.done;
    }

    /// Ends the operations of an epoch that was just revoked.
    pub(super) fn interrupt(&mut self) {
        if !self.settings.uniform {
            return self.fail_rest();
        }
        let call = Call { kind: AgreementKind::Settle, flags: u64::MAX };
        self.slots.entry(SETTLE).or_default().call = Some(call);
    }

    /// Carries out a settlement: operations up to `last` count as done, and no later ones.
    pub(super) fn settled(&mut self, last: u64) {
        if last > self.progress.full {
            // The others decided without this rank, which lacks a result that they have.
            return self.end(Some(Verdict::Evicted { epoch: self.epoch }));
        }
        self.succeed(last);
        self.fail_rest();
    }

    pub(super) fn call_agree(&mut self, flags: u64, deadline: Option<Time>) {
        let call = Call { kind: AgreementKind::Agree, flags };
        self.call(call, deadline, false);
    }

    pub(super) fn call_change(&mut self, deadline: Option<Time>, evict_missing: bool) {
        if core::mem::take(&mut self.is_unclaimed) && !self.is_given_up() {
            // The change that the program had given up was decided all the same. Another one would
            // undo that epoch, in which other members connect.
            return self.tell_membership();
        }
        let call = Call { kind: AgreementKind::Change, flags: u64::MAX };
        self.call(call, deadline, evict_missing);
    }

    /// True if the members of this epoch can't all connect, as far as is known: one is lost, or has
    /// called for another change.
    fn is_given_up(&self) -> bool {
        let changing = self.slots.get(&(self.calls + 1)).map_or(Ranks::NONE, |slot| slot.changing);
        self.live() != self.members || !changing.without(self.me).is_empty()
    }

    pub(super) fn call_close(
        &mut self,
        is_linked: bool,
        deadline: Option<Time>,
        evict_missing: bool,
    ) {
        let call = Call { kind: AgreementKind::Close, flags: u64::from(is_linked) };
        self.call(call, deadline, evict_missing);
    }

    pub(super) fn call(&mut self, call: Call, deadline: Option<Time>, evict_missing: bool) {
        if self.is_closed {
            // The others go on by that decision, and will make no further call here.
            return self.tell(Verdict::Closed { epoch: self.epoch });
        }
        let (me, at) = (self.me, self.calls + 1);
        self.pending = Some(Pending { slot: at, call, deadline, evict_missing });
        let slot = self.slots.entry(at).or_default();
        if let Some(value) = slot.decided {
            return self.agreed(at, &value);
        }
        // A repeated call brings what the first one brought. After the deadline of an agreement the
        // program may change the members instead, or the other way round.
        if slot.call.is_none_or(|before| before.kind != call.kind) {
            slot.call = Some(call);
            slot.lead = None;
            if !slot.backoff {
                (slot.alarm, slot.tries) = (None, 0);
            }
            slot.enter(me, call.kind);
            self.broadcast(self.members, at, Body::Enter(call.kind));
        }
        self.advance(at);
        self.give_up_closing();
    }

    /// Ends the wait for the votes of all once a live member changes the members instead: it has
    /// given up its own wait, and the others would wait until their deadlines for its vote.
    pub(super) fn give_up_closing(&mut self) {
        let live = self.live();
        let is_closing = |call: &Pending| call.call.kind == AgreementKind::Close;
        let Some(pending) = self.pending.filter(is_closing) else { return };
        let slot = self.slots.get(&pending.slot).filter(|slot| slot.decided.is_none());
        let Some(slot) = slot.filter(|slot| !(slot.changing & live).is_empty()) else { return };
        // Members that change have given up because of those that are silent.
        let silent = slot.without_calls(live);
        let missing = if silent.is_empty() { slot.changing & live } else { silent };
        self.pending = None;
        self.tell(Verdict::TimedOut { missing });
    }

    /// Reports a decision to the waiting caller. Without one, the next call finds the decision. A
    /// caller that waits for another kind of decision calls again, since this one answers a call
    /// that the program had given up; but nothing follows a closing that all members have passed.
    pub(super) fn agreed(&mut self, slot: u32, value: &Value) {
        let Some(pending) = self.pending.take_if(|pending| pending.slot == slot) else { return };
        self.calls += 1;
        let (epoch, missing) = (self.epoch, self.members - value.members);
        if value.kind != AgreementKind::Close {
            let (flags, members) = (value.flags, value.members);
            self.tell(Verdict::Agreed { slot, flags, members });
        } else if missing.is_empty() {
            self.is_closed = true;
            return self.tell(Verdict::Closed { epoch });
        } else {
            self.tell(Verdict::Undone { epoch, missing });
        }
        if pending.call.kind != value.kind {
            self.call(pending.call, pending.deadline, pending.evict_missing);
        }
    }

    /// The live members whose part in the call of this member has not come.
    #[must_use]
    pub fn missing(&self) -> Ranks {
        let (live, Some(pending)) = (self.live(), &self.pending) else { return Ranks::NONE };
        self.slots.get(&pending.slot).map_or(live, |slot| slot.missing(live))
    }

    /// The members that keep the call of this member waiting: those that have made no call; else
    /// those that have made another one; else those that have not answered the ballot of this
    /// member; else the leader, unless its ballot waits for members other than this one.
    #[must_use]
    pub fn awaited(&self) -> Ranks {
        let (missing, live) = (self.missing(), self.live());
        let pending = self.pending.as_ref();
        let Some(slot) = pending.and_then(|pending| self.slots.get(&pending.slot)) else {
            return missing;
        };
        let silent = slot.without_calls(live);
        match &slot.lead {
            _ if !silent.is_empty() => silent,
            _ if !missing.is_empty() => missing,
            Some(lead) => lead.asked - lead.answered,
            None => {
                let (others, leader) = (live.without(self.me), live.lowest());
                // A leader goes on without members that do not answer before it is asked why.
                let is_asked = slot.promised.round > 0 && slot.tries == 0;
                let heard = leader.filter(|leader| is_asked && slot.promised.leader == *leader);
                let silent = heard.map(|leader| others.without(leader));
                let leader = others.lowest().into_iter().collect();
                silent.filter(|silent| !silent.is_empty()).unwrap_or(leader)
            }
        }
    }

    pub(super) fn deadline(&mut self) {
        let (missing, awaited) = (self.missing(), self.awaited());
        let Some(pending) = self.pending.take() else { return };
        if !pending.evict_missing {
            return self.tell(Verdict::TimedOut { missing: awaited });
        }
        self.pending = Some(Pending { deadline: None, ..pending });
        self.suspect(missing);
    }
}
