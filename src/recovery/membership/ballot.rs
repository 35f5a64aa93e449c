//! Agreements: who leads, and what it and the others do. May touch: the room. Laws: a member
//! answers no ballot below one it has promised; a leader decides when all it asked have accepted.

use core::cmp::Ordering;

use super::choose::{choose, quarrel};
use super::member::{Member, Verdict};
use super::message::{Ballot, Body, Kind, Report, Testament, Value, Vote};
use super::quorum::quorum;
use super::ranks::Ranks;
use super::slot::{Lead, SETTLE, Slot};

/// How often a member that waits asks around before it doubts the leader.
const QUESTIONS: u32 = 2;

/// Two leaders that were in each other's way wait twice as long each time, so often at most.
const DOUBLINGS: u32 = 5;

impl Member {
    /// Does in all agreements what the ranks now alive allow.
    pub(super) fn advance_all(&mut self) {
        let slots: Vec<u32> = self.slots.keys().copied().collect();
        for slot in slots {
            self.advance(slot);
        }
    }

    pub(super) fn advance(&mut self, at: u32) {
        let live = self.live();
        let undecided = |slot: &&Slot| slot.call.is_some() && slot.decided.is_none();
        if self.slots.get(&at).filter(undecided).is_none() {
            return;
        }
        let may = self.may_decide();
        let (me, later) = (self.me, self.later(at));
        let Some(slot) = self.slots.get_mut(&at) else { return };
        if !may {
            slot.lead = None;
            slot.alarm = None;
            slot.backoff = false;
            return;
        }
        if !slot.missing(live).is_empty() {
            return;
        }
        if live.lowest() != Some(me) {
            slot.alarm.get_or_insert(later);
            return;
        }
        let whole = slot.lead.as_ref().is_some_and(|lead| (lead.asked - live).is_empty());
        if !whole && !slot.backoff {
            self.start(at);
        }
    }

    /// Begins a ballot above all this rank knows of.
    fn start(&mut self, at: u32) {
        let (me, asked) = (self.me, self.live().without(self.me));
        let later = self.later(at);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let ballot = Ballot { round: slot.promised.round.saturating_add(1), leader: me };
        slot.promised = ballot;
        slot.alarm = Some(later);
        slot.backoff = false;
        let Some(report) = self.report(at) else { return };
        if let Some(slot) = self.slots.get_mut(&at) {
            let reports = vec![(me, report)];
            let answered = Ranks::NONE;
            let (waited, value) = (false, None);
            slot.lead = Some(Lead { ballot, asked, answered, reports, waited, value });
        }
        self.broadcast(asked, at, Body::Gather(ballot));
        self.propose(at);
    }

    /// Goes on to the second phase, if the first is over.
    fn propose(&mut self, at: u32) {
        let (me, members, later) = (self.me, self.members, self.later(at));
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let (Some(lead), Some(call)) = (&mut slot.lead, slot.call) else { return };
        if lead.answered != lead.asked || lead.value.is_some() {
            return;
        }
        if call.kind == Kind::Change && !lead.waited && quarrel(&lead.reports) {
            // Soon it may be certain who of them is no more.
            slot.alarm = Some(later);
            return;
        }
        let value = choose(me, call.kind, members, &lead.reports);
        let accepted = lead.reports.iter().filter_map(|(_, report)| report.accepted).map(|it| it.0);
        let known = accepted.max().unwrap_or_default();
        let (ballot, asked) = (lead.ballot, lead.asked);
        let takers = asked | Ranks::from_iter([me]);
        lead.value = Some(value);
        lead.answered = Ranks::NONE;
        slot.alarm = Some(later);
        if !quorum(members, takers, self.heard(at, takers, known)) {
            let live = takers;
            return self.end(Some(Verdict::QuorumLost { live }));
        }
        self.accept(at, ballot, value, takers);
        self.broadcast(asked, at, Body::Propose(ballot, value, takers));
        self.conclude(at);
    }

    /// Decides, if all have accepted.
    fn conclude(&mut self, at: u32) {
        let Some(lead) = self.slots.get(&at).and_then(|slot| slot.lead.as_ref()) else { return };
        let Some(value) = lead.value.filter(|_| lead.answered == lead.asked) else { return };
        if value.kind != Kind::Change {
            self.broadcast(self.members, at, Body::Decide(value));
        }
        self.decided(at, value);
    }

    pub(super) fn report(&self, at: u32) -> Option<Report> {
        let slot = self.slots.get(&at)?;
        Some(Report {
            gone: self.gone,
            doubted: self.doubted & self.members,
            done: self.work.done,
            full: self.work.full.max(self.work.done),
            call: slot.call?,
            cause: self.revoked(),
            accepted: slot.accepted,
        })
    }

    pub(super) fn gather(&mut self, from: u32, at: u32, ballot: Ballot) {
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

    pub(super) fn promised(&mut self, from: u32, at: u32, ballot: Ballot, report: &Report) {
        let Some(lead) = self.slots.get_mut(&at).and_then(|slot| slot.lead.as_mut()) else {
            return;
        };
        if lead.ballot != ballot || lead.value.is_some() || !lead.asked.contains(from) {
            return;
        }
        if lead.answered.insert(from) {
            lead.reports.push((from, *report));
        }
        self.propose(at);
    }

    /// Those who are gone and of whose votes enough is known: nothing they accepted was decided,
    /// unless the `takers` know it by a ballot they accepted, of which `known` is the highest.
    fn heard(&self, at: u32, takers: Ranks, known: Ballot) -> Ranks {
        let heard = |will: &Testament| {
            let vote = if at == SETTLE { will.settle } else { will.call };
            match (will.epoch, vote.slot).cmp(&(self.epoch, at)) {
                Ordering::Less => true,
                Ordering::Equal => vote.ballot <= known || !(vote.takers & takers).is_empty(),
                // It went on without these.
                Ordering::Greater => false,
            }
        };
        let wills = self.wills.iter().filter(|(_, will)| heard(will));
        wills.map(|(&rank, _)| rank).collect::<Ranks>() & self.gone
    }

    fn accept(&mut self, at: u32, ballot: Ballot, value: Value, takers: Ranks) {
        if let Some(slot) = self.slots.get_mut(&at) {
            slot.accepted = Some((ballot, value));
        }
        if self.testament.epoch != self.epoch {
            self.testament = Testament { epoch: self.epoch, ..Testament::default() };
        }
        let Testament { settle, call, .. } = &mut self.testament;
        let vote = if at == SETTLE { settle } else { call };
        let again = vote.slot == at && vote.ballot.round > 0;
        let takers = if again { takers & vote.takers } else { takers };
        *vote = Vote { slot: at, ballot, takers };
    }

    pub(super) fn proposed(
        &mut self,
        from: u32,
        at: u32,
        ballot: Ballot,
        value: &Value,
        takers: Ranks,
    ) {
        let Some(slot) = self.slots.get_mut(&at).filter(|_| ballot.leader == from) else { return };
        if ballot < slot.promised {
            let promised = slot.promised;
            return self.send(from, at, Body::Refuse(ballot, promised));
        }
        self.accept(at, ballot, *value, takers);
        self.promise(at, ballot);
        self.send(from, at, Body::Accept(ballot));
    }

    pub(super) fn accepted(&mut self, from: u32, at: u32, ballot: Ballot) {
        let Some(lead) = self.slots.get_mut(&at).and_then(|slot| slot.lead.as_mut()) else {
            return;
        };
        if lead.ballot == ballot && lead.value.is_some() && lead.asked.contains(from) {
            lead.answered.insert(from);
            self.conclude(at);
        }
    }

    /// Another leader's ballot: a sign of life, and the end of a lower one of this rank's own.
    fn promise(&mut self, at: u32, ballot: Ballot) {
        let later = self.later(at);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        slot.promised = ballot;
        if slot.lead.is_some() {
            return self.back_off(at);
        }
        slot.tries = 0;
        slot.alarm = Some(later);
    }

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

    /// Lets another leader go first, for a time that differs between ranks.
    fn back_off(&mut self, at: u32) {
        let (unit, me, now) = (self.settings.patience / 8 + 1, u64::from(self.me), self.now);
        let Some(slot) = self.slots.get_mut(&at) else { return };
        let units = (4 << slot.tries.min(DOUBLINGS)) + me % 8;
        slot.tries += 1;
        slot.lead = None;
        slot.backoff = true;
        slot.alarm = Some(now.saturating_add(unit.saturating_mul(units)));
    }

    /// It took too long.
    pub(super) fn alarm(&mut self, at: u32) {
        let (live, later) = (self.live(), self.later(at));
        let Some(slot) = self.slots.get_mut(&at) else { return };
        slot.alarm = None;
        if let Some(lead) = &mut slot.lead {
            let silent = lead.asked - lead.answered;
            lead.waited |= silent.is_empty();
            slot.alarm = Some(later);
            self.doubt(silent);
            return self.propose(at);
        }
        if slot.backoff || live.lowest() == Some(self.me) {
            slot.backoff = false;
            return self.advance(at);
        }
        slot.tries += 1;
        if slot.tries > QUESTIONS {
            return self.doubt(live.lowest().into_iter().collect());
        }
        slot.alarm = Some(later);
        let kind = slot.call.map(|call| call.kind).filter(|_| at != SETTLE);
        let body = kind.map_or(Body::Ask, Body::Enter);
        self.broadcast(self.members, at, body);
    }
}
