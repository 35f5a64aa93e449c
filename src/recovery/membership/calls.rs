//! Calls of the program: operations, agreements, and changes of the membership.
//! Law: after a revocation no operation returns `Ok`, except by agreement in uniform mode.

use super::member::{Member, Pending, State, Time};
use super::message::{AgreementKind, Body, Call, Entry, Value};
use super::ranks::Ranks;
use super::slot::{Agreement, Lead, SETTLE};
use super::verdict::Verdict;

/// A rank asks all members for their calls this part of the answer timeout before its deadline.
const ANSWERS: Time = 8;
/// A rank that waits for so many answer timeouts asks all members for their calls, to name those
/// that keep it waiting.
const LONG_WAIT: Time = 2;

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

    pub(super) fn succeed(&mut self, last: u64) {
        // No caller waits for the outcome of other operations.
        for sequence in self.progress.next()..=last.min(self.progress.begun) {
            self.tell(Verdict::Ok(sequence));
        }
        self.progress.done = self.progress.done.max(last);
        self.progress.full = self.progress.full.max(last);
    }

    pub(super) fn fail_rest(&mut self) {
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
        let changing =
            self.slots.get(&(self.calls + 1)).map_or(Ranks::NONE, |slot| slot.changing.clone());
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
        // Answers that came since the last call are to be read first.
        let read = self.after(self.settings.grace);
        self.quorum_deadline = self.quorum_deadline.map(|until| until.max(read));
        self.quorum_lost = self.now;
        if self.is_closed {
            // The others go on by that decision, and will make no further call here.
            return self.tell(Verdict::Closed { epoch: self.epoch });
        }
        let (me, at) = (self.me, self.calls + 1);
        let ask_at = self.time_to_ask(deadline, evict_missing);
        self.pending =
            Some(Pending { slot: at, call, deadline, evict_missing, ask_at: Some(ask_at) });
        let slot = self.slots.entry(at).or_default();
        if let Some(value) = slot.decided.clone() {
            return self.agreed(at, &value);
        }
        // A repeated call brings what the first one brought. After the deadline of an agreement the
        // program may change the members instead, or the other way round.
        let is_again = slot.call.is_some();
        slot.enter(me, call.kind);
        if slot.call.is_none_or(|before| before.kind != call.kind) {
            slot.call = Some(call);
            slot.lead = None;
            if !slot.backoff {
                (slot.alarm, slot.tries) = (None, 0);
            }
            (slot.told, slot.has_asked) = (Ranks::NONE, false);
            // All have to know of members that give up the call that they all have made.
            if is_again || call.kind == AgreementKind::Change && self.epoch > 0 {
                self.ask(at, call.kind);
            }
        }
        if ask_at <= self.now {
            self.ask_all();
        }
        self.advance(at);
        self.give_up_closing();
    }

    /// The program waits no longer for its call, and this rank may leave ballots unanswered.
    pub(super) fn withdraw(&mut self) {
        let Some(Pending { slot: at, .. }) = self.pending.take() else { return };
        let Some(slot) = self.slots.get_mut(&at) else { return };
        slot.withdraw(self.me);
        slot.has_asked = false;
        let told = core::mem::take(&mut slot.told);
        // All that learn of the withdrawal have to learn of the next call.
        slot.asked_by = &slot.asked_by | &told;
        self.broadcast(&told, at, &Body::Withdraw);
    }

    /// Handles the news that the program of another rank waits no longer.
    pub(super) fn withdrawn(&mut self, from: u32, at: u32) {
        if let Some(slot) = self.slots.get_mut(&at) {
            slot.withdraw(from);
        }
    }

    /// When this rank asks all members for their calls: the leader alone is told all of them. A
    /// rank that evicts others asks at once, since it must know who has called.
    fn time_to_ask(&self, deadline: Option<Time>, evict_missing: bool) -> Time {
        let timeout = self.settings.answer_timeout;
        let before = deadline.map_or(Time::MAX, |until| until.saturating_sub(timeout / ANSWERS));
        if evict_missing {
            self.now
        } else {
            before.min(self.after(LONG_WAIT.saturating_mul(timeout)))
        }
    }

    /// Tells the leader of the call of this rank, and whoever has asked. The leader asks all.
    pub(super) fn tell_call(&mut self, at: u32) {
        let (me, leader) = (self.me, self.live().lowest());
        let Some(slot) = self.slots.get_mut(&at).filter(|slot| slot.decided.is_none()) else {
            return;
        };
        let waits = !slot.withdrawn.contains(me);
        let Some(call) = slot.call.filter(|call| waits && call.kind != AgreementKind::Settle)
        else {
            return;
        };
        if leader == Some(me) && !slot.has_asked {
            return self.ask(at, call.kind);
        }
        let wanted = &slot.asked_by | &leader.into_iter().collect();
        let to = &wanted - &slot.told;
        slot.told = &slot.told | &to;
        self.broadcast(&to, at, &Body::Enter(Entry { kind: call.kind, asks: false }));
    }

    /// Tells all members of the call of this rank, and asks for theirs.
    fn ask(&mut self, at: u32, kind: AgreementKind) {
        if let Some(slot) = self.slots.get_mut(&at) {
            (slot.told, slot.has_asked) = (self.members.clone(), true);
        }
        self.broadcast(&self.members.clone(), at, &Body::Enter(Entry { kind, asks: true }));
    }

    /// Asks all members for their calls, unless this rank has asked or knows that all have called.
    pub(super) fn ask_all(&mut self) {
        let Some(pending) = &mut self.pending else { return };
        pending.ask_at = None;
        let (at, kind, live) = (pending.slot, pending.call.kind, self.live());
        if let Some(slot) = self.slots.get_mut(&at) {
            slot.stayed_away = slot.withdrawn.clone();
        }
        let is_open = |slot: &&Agreement| !slot.has_asked && slot.decided.is_none();
        if self.slots.get(&at).filter(is_open).is_some_and(|slot| !slot.absent(&live).is_empty()) {
            self.ask(at, kind);
        }
    }

    /// Handles the news that the program of another rank has called.
    pub(super) fn entered(&mut self, from: u32, at: u32, entry: Entry) {
        let (Entry { kind, asks }, leader) = (entry, self.live().lowest());
        let answer_due = self.answer_due(at);
        let slot = self.slots.entry(at).or_default();
        let owes = |lead: &Lead| lead.asked.contains(from) && !lead.answered.contains(from);
        let was_absent = slot.absent(&Ranks::only(from)).contains(from);
        if was_absent && slot.lead.as_ref().is_some_and(owes) {
            // The ballot may have come while the rank did not wait.
            slot.alarm = Some(answer_due);
        }
        slot.enter(from, kind);
        if was_absent && !self.answered.contains(from) {
            self.expect_ends(from);
        }
        let Some(slot) = self.slots.get_mut(&at) else { return };
        if leader == Some(from) {
            slot.tries = 0;
        }
        if asks {
            slot.asked_by.insert(from);
            // The answer of a leader is a sign of life, too.
            if leader == Some(self.me) {
                slot.told.remove(from);
            }
            self.tell_call(at);
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
        let Some(slot) = slot.filter(|slot| !slot.changing.is_disjoint(&live)) else { return };
        // Members that change have given up because of those that are silent.
        let silent = self.among_heard(&slot.without_calls(&live));
        let missing = if silent.is_empty() { &slot.changing & &live } else { silent };
        self.withdraw();
        self.tell(Verdict::TimedOut { missing });
    }

    /// Reports a decision to the waiting caller. Without one, the next call finds the decision. A
    /// caller that waits for another kind of decision calls again, since this one answers a call
    /// that the program had given up; but nothing follows a closing that all members have passed.
    pub(super) fn agreed(&mut self, slot: u32, value: &Value) {
        let Some(pending) = self.pending.take_if(|pending| pending.slot == slot) else { return };
        self.calls += 1;
        let (epoch, missing) = (self.epoch, &self.members - &value.members);
        if value.kind != AgreementKind::Close {
            let (flags, members) = (value.flags, value.members.clone());
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

    /// The live members that are not known to have made the call of this member.
    pub(super) fn without_this_call(&self) -> Ranks {
        let (live, Some(pending)) = (self.live(), &self.pending) else { return Ranks::NONE };
        self.slots.get(&pending.slot).map_or_else(|| live.clone(), |slot| slot.missing(&live))
    }

    /// The live members whose part in the call of this member has not come, as far as this one can
    /// tell: a member that does not lead, and has not asked the others yet, is told of the leader's
    /// call alone.
    #[must_use]
    pub fn missing(&self) -> Ranks {
        let slot = self.pending.and_then(|pending| self.slots.get(&pending.slot));
        let withdrawn = slot.map_or(Ranks::NONE, |slot| &self.live() & &slot.withdrawn);
        self.among_heard(&(&self.without_this_call() | &withdrawn))
    }

    fn among_heard(&self, missing: &Ranks) -> Ranks {
        let leader: Ranks = self.live().lowest().into_iter().collect();
        let slot = self.pending.and_then(|pending| self.slots.get(&pending.slot));
        match slot.is_some_and(|slot| slot.has_asked) {
            true => missing.clone(),
            false => missing & &leader,
        }
    }

    /// The members that keep the call of this member waiting: those that have made no call; else
    /// those that have made another one; else those that gave up theirs and stayed away; else those
    /// that have not answered the ballot of this member; else the leader, unless its ballot waits
    /// for members other than this one.
    #[must_use]
    pub fn awaited(&self) -> Ranks {
        let (missing, live) = (self.among_heard(&self.without_this_call()), self.live());
        let pending = self.pending.as_ref();
        let Some(slot) = pending.and_then(|pending| self.slots.get(&pending.slot)) else {
            return missing;
        };
        let silent = self.among_heard(&slot.without_calls(&live));
        let away = &live & &slot.stayed_away;
        match &slot.lead {
            _ if !silent.is_empty() => silent,
            _ if !missing.is_empty() => missing,
            _ if !away.is_empty() => away,
            Some(lead) => &lead.asked - &lead.answered,
            None => {
                let (others, leader) = (live.without(self.me), live.lowest());
                // A leader that waits for members that are busy is not the one to name.
                let is_asked = slot.promised.round > 0 && slot.tries == 0;
                let heard = leader.filter(|leader| is_asked && slot.promised.leader == *leader);
                let silent = heard.map(|leader| others.without(leader));
                let leader = others.lowest().into_iter().collect();
                silent.filter(|silent| !silent.is_empty()).unwrap_or(leader)
            }
        }
    }

    /// True past the deadline of an eviction, which spares no rank that does not answer.
    pub(super) fn evicts(&self) -> bool {
        self.pending.is_some_and(|call| call.evict_missing && call.deadline.is_none())
    }

    pub(super) fn deadline(&mut self) {
        let (missing, awaited) = (self.without_this_call(), self.awaited());
        let Some(pending) = &mut self.pending else { return };
        if !pending.evict_missing {
            self.withdraw();
            return self.tell(Verdict::TimedOut { missing: awaited });
        }
        pending.deadline = None;
        let away = self.slots.get(&pending.slot).map(|slot| slot.stayed_away.clone());
        self.suspect(&(&missing | &away.unwrap_or_default()));
        self.advance_all();
    }
}
