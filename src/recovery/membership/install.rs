//! What a decision changes. May touch: the room. Laws: an agreement is decided once; epochs go up
//! by one; nothing of an epoch is left in the next but who is lost.

use super::member::{Member, State, Verdict};
use super::message::{Body, Cause, Evidence, Kind, Value};
use super::ranks::Ranks;

/// Decisions kept for those who missed them.
const KEPT: u32 = 8;

impl Member {
    pub(super) fn decided(&mut self, at: u32, value: Value) {
        let slot = self.slots.entry(at).or_default();
        if slot.decided.is_some() {
            return;
        }
        slot.decided = Some(value);
        slot.lead = None;
        slot.alarm = None;
        match value.kind {
            Kind::Settle => self.settled(value.recovery.low),
            Kind::Agree => {
                self.agreed(at, &value);
                let oldest = at.saturating_sub(KEPT);
                self.slots.retain(|&slot, _| slot == 0 || slot >= oldest);
            }
            Kind::Change if value.members.contains(self.me) => self.install(at, value),
            Kind::Change => {
                self.end(Some(Verdict::Evicted { epoch: self.epoch.saturating_add(1) }));
            }
        }
    }

    /// Begins the epoch that this one's agreement `slot` decided.
    pub(super) fn install(&mut self, slot: u32, value: Value) {
        // Every member says so: whoever led may be dead by now, others may leave before they are
        // asked, and joiners ask nobody. Those left behind learn that they are.
        self.broadcast(self.members | value.joined, slot, Body::Decide(value));
        self.epoch = self.epoch.saturating_add(1);
        self.members = value.members;
        self.gone = self.gone & value.members;
        self.left = (self.left & value.members) - value.joined;
        self.doubted = self.doubted & value.members;
        self.wills.retain(|&rank, _| value.members.contains(rank));
        self.born.retain(|&rank, _| value.members.contains(rank));
        for rank in value.joined.iter() {
            self.born.insert(rank, self.epoch);
        }
        self.state = State::Healthy;
        self.slots.clear();
        self.calls = 0;
        self.pending = None;
        self.grace = None;
        self.linger = None;
        self.origin = Some((slot, value));
        let last = value.recovery.high;
        (self.work.begun, self.work.full, self.work.done) = (last, last, last);
        self.tell(Verdict::Membership {
            epoch: self.epoch,
            members: value.members,
            joined: value.joined,
            recovery: value.recovery,
            cause: value.cause,
        });
        self.carry_over();
        self.unpark();
    }

    /// Who was lost while the others decided is lost in the new epoch too.
    fn carry_over(&mut self) {
        let sequence = self.work.next();
        let cause =
            |lost: Ranks, evidence| lost.lowest().map(|rank| Cause { rank, evidence, sequence });
        let certain = cause(self.gone - self.left, Evidence::Certain);
        if let Some(cause) = certain.or_else(|| cause(self.doubted, Evidence::Suspected)) {
            self.revoke(cause, None);
        }
        // The others may know of the first of them only.
        for rank in (self.gone - self.left).iter().skip(1) {
            self.pass_on(Cause { rank, evidence: Evidence::Certain, sequence }, None);
        }
    }
}
