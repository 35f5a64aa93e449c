//! Evidence of deaths, and revocations of the epoch.
//! Law: an epoch is revoked once at each member.

use super::member::{Member, State};
use super::message::{Body, Cause, Ends, Evidence, LastVotes};
use super::quorum::is_quorum;
use super::ranks::Ranks;
use super::slot::{Agreement, SETTLE};
use super::verdict::Verdict;

impl Member {
    pub(super) fn evidence(&mut self, found: &[(u32, Evidence, Option<LastVotes>)]) {
        for (rank, evidence, votes) in found {
            if *rank != self.me && self.members.contains(*rank) {
                self.note_evidence(*rank, *evidence, votes.clone());
            }
        }
        self.advance_all();
    }

    fn note_evidence(&mut self, rank: u32, evidence: Evidence, votes: Option<LastVotes>) {
        let cause = Cause { rank, evidence, sequence: self.progress.next() };
        match evidence {
            Evidence::Called => {}
            Evidence::Certain if self.left.contains(rank) => self.note_end(rank, votes),
            Evidence::Certain | Evidence::Left => {
                if evidence == Evidence::Left {
                    self.left.insert(rank);
                }
                self.note_end(rank, votes);
                self.revoke(cause);
            }
            Evidence::Suspected => self.suspect(&Ranks::only(rank)),
            Evidence::Strong => {
                if !self.gone.contains(rank) && self.suspected.insert(rank) {
                    self.has_news = true;
                    if self.state == State::Healthy && self.grace.is_none() {
                        self.grace = Some((self.after(self.settings.grace), cause));
                    }
                }
            }
        }
    }

    /// Suspects ranks that have been silent for too long. The caller advances the agreements.
    pub(super) fn suspect(&mut self, ranks: &Ranks) {
        let fresh = (ranks & &self.live()).without(self.me);
        self.suspected = &self.suspected | &fresh;
        if let Some(rank) = fresh.lowest() {
            let sequence = self.progress.next();
            self.has_news = true;
            self.revoke(Cause { rank, evidence: Evidence::Suspected, sequence });
        }
    }

    pub(super) fn revoke_by_call(&mut self) {
        let sequence = self.progress.next();
        self.revoke(Cause { rank: self.me, evidence: Evidence::Called, sequence });
        self.advance_all();
    }

    /// Handles a revocation by another member, with the ends that it knows of.
    pub(super) fn learn_ends(&mut self, cause: Cause, ends: &Ends) {
        let within = |ranks: &Ranks| (ranks & &self.members).without(self.me);
        let (dead, left, never_voted) =
            (within(&ends.dead), within(&ends.left), within(&ends.never_voted));
        self.left = &self.left | &left;
        self.note_ends(&(&dead | &left), &never_voted);
        if let Some((rank, votes)) = &ends.votes
            && (dead.contains(*rank) || left.contains(*rank))
        {
            self.note_end(*rank, Some(votes.clone()));
        }
        self.revoke(cause);
        self.advance_all();
    }

    /// Notes that a rank will not act again; and its last votes, which may come later.
    fn note_end(&mut self, rank: u32, votes: Option<LastVotes>) {
        let votes = votes.filter(|_| !self.with_votes().contains(rank));
        let never = votes.as_ref().is_some_and(|votes| *votes == LastVotes::default());
        if let Some(votes) = votes.filter(|_| !never) {
            self.dead_votes.insert(rank, votes);
            self.has_news = true;
        }
        let rank = Ranks::only(rank);
        let never_voted = if never { rank.clone() } else { Ranks::NONE };
        self.note_ends(&rank, &never_voted);
    }

    /// Notes that ranks will not act again, and which of them never voted.
    fn note_ends(&mut self, gone: &Ranks, never_voted: &Ranks) {
        let is_known = gone.is_within(&self.gone) && never_voted.is_within(&self.never_voted);
        self.has_news |= !is_known;
        self.gone = &self.gone | gone;
        self.never_voted = &self.never_voted | never_voted;
    }

    /// Revokes the epoch, unless it is revoked. The caller advances the agreements, which look
    /// again at the live ranks.
    pub(super) fn revoke(&mut self, cause: Cause) {
        if self.state == State::Healthy {
            self.state = State::Revoked(cause);
            self.grace = None;
            self.has_news = true;
            self.tell(Verdict::Revoked(cause));
            self.interrupt();
        }
    }

    /// Handles a goodbye. It fails no call by itself: a call that needs the rank reports so. The
    /// end of the rank may be known already, but not its last vote, with which there may be a
    /// quorum.
    pub(super) fn goodbye(&mut self, rank: u32, vote: LastVotes) {
        self.left.insert(rank);
        self.note_end(rank, Some(vote));
        // The rank itself tells all that it has a channel to. This one may have other neighbours
        // now.
        self.has_news = self.state != State::Healthy;
        self.advance_all();
    }

    fn has_quorum(&self) -> bool {
        is_quorum(&self.members, &self.live(), &(&self.gone & &self.with_votes()))
    }

    /// True if the live ranks are a quorum. If not, asks all of them for better evidence, again
    /// whenever one more is lost.
    pub(super) fn may_decide(&mut self) -> bool {
        if self.has_quorum() {
            self.quorum_deadline = None;
            return true;
        }
        let live = self.live();
        if self.quorum_deadline.is_none() || self.asked_for_ends != live {
            if self.quorum_deadline.is_none() {
                self.quorum_lost = self.now;
            }
            self.quorum_deadline = Some(self.after(self.settings.answer_timeout));
            self.ask_all();
            // A rank whose communicator is not revoked knows of no end, and does not answer.
            self.broadcast(&live, SETTLE, &Body::Ask);
            (self.asked_for_ends, self.answered) = (live, Ranks::NONE);
        }
        false
    }

    /// A rank answers, or is about to: more of what it knows may be on its way.
    pub(super) fn expect_ends(&mut self, from: u32) {
        if !self.asked_for_ends.contains(from) {
            return;
        }
        let until = self.after(self.settings.answer_timeout);
        self.quorum_deadline = self.quorum_deadline.map(|before| before.max(until));
    }

    /// The agreements that have to be decided: that of the waiting call, and the settlement.
    pub(super) fn open_slots(&self) -> [Option<&Agreement>; 2] {
        let is_open = |slot: &&Agreement| slot.call.is_some() && slot.decided.is_none();
        let at = [self.pending.map(|pending| pending.slot), Some(SETTLE)];
        at.map(|at| at.and_then(|at| self.slots.get(&at)).filter(is_open))
    }

    /// Ends this member, unless better evidence has brought a quorum, or may come from live ranks
    /// that do not answer while their programs are busy. A settlement waits for these as long as
    /// for their reports, and an eviction until its deadline.
    pub(super) fn end_without_quorum(&mut self) {
        let (live, [call, settle]) = (self.live(), self.open_slots());
        if self.has_quorum() {
            self.quorum_deadline = None;
            return;
        }
        if call.is_none() && settle.is_none() {
            // The next call has the same deadline.
            return;
        }
        let silent = (&live - &self.answered).without(self.me);
        let all_wait = call.is_some_and(|slot| slot.absent(&silent).is_empty());
        let has_settled = self.quorum_lost.saturating_add(self.settings.settling) <= self.now;
        let is_late = self.evicts() || settle.is_some() && has_settled;
        if silent.is_empty() || all_wait || is_late {
            return self.end(Some(Verdict::QuorumLost { live }));
        }
        self.quorum_deadline = Some(self.after(self.settings.answer_timeout));
    }
}
