//! Ballots, the two phases of Paxos: a leader collects promises, then proposes a value; acceptors
//! promise and accept.
//! Law: a member accepts no ballot below one that it has promised; a leader decides when all ranks
//! that it asked have accepted.

use core::cmp::Ordering;

use super::choose::{choose, has_suspicion, is_decidable};
use super::member::Member;
use super::message::{AgreementKind, Ballot, Body, Entry, LastVotes, Report, Value, Vote};
use super::quorum::is_quorum;
use super::ranks::Ranks;
use super::slot::{Agreement, Lead, SETTLE};
use super::verdict::Verdict;

/// How often a waiting member asks the others before it suspects the leader.
const MAX_ASKS: u32 = 2;

/// A member suspects a leader that is silent for so many timeouts.
pub const LEADER_TIMEOUTS: u32 = MAX_ASKS + 1;

/// The most doublings of the backoff of a leader that a higher ballot has refused.
const MAX_BACKOFF_DOUBLINGS: u32 = 5;

impl Member {
    /// Advances all agreements as far as the live ranks allow.
    pub(super) fn advance_all(&mut self) {
        self.spread();
        let slots: Vec<u32> = self.slots.keys().copied().collect();
        for slot in slots {
            self.advance(slot);
        }
    }

    /// Advances an agreement once all live ranks have called: the lowest live rank starts a ballot,
    /// and the others watch it. Where their calls are of different kinds, the ballot only finds out
    /// whether an earlier one has to be ended.
    pub(super) fn advance(&mut self, at: u32) {
        let live = self.live();
        let undecided = |slot: &&Agreement| slot.call.is_some() && slot.decided.is_none();
        if self.slots.get(&at).filter(undecided).is_none() {
            return;
        }
        self.tell_call(at);
        let may = self.may_decide();
        let (me, answer_due) = (self.me, self.answer_due(at));
        let Some(slot) = self.slots.get_mut(&at) else { return };
        if !may {
            slot.lead = None;
            slot.alarm = None;
            slot.backoff = false;
            return;
        }
        let leads = live.lowest() == Some(me);
        if !leads {
            if core::mem::replace(&mut slot.watched, live.lowest()) != live.lowest() {
                // The new leader has been asked nothing.
                (slot.alarm, slot.tries) = (slot.alarm.filter(|_| slot.backoff), 0);
            }
            slot.alarm.get_or_insert(answer_due);
            return;
        }
        if !slot.has_calls_of(&live) {
            return;
        }
        let is_led = slot.lead.as_ref().is_some_and(|lead| lead.asked.is_within(&live));
        if !is_led && !slot.backoff {
            self.start(at);
        }
    }

    /// Starts a ballot above every ballot that this rank knows.
    fn start(&mut self, at: u32) {
        let (me, asked) = (self.me, self.live().without(self.me));
        let (answer_due, of_dead) = (self.answer_due(at), self.promised_by_dead(at));
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let highest = slot.promised.max(of_dead);
        let ballot = Ballot { round: highest.round.saturating_add(1), leader: me };
        slot.promised = ballot;
        slot.alarm = Some(answer_due);
        slot.backoff = false;
        self.note_promise(at, ballot);
        let Some(report) = self.report(at) else { return };
        if let Some(slot) = self.slots.get_mut(&at) {
            let reports = vec![(me, report)];
            let answered = Ranks::NONE;
            let (waited, value) = (false, None);
            let asked = asked.clone();
            slot.lead = Some(Lead { ballot, asked, answered, reports, waited, value });
        }
        self.broadcast(&asked, at, &Body::Prepare(ballot));
        self.propose(at);
    }

    /// Starts the second phase, if all promises are here.
    fn propose(&mut self, at: u32) {
        let (me, live) = (self.me, self.live());
        let answer_due = self.answer_due(at);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let (Some(lead), Some(call)) = (&mut slot.lead, slot.call) else { return };
        if lead.answered != lead.asked || lead.value.is_some() {
            return;
        }
        if !is_decidable(&lead.reports) {
            slot.lead = None;
            slot.alarm = None;
            // By now all may have made the same call. If not, the next one starts a ballot again.
            if slot.missing(&live).is_empty() {
                self.start(at);
            }
            return;
        }
        if call.kind == AgreementKind::Change && !lead.waited && has_suspicion(&lead.reports) {
            // Better evidence may come soon, of which of them is dead.
            slot.alarm = Some(answer_due);
            return;
        }
        let value = choose(me, call.kind, &lead.reports);
        let accepted =
            lead.reports.iter().filter_map(|(_, report)| Some(report.accepted.as_ref()?.0));
        let highest = accepted.max().unwrap_or_default();
        let (ballot, asked) = (lead.ballot, lead.asked.clone());
        let participants = &asked | &Ranks::only(me);
        lead.value = Some(value.clone());
        lead.answered = Ranks::NONE;
        slot.alarm = Some(answer_due);
        let harmless = self.harmless_dead(at, &participants, highest);
        if !is_quorum(&self.members, &participants, &harmless) {
            if self.promised_by_dead(at) > ballot {
                return self.start(at);
            }
            let live = participants;
            return self.end(Some(Verdict::QuorumLost { live }));
        }
        self.accept(at, ballot, &value, &participants);
        self.broadcast(&asked, at, &Body::Propose(ballot, value, participants));
        self.conclude(at);
    }

    /// Decides, if all asked ranks have accepted.
    fn conclude(&mut self, at: u32) {
        let Some(lead) = self.slots.get(&at).and_then(|slot| slot.lead.as_ref()) else { return };
        let decided = lead.value.as_ref().filter(|_| lead.answered == lead.asked);
        if let Some(value) = decided.cloned() {
            self.decided(at, value);
        }
    }

    /// The report of this rank to the leader of a ballot, which goes with its promise.
    pub(super) fn report(&self, at: u32) -> Option<Report> {
        let slot = self.slots.get(&at)?;
        Some(Report {
            suspected: &self.suspected & &self.members,
            done: self.progress.done,
            full: self.progress.full.max(self.progress.done),
            call: slot.call?,
            cause: self.revoked(),
            accepted: slot.accepted.clone(),
        })
    }

    /// Handles a leader's `Prepare`: promises its ballot, or refuses it.
    pub(super) fn prepare(&mut self, from: u32, at: u32, ballot: Ballot) {
        let Some(slot) = self.slots.get_mut(&at).filter(|_| ballot.leader == from) else { return };
        if slot.call.is_none() {
            return;
        }
        if ballot <= slot.promised {
            let promised = slot.promised;
            return self.send(from, at, Body::Refuse(ballot, promised));
        }
        self.promise(at, ballot);
        if let Some(report) = self.report(at) {
            self.send(from, at, Body::Promise(ballot, report));
        }
    }

    /// Handles a `Promise` for a ballot that this rank leads.
    pub(super) fn promised(&mut self, from: u32, at: u32, ballot: Ballot, report: &Report) {
        let Some(lead) = self.slots.get_mut(&at).and_then(|slot| slot.lead.as_mut()) else {
            return;
        };
        if lead.ballot != ballot || lead.value.is_some() || !lead.asked.contains(from) {
            return;
        }
        if lead.answered.insert(from) {
            lead.reports.push((from, report.clone()));
        }
        self.propose(at);
    }

    /// The vote of a dead rank in this agreement; `None` if it has accepted in a later one. A rank
    /// that has only promised in a later one knows the decision of this one, to which its promise
    /// here adds nothing.
    fn vote_of_dead(&self, at: u32, last: &LastVotes) -> Option<Vote> {
        let (vote, here) = (if at == SETTLE { &last.settle } else { &last.call }, (self.epoch, at));
        let promised = if vote.promised_in == here { vote.promised } else { Ballot::default() };
        match vote.accepted_in.cmp(&here) {
            Ordering::Less => Some(Vote { promised, ..Vote::default() }),
            Ordering::Equal => Some(Vote { promised, ..vote.clone() }),
            Ordering::Greater => None,
        }
    }

    /// The highest ballot that a dead rank has promised in this agreement.
    fn promised_by_dead(&self, at: u32) -> Ballot {
        let votes = self.dead_votes.values().filter_map(|last| self.vote_of_dead(at, last));
        votes.map(|vote| vote.promised).max().unwrap_or_default()
    }

    /// The dead ranks that have no part in a ballot of which the `participants` do not know: by
    /// their last votes, they have promised none above this one, so that no leader of a higher one
    /// counts on them, and no value that they accepted was decided without the `participants`.
    /// `known` is the highest ballot that the participants have accepted.
    fn harmless_dead(&self, at: u32, participants: &Ranks, known: Ballot) -> Ranks {
        let own = self.slots.get(&at).and_then(|slot| slot.lead.as_ref()).map(|lead| lead.ballot);
        let is_harmless = |last: &LastVotes| {
            self.vote_of_dead(at, last).is_some_and(|vote| {
                let knows = vote.accepted <= known || !vote.participants.is_disjoint(participants);
                own.is_some_and(|own| vote.promised <= own) && knows
            })
        };
        let votes = self.dead_votes.iter().filter(|(_, last)| is_harmless(last));
        let mut harmless = self.never_voted.clone();
        harmless.extend(votes.map(|(&rank, _)| rank));
        &harmless & &self.gone
    }

    fn accept(&mut self, at: u32, ballot: Ballot, value: &Value, participants: &Ranks) {
        if let Some(slot) = self.slots.get_mut(&at) {
            slot.accepted = Some((ballot, value.clone()));
        }
        let accepted_in = (self.epoch, at);
        let vote = self.own_vote(at);
        let again = vote.accepted_in == accepted_in && vote.accepted.round > 0;
        let participants =
            if again { participants & &vote.participants } else { participants.clone() };
        *vote = Vote { accepted_in, accepted: ballot, participants, ..vote.clone() };
    }

    fn own_vote(&mut self, at: u32) -> &mut Vote {
        let LastVotes { settle, call } = &mut self.own_votes;
        if at == SETTLE { settle } else { call }
    }

    /// Notes a promise, which survivors must know after the death of this rank.
    fn note_promise(&mut self, at: u32, ballot: Ballot) {
        let promised_in = (self.epoch, at);
        let vote = self.own_vote(at);
        (vote.promised_in, vote.promised) = (promised_in, ballot);
    }

    /// Handles a leader's `Propose`: accepts its value, or refuses its ballot.
    pub(super) fn proposed(
        &mut self,
        from: u32,
        at: u32,
        ballot: Ballot,
        value: &Value,
        participants: &Ranks,
    ) {
        let Some(slot) = self.slots.get_mut(&at).filter(|_| ballot.leader == from) else { return };
        if ballot < slot.promised {
            let promised = slot.promised;
            return self.send(from, at, Body::Refuse(ballot, promised));
        }
        self.accept(at, ballot, value, participants);
        self.promise(at, ballot);
        self.send(from, at, Body::Accept(ballot));
    }

    /// Handles an `Accept` of the value that this rank has proposed.
    pub(super) fn accepted(&mut self, from: u32, at: u32, ballot: Ballot) {
        let Some(lead) = self.slots.get_mut(&at).and_then(|slot| slot.lead.as_mut()) else {
            return;
        };
        if lead.ballot == ballot && lead.value.is_some() && lead.asked.contains(from) {
            lead.answered.insert(from);
            self.conclude(at);
        }
    }

    /// Promises another leader's ballot: a sign of life of the leader, and the end of a lower
    /// ballot of this rank.
    fn promise(&mut self, at: u32, ballot: Ballot) {
        let answer_due = self.answer_due(at);
        self.note_promise(at, ballot);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        slot.promised = ballot;
        if slot.lead.is_some() {
            return self.back_off(at);
        }
        slot.tries = 0;
        slot.alarm = Some(answer_due);
    }

    /// Handles a `Refuse` of a ballot that this rank leads.
    pub(super) fn refused(&mut self, at: u32, refused: Ballot, promised: Ballot) {
        let gone = self.gone.contains(promised.leader);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        if slot.lead.as_ref().is_none_or(|lead| lead.ballot != refused) {
            return;
        }
        slot.promised = slot.promised.max(promised);
        if gone {
            self.start(at);
        } else {
            self.back_off(at);
        }
    }

    /// Backoff: lets another leader go first, for a time that differs between ranks.
    fn back_off(&mut self, at: u32) {
        let (unit, me, now) = (self.settings.answer_timeout / 8 + 1, u64::from(self.me), self.now);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let units = (4 << slot.tries.min(MAX_BACKOFF_DOUBLINGS)) + me % 8;
        slot.tries += 1;
        slot.lead = None;
        slot.backoff = true;
        slot.alarm = Some(now.saturating_add(unit.saturating_mul(units)));
    }

    /// Handles the timeout of an agreement.
    pub(super) fn alarm(&mut self, at: u32) {
        let (live, answer_due) = (self.live(), self.answer_due(at));
        let evicts = self.evicts();
        let Some(slot) = self.slots.get_mut(&at) else { return };
        slot.alarm = None;
        if let Some(lead) = &mut slot.lead {
            let silent = &lead.asked - &lead.answered;
            lead.waited |= silent.is_empty();
            slot.alarm = Some(answer_due);
            let silent = if evicts { silent } else { &silent - &slot.withdrawn };
            if !silent.is_empty() {
                self.suspect(&silent);
                self.advance_all();
            }
            return self.propose(at);
        }
        if slot.backoff || live.lowest() == Some(self.me) {
            slot.backoff = false;
            return self.advance(at);
        }
        if slot.withdrawn.contains(self.me) {
            return;
        }
        let leader: Ranks = live.lowest().into_iter().collect();
        slot.alarm = Some(answer_due);
        slot.tries += 1;
        if slot.tries > MAX_ASKS {
            slot.tries = 0;
            // A leader whose program does not wait, or that waits for another, need not answer.
            let all_wait = slot.missing(&live).is_empty() && leader.is_disjoint(&slot.withdrawn);
            if all_wait || evicts {
                self.suspect(&leader);
                self.advance_all();
            }
            return;
        }
        let asks_all = slot.tries == MAX_ASKS;
        slot.has_asked |= asks_all;
        let to = match asks_all {
            true if at == SETTLE => self.members.clone(),
            true => &slot.absent(&self.members) | &leader,
            false => leader,
        };
        if at != SETTLE {
            slot.told = &slot.told | &to;
        }
        let kind = slot.call.map(|call| call.kind).filter(|_| at != SETTLE);
        self.broadcast(
            &to,
            at,
            &kind.map_or(Body::Ask, |kind| Body::Enter(Entry { kind, asks: true })),
        );
    }
}
