//! What the caller does: operations, agreements, changes. May touch: the room. Law: once an epoch
//! is revoked no operation returns `Ok` but by agreement, if the mode is uniform, or at all.

use super::member::{Member, Pending, State, Time, Verdict};
use super::message::{Body, Call, Kind, Value};
use super::ranks::Ranks;
use super::slot::SETTLE;

impl Member {
    pub(super) fn begin(&mut self, sequence: u64) {
        self.work.begun = self.work.begun.max(sequence);
        let settled = self.slots.get(&SETTLE).is_some_and(|slot| slot.decided.is_some());
        if self.revoked().is_some() && (settled || !self.settings.uniform) {
            self.fail_rest();
        }
    }

    /// What a revoked member brings to the agreement on operations is frozen.
    pub(super) fn full(&mut self, sequence: u64) {
        if self.state == State::Healthy {
            self.work.full = self.work.full.max(sequence);
        }
    }

    pub(super) fn passed(&mut self, sequence: u64) {
        if self.state == State::Healthy {
            self.succeed(sequence);
        }
    }

    fn succeed(&mut self, last: u64) {
        // Of others nobody waits to hear.
        for sequence in self.work.next()..=last.min(self.work.begun) {
            self.tell(Verdict::Ok(sequence));
        }
        self.work.done = self.work.done.max(last);
        self.work.full = self.work.full.max(last);
    }

    fn fail_rest(&mut self) {
        for sequence in self.work.next()..=self.work.begun {
            self.tell(Verdict::Failed(sequence));
        }
        self.work.begun = self.work.done;
    }

    /// The epoch was just revoked.
    pub(super) fn interrupt(&mut self) {
        if !self.settings.uniform {
            return self.fail_rest();
        }
        let call = Call { kind: Kind::Settle, flags: u64::MAX, joiners: Ranks::NONE };
        self.slots.entry(SETTLE).or_default().call = Some(call);
    }

    /// All operations up to `last` count as done, and no other.
    pub(super) fn settled(&mut self, last: u64) {
        if last > self.work.full {
            // Decided without this rank, and it has not what the others have.
            return self.end(Some(Verdict::Evicted { epoch: self.epoch }));
        }
        self.succeed(last);
        self.fail_rest();
    }

    pub(super) fn call_agree(&mut self, flags: u64, deadline: Option<Time>) {
        let call = Call { kind: Kind::Agree, flags, joiners: Ranks::NONE };
        self.call(call, deadline, false);
    }

    pub(super) fn call_change(
        &mut self,
        joiners: Ranks,
        deadline: Option<Time>,
        evict_missing: bool,
    ) {
        self.forget(joiners - self.members);
        let call = Call { kind: Kind::Change, flags: u64::MAX, joiners };
        self.call(call, deadline, evict_missing);
    }

    fn call(&mut self, call: Call, deadline: Option<Time>, evict_missing: bool) {
        if self.state == State::Joining {
            return;
        }
        let (me, at) = (self.me, self.calls + 1);
        self.pending = Some(Pending { slot: at, deadline, evict_missing });
        let slot = self.slots.entry(at).or_default();
        if let Some(value) = slot.decided {
            return self.agreed(at, &value);
        }
        // A call that is made again brings what it brought.
        if slot.call.is_none() {
            slot.call = Some(call);
            slot.enter(me, call.kind);
            self.broadcast(self.members, at, Body::Enter(call.kind));
        }
        self.advance(at);
    }

    /// Tells a caller that waits; if none does, the next call finds what was decided.
    pub(super) fn agreed(&mut self, slot: u32, value: &Value) {
        if self.pending.is_some_and(|pending| pending.slot == slot) {
            self.pending = None;
            self.calls += 1;
            let (flags, members) = (value.flags, value.members);
            self.tell(Verdict::Agreed { slot, flags, members });
        }
    }

    pub(super) fn deadline(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let live = self.live();
        let missing = self.slots.get(&pending.slot).map_or(live, |slot| slot.missing(live));
        if !pending.evict_missing {
            return self.tell(Verdict::TimedOut { missing });
        }
        self.pending = Some(Pending { deadline: None, ..pending });
        self.doubt(missing);
    }
}
