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
    /// The ranks whose programs have called for an agreement, and for a change of members.
    pub(super) agreeing: Ranks,
    pub(super) changing: Ranks,
    pub(super) promised: Ballot,
    pub(super) accepted: Option<(Ballot, Value)>,
    pub(super) decided: Option<Value>,
    pub(super) lead: Option<Lead>,
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
    /// Notes that the program of `rank` has called. No program calls for a settlement.
    pub(super) fn enter(&mut self, rank: u32, kind: AgreementKind) {
        match kind {
            AgreementKind::Settle => {}
            AgreementKind::Agree => _ = self.agreeing.insert(rank),
            AgreementKind::Change => _ = self.changing.insert(rank),
        }
    }

    /// The ranks of `live` that have not made the call of this rank yet; none for a settlement.
    pub(super) fn missing(&self, live: Ranks) -> Ranks {
        match self.call.map(|call| call.kind) {
            None => live,
            Some(AgreementKind::Settle) => Ranks::NONE,
            Some(AgreementKind::Agree) => live - self.agreeing,
            Some(AgreementKind::Change) => live - self.changing,
        }
    }
}
