//! One agreement of an epoch (a Paxos instance), as one rank sees it.
//! Law: the promised ballot never decreases.

use super::member::Time;
use super::message::{AgreementKind, Ballot, Call, Report, Value};
use super::ranks::Ranks;

/// The number of the agreement on operations that a revocation interrupted. Agreements of the
/// program have the numbers from 1.
pub(super) const SETTLE: u32 = 0;

#[derive(Clone, Debug, Default)]
pub(super) struct Agreement {
    /// The contribution of this rank, once it takes part.
    pub(super) call: Option<Call>,
    /// The ranks whose programs have called for an agreement, for a change of members, and for the
    /// closing of one.
    pub(super) agreeing: Ranks,
    pub(super) changing: Ranks,
    pub(super) closing: Ranks,
    /// Of them, the ranks whose programs wait no longer: these answer once they call again. Those
    /// that stayed away had withdrawn before this rank last asked all.
    pub(super) withdrawn: Ranks,
    pub(super) stayed_away: Ranks,
    /// The ranks that this one has told its call, and those that have asked for it.
    pub(super) told: Ranks,
    pub(super) asked_by: Ranks,
    /// This rank has asked all others for their calls.
    pub(super) has_asked: bool,
    pub(super) promised: Ballot,
    pub(super) accepted: Option<(Ballot, Value)>,
    pub(super) decided: Option<Value>,
    pub(super) lead: Option<Lead>,
    /// The leader for whose messages this rank waits.
    pub(super) watched: Option<u32>,
    /// The timeout of the current wait, and the timeouts since the last message of a leader.
    pub(super) alarm: Option<Time>,
    pub(super) tries: u32,
    /// Another leader's ballot was higher: `alarm` is the time of the next attempt.
    pub(super) backoff: bool,
}

/// A ballot that this rank leads.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub(super) ballot: Ballot,
    /// The other participants.
    pub(super) asked: Ranks,
    /// The participants that have answered in this phase.
    pub(super) answered: Ranks,
    /// The reports of the participants, with the leader's own.
    pub(super) reports: Vec<(u32, Report)>,
    /// Participants suspect each other, and a wait has brought no better evidence.
    pub(super) waited: bool,
    /// The proposed value, in the second phase.
    pub(super) value: Option<Value>,
}

impl Agreement {
    /// Notes the last call of the program of `rank`, which may replace one whose deadline has
    /// passed. No program calls for a settlement.
    pub(super) fn enter(&mut self, rank: u32, kind: AgreementKind) {
        if kind == AgreementKind::Settle {
            return;
        }
        for calls in [&mut self.agreeing, &mut self.changing, &mut self.closing] {
            calls.remove(rank);
        }
        self.withdrawn.remove(rank);
        self.stayed_away.remove(rank);
        _ = match kind {
            AgreementKind::Settle => false,
            AgreementKind::Agree => self.agreeing.insert(rank),
            AgreementKind::Change => self.changing.insert(rank),
            AgreementKind::Close => self.closing.insert(rank),
        };
    }

    /// Notes that the program of a rank waits no longer for its call.
    pub(super) fn withdraw(&mut self, rank: u32) {
        let called = [&self.agreeing, &self.changing, &self.closing];
        if called.iter().any(|calls| calls.contains(rank)) {
            self.withdrawn.insert(rank);
        }
    }

    /// True if the programs of all `live` ranks have called, in whichever way.
    pub(super) fn has_calls_of(&self, live: &Ranks) -> bool {
        self.without_calls(live).is_empty()
    }

    /// The ranks of `live` whose programs have made no call; none for a settlement.
    pub(super) fn without_calls(&self, live: &Ranks) -> Ranks {
        match self.call.map(|call| call.kind) {
            Some(AgreementKind::Settle) => Ranks::NONE,
            _ => &(&(live - &self.agreeing) - &self.changing) - &self.closing,
        }
    }

    /// The ranks of `live` whose programs do not wait in a call; none for a settlement.
    pub(super) fn absent(&self, live: &Ranks) -> Ranks {
        &self.without_calls(live) | &(live & &self.withdrawn)
    }

    /// The ranks of `live` that have not made the call of this rank yet; none for a settlement.
    pub(super) fn missing(&self, live: &Ranks) -> Ranks {
        match self.call.map(|call| call.kind) {
            None => live.clone(),
            Some(AgreementKind::Settle) => Ranks::NONE,
            Some(AgreementKind::Agree) => live - &self.agreeing,
            Some(AgreementKind::Change) => live - &self.changing,
            Some(AgreementKind::Close) => live - &self.closing,
        }
    }
}
