//! Evidence of deaths, and revocations of the epoch.
//! Law: an epoch is revoked once at each member; each member forwards a revocation, and each
//! certain death, once.

use super::member::{Member, State, Verdict};
use super::message::{Body, Cause, Evidence, LastVotes};
use super::quorum::is_quorum;
use super::ranks::Ranks;
use super::slot::SETTLE;

impl Member {
    pub(super) fn evidence(&mut self, rank: u32, evidence: Evidence, vote: Option<LastVotes>) {
        if rank == self.me || evidence == Evidence::Called {
            return;
        }
        if !self.members.contains(rank) {
            return;
        }
        let cause = Cause { rank, evidence, sequence: self.progress.next() };
        match evidence {
            // The rank has said goodbye before.
            Evidence::Certain if self.left.contains(rank) => {}
            Evidence::Called => {}
            Evidence::Certain | Evidence::Left => self.learn_cause(cause, vote, None),
            Evidence::Suspected => self.suspect(Ranks::from_iter([rank])),
            Evidence::Strong => {
                if !self.gone.contains(rank) && self.suspected.insert(rank) {
                    if self.state == State::Healthy && self.grace.is_none() {
                        self.grace = Some((self.after(self.settings.grace), cause));
                    }
                    self.advance_all();
                }
            }
        }
    }

    /// Suspects ranks that have been silent for too long.
    pub(super) fn suspect(&mut self, ranks: Ranks) {
        let fresh = (ranks & self.live()).without(self.me);
        self.suspected = self.suspected | fresh;
        if let Some(rank) = fresh.lowest() {
            let sequence = self.progress.next();
            self.revoke(Cause { rank, evidence: Evidence::Suspected, sequence }, None);
        }
    }

    pub(super) fn revoke_by_call(&mut self) {
        if self.state == State::Healthy {
            let sequence = self.progress.next();
            self.revoke(Cause { rank: self.me, evidence: Evidence::Called, sequence }, None);
        }
    }

    /// Handles a revocation, `from` another member or by this rank's own evidence.
    pub(super) fn learn_cause(&mut self, cause: Cause, vote: Option<LastVotes>, from: Option<u32>) {
        let ends = matches!(cause.evidence, Evidence::Certain | Evidence::Left);
        let other = cause.rank != self.me && self.members.contains(cause.rank);
        if ends && other {
            let fresh = self.gone.insert(cause.rank) | self.note_last_vote(cause.rank, vote);
            if fresh && self.state != State::Healthy {
                self.forward(cause, from);
            }
        }
        self.revoke(cause, from);
    }

    /// Revokes the epoch, unless it is revoked. In both cases agreements look again at the live
    /// ranks.
    pub(super) fn revoke(&mut self, cause: Cause, from: Option<u32>) {
        if self.state == State::Healthy {
            self.state = State::Revoked(cause);
            self.grace = None;
            self.forward(cause, from);
            self.tell(Verdict::Revoked(cause));
            self.interrupt();
        }
        self.advance_all();
    }

    pub(super) fn forward(&mut self, cause: Cause, from: Option<u32>) {
        let mut others = self.members;
        if let Some(from) = from {
            others = others.without(from);
        }
        let vote = self.dead_votes.get(&cause.rank).copied();
        self.broadcast(others, SETTLE, Body::Revoke(cause, vote));
    }

    /// Handles a goodbye. It fails no call by itself: a call that needs the rank reports so. The
    /// end of the rank may be known already, but not its last vote, with which there may be a
    /// quorum.
    pub(super) fn goodbye(&mut self, rank: u32, vote: LastVotes) {
        self.left.insert(rank);
        if self.gone.insert(rank) | self.note_last_vote(rank, Some(vote)) {
            self.advance_all();
        }
    }

    /// Notes the last vote of a dead rank; true if it was not known before.
    fn note_last_vote(&mut self, rank: u32, vote: Option<LastVotes>) -> bool {
        vote.is_some_and(|vote| self.dead_votes.insert(rank, vote).is_none())
    }

    fn has_quorum(&self) -> bool {
        let voters: Ranks = self.dead_votes.keys().copied().collect();
        is_quorum(self.members, self.live(), self.gone & voters)
    }

    /// True if the live ranks are a quorum. If not, starts a wait for better evidence.
    pub(super) fn may_decide(&mut self) -> bool {
        let may = self.has_quorum();
        if may {
            self.quorum_deadline = None;
        } else if self.quorum_deadline.is_none() {
            self.quorum_deadline = Some(self.after(self.settings.answer_timeout));
        }
        may
    }

    /// Ends this member, unless better evidence has brought a quorum.
    pub(super) fn end_without_quorum(&mut self) {
        let live = self.live();
        self.quorum_deadline = None;
        if !self.has_quorum() {
            self.end(Some(Verdict::QuorumLost { live }));
        }
    }
}
