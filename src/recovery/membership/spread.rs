//! The spreading of what all members have to know: that the epoch is revoked, which members have
//! ended, and what was decided. The leader tells all members. Every other one tells its neighbours,
//! those at distances of powers of two in the order of ranks (the links of Chord, Stoica et al.
//! 2001), since the leader may end meanwhile. So `n` members send about `n` log `n` messages, and
//! news takes at most log `n` hops.
//! Law: a member tells each neighbour each fact once, and again where it is asked, and a decision
//! to all that know of its call. News passes only by members whose programs are in a call. A member
//! that lacks a quorum asks all, and whoever it has asked tells it later news, too.

use std::collections::BTreeSet;

use super::member::{Member, State};
use super::message::{Body, Cause, Ends, Message, Value};
use super::ranks::Ranks;
use super::slot::SETTLE;

/// The facts of this epoch that a neighbour knows.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownFacts {
    is_revoked: bool,
    dead: Ranks,
    votes: Ranks,
    decided: BTreeSet<u32>,
    origin: bool,
}

impl KnownFacts {
    /// Forgets decisions before this one, except that of a settlement.
    pub(super) fn forget_before(&mut self, oldest: u32) {
        self.decided.retain(|&slot| slot == SETTLE || slot >= oldest);
    }
}

impl Member {
    /// Tells the receivers of this member's news what they lack, before any message of a ballot:
    /// only members that know of the revocation take part in one.
    pub(super) fn spread(&mut self) {
        if !core::mem::take(&mut self.has_news) || self.state == State::Ended {
            return;
        }
        let others = (&self.members - &self.gone).without(self.me);
        let leads = self.live().lowest() == Some(self.me);
        let asking = &self.ends_asked_by & &others;
        let receivers = if leads { others } else { &self.neighbours(&others) | &asking };
        let news = self.revoked().map(|cause| (cause, self.known_ends()));
        for rank in receivers.iter() {
            let mut told = self.known_facts.remove(&rank).unwrap_or_default();
            self.tell_decisions(rank, &mut told);
            if let Some((cause, known)) = &news {
                self.tell_ends(rank, &mut told, (*cause, known));
            }
            self.known_facts.insert(rank, told);
        }
    }

    /// Answers a member that lacks ends of which this one knows, or will know: the members between
    /// them may be busy elsewhere.
    pub(super) fn answer_ask(&mut self, from: u32) {
        self.ends_asked_by.insert(from);
        self.known_facts.remove(&from);
        self.has_news = true;
    }

    /// The ends that this member knows of, without the last votes of ranks that have voted.
    fn known_ends(&self) -> Ends {
        Ends {
            dead: &self.gone - &self.left,
            left: self.left(),
            never_voted: self.never_voted.clone(),
            votes: None,
        }
    }

    /// The leader; and of the others, the first one and the first live one from each distance on.
    fn neighbours(&self, others: &Ranks) -> Ranks {
        let live = self.live().without(self.me);
        let distances = (0..Ranks::CAPACITY.ilog2()).map(|power| 1 << power);
        let within = distances.take_while(|&distance| distance < self.span());
        let from = |distance| [others, &live].map(|set| set.next(self.at_distance(distance)));
        within.flat_map(from).flatten().chain(live.lowest()).collect()
    }

    /// One more than the highest rank of a member.
    fn span(&self) -> u32 {
        self.members.highest().map_or(1, |highest| highest + 1)
    }

    /// The rank at this distance from this one, below the [`Self::span`].
    fn at_distance(&self, distance: u32) -> u32 {
        (self.me + distance) % self.span()
    }

    /// Tells the decision of an agreement to all that know of the call of this member, whose
    /// program goes on now and may leave their questions unanswered. After a closing the member
    /// says goodbye to all.
    pub(super) fn tell_decision(&mut self, at: u32, value: &Value) {
        let told = self.slots.get(&at).map_or(Ranks::NONE, |slot| slot.told.clone());
        for rank in (&told - &self.gone).without(self.me).iter() {
            if self.known_facts.entry(rank).or_default().decided.insert(at) {
                self.send(rank, at, Body::Decide(value.clone()));
            }
        }
    }

    fn tell_decisions(&mut self, rank: u32, told: &mut KnownFacts) {
        let decided =
            self.slots.iter().filter_map(|(&at, slot)| Some((at, slot.decided.as_ref()?)));
        let fresh = decided.filter(|(at, _)| told.decided.insert(*at));
        let message = |(slot, value): (u32, &Value), epoch| {
            (rank, Message { epoch, slot, body: Body::Decide(value.clone()) })
        };
        self.out.sends.extend(fresh.map(|decided| message(decided, self.epoch)));
        if let Some((slot, value)) = self.origin.as_ref().filter(|_| !told.origin) {
            told.origin = true;
            self.out.sends.push(message((*slot, value), self.epoch.saturating_sub(1)));
        }
    }

    /// Tells a rank of the revocation and of ends, unless it knows of all the dead and their votes.
    /// One message has the last votes of one rank that has voted, of which there are few.
    fn tell_ends(&mut self, rank: u32, told: &mut KnownFacts, (cause, ends): (Cause, &Ends)) {
        let known = self.with_votes();
        // A goodbye with its votes has gone to all members with a channel, but may not have come.
        let asks = self.ends_asked_by.contains(rank);
        let ended = if asks { &ends.dead | &ends.left } else { ends.dead.clone() };
        let is_told = told.is_revoked && ended.is_within(&told.dead);
        if is_told && (&ended & &known).is_within(&told.votes) {
            return;
        }
        let voted = self.dead_votes.iter().filter(|(voter, _)| !told.votes.contains(**voter));
        let mut votes: Vec<_> = voted.map(|(&voter, votes)| Some((voter, votes.clone()))).collect();
        if votes.is_empty() {
            votes.push(None);
        }
        for (number, votes) in votes.into_iter().enumerate() {
            // Each further message is of its voter alone.
            let mut ends = Ends { votes, ..ends.clone() };
            if let Some((voter, _)) = ends.votes.as_ref().filter(|_| number > 0) {
                let voter = &Ranks::only(*voter);
                (ends.dead, ends.left) = (&ends.dead & voter, &ends.left & voter);
                ends.never_voted = Ranks::NONE;
            }
            self.send(rank, SETTLE, Body::Revoke(cause, ends));
        }
        told.is_revoked = true;
        (told.dead, told.votes) = (&told.dead | &ended, &told.votes | &known);
    }

    /// Notes what a member knows that has told this one.
    pub(super) fn note_told(&mut self, from: u32, body: &Body, at: u32) {
        let told = self.known_facts.entry(from).or_default();
        match body {
            Body::Revoke(_, Ends { dead, never_voted, votes, .. }) => {
                told.is_revoked = true;
                told.dead = &told.dead | dead;
                told.votes = &told.votes | never_voted;
                told.votes.extend(votes.as_ref().map(|(voter, _)| *voter));
            }
            Body::Decide(_) => _ = told.decided.insert(at),
            _ => {}
        }
    }

    /// The ranks whose last votes are known.
    pub(super) fn with_votes(&self) -> Ranks {
        let mut known = self.never_voted.clone();
        known.extend(self.dead_votes.keys().copied());
        known
    }
}
