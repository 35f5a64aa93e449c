//! Deaths and revocations. May touch: the room. Laws: an epoch is revoked once at each member, and
//! each member passes a revocation, and each certain death, on once.

use super::member::{Member, State, Verdict};
use super::message::{Body, Cause, Evidence, Testament};
use super::quorum::quorum;
use super::ranks::Ranks;
use super::slot::SETTLE;

impl Member {
    pub(super) fn evidence(&mut self, rank: u32, evidence: Evidence, will: Option<Testament>) {
        if rank == self.me || evidence == Evidence::Called {
            return;
        }
        if !self.members.contains(rank) {
            // Of one that may be a member soon.
            _ = match evidence {
                Evidence::Certain | Evidence::Left => self.gone.insert(rank),
                _ => self.doubted.insert(rank),
            };
            _ = self.inherit(rank, will);
            return;
        }
        let cause = Cause { rank, evidence, sequence: self.work.next() };
        match evidence {
            // It ended as it said.
            Evidence::Certain if self.left.contains(rank) => {}
            Evidence::Called => {}
            Evidence::Certain | Evidence::Left => self.learn(cause, will, None),
            Evidence::Suspected => self.doubt(Ranks::from_iter([rank])),
            Evidence::Strong => {
                if !self.gone.contains(rank) && self.doubted.insert(rank) {
                    if self.state == State::Healthy && self.grace.is_none() {
                        self.grace = Some((self.after(self.settings.grace), cause));
                    }
                    self.advance_all();
                }
            }
        }
    }

    /// These are silent who should not be.
    pub(super) fn doubt(&mut self, ranks: Ranks) {
        let fresh = (ranks & self.live()).without(self.me);
        self.doubted = self.doubted | fresh;
        if let Some(rank) = fresh.lowest() {
            let sequence = self.work.next();
            self.revoke(Cause { rank, evidence: Evidence::Suspected, sequence }, None);
        }
    }

    pub(super) fn revoke_by_call(&mut self) {
        if self.state == State::Healthy {
            let sequence = self.work.next();
            self.revoke(Cause { rank: self.me, evidence: Evidence::Called, sequence }, None);
        }
    }

    /// A revocation, `from` another member or by evidence of this one's own.
    pub(super) fn learn(&mut self, cause: Cause, will: Option<Testament>, from: Option<u32>) {
        let ends = matches!(cause.evidence, Evidence::Certain | Evidence::Left);
        let other = cause.rank != self.me && self.members.contains(cause.rank);
        if ends && other {
            let fresh = self.gone.insert(cause.rank) | self.inherit(cause.rank, will);
            if fresh && self.state != State::Healthy {
                self.pass_on(cause, from);
            }
        }
        self.revoke(cause, from);
    }

    /// Revokes the epoch, if it is not yet; in any case what waits looks again who is alive.
    pub(super) fn revoke(&mut self, cause: Cause, from: Option<u32>) {
        if self.state == State::Healthy {
            self.state = State::Revoked(cause);
            self.grace = None;
            self.pass_on(cause, from);
            self.tell(Verdict::Revoked(cause));
            self.interrupt();
        }
        self.advance_all();
    }

    pub(super) fn pass_on(&mut self, cause: Cause, from: Option<u32>) {
        let mut others = self.members;
        if let Some(from) = from {
            others = others.without(from);
        }
        let will = self.wills.get(&cause.rank).copied();
        self.broadcast(others, SETTLE, Body::Revoke(cause, will));
    }

    /// Somebody said goodbye. That fails nothing by itself: what needs the rank will say so.
    pub(super) fn goodbye(&mut self, rank: u32, will: Testament) {
        self.left.insert(rank);
        self.inherit(rank, Some(will));
        if self.gone.insert(rank) {
            self.advance_all();
        }
    }

    /// New processes have these ranks: what is known is of others before them.
    pub(super) fn forget(&mut self, ranks: Ranks) {
        self.gone = self.gone - ranks;
        self.left = self.left - ranks;
        self.doubted = self.doubted - ranks;
        self.wills.retain(|&rank, _| !ranks.contains(rank));
    }

    /// Was the testament not known?
    fn inherit(&mut self, rank: u32, will: Option<Testament>) -> bool {
        will.is_some_and(|will| self.wills.insert(rank, will).is_none())
    }

    fn have_quorum(&self) -> bool {
        let known: Ranks = self.wills.keys().copied().collect();
        quorum(self.members, self.live(), self.gone & known)
    }

    /// May those that are alive decide? If not, it is waited a while for better evidence.
    pub(super) fn may_decide(&mut self) -> bool {
        let may = self.have_quorum();
        if may {
            self.linger = None;
        } else if self.linger.is_none() {
            self.linger = Some(self.after(self.settings.patience));
        }
        may
    }

    /// No better evidence came.
    pub(super) fn give_up(&mut self) {
        let live = self.live();
        self.linger = None;
        if !self.have_quorum() {
            self.end(Some(Verdict::QuorumLost { live }));
        }
    }
}
