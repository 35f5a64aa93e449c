//! One agreement of an epoch, as one rank sees it. May touch: message, ranks. Law: what is promised
//! never falls.

use super::member::Time;
use super::message::{Ballot, Call, Kind, Report, Value};
use super::ranks::Ranks;

/// The agreement that settles what a revocation interrupted; callers' have the numbers from 1.
pub(super) const SETTLE: u32 = 0;

#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// What this rank brings, once it takes part.
    pub(super) call: Option<Call>,
    /// Whose callers have called to agree, and whose to change.
    pub(super) agreeing: Ranks,
    pub(super) changing: Ranks,
    pub(super) promised: Ballot,
    pub(super) accepted: Option<(Ballot, Value)>,
    pub(super) decided: Option<Value>,
    pub(super) lead: Option<Lead>,
    /// When to wait no longer, and how often that was so since the last sign of a leader.
    pub(super) alarm: Option<Time>,
    pub(super) tries: u32,
    /// Another leader was there first: the alarm is when to try again.
    pub(super) backoff: bool,
}

/// A ballot that this rank leads.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub(super) ballot: Ballot,
    /// All others that it takes.
    pub(super) asked: Ranks,
    /// Who of them has answered in this phase.
    pub(super) answered: Ranks,
    /// With the leader's own.
    pub(super) reports: Vec<(u32, Report)>,
    /// Some doubt each other, and nothing better was learnt in the time there was.
    pub(super) waited: bool,
    /// What is proposed, in the second phase.
    pub(super) value: Option<Value>,
}

impl Slot {
    /// Notes that `rank` has called; what no caller can call changes nothing.
    pub(super) fn enter(&mut self, rank: u32, kind: Kind) {
        match kind {
            Kind::Settle => {}
            Kind::Agree => _ = self.agreeing.insert(rank),
            Kind::Change => _ = self.changing.insert(rank),
        }
    }

    /// Who of `live` has not yet called what this rank has; nobody has to call to settle.
    pub(super) fn missing(&self, live: Ranks) -> Ranks {
        match self.call.map(|call| call.kind) {
            None => live,
            Some(Kind::Settle) => Ranks::NONE,
            Some(Kind::Agree) => live - self.agreeing,
            Some(Kind::Change) => live - self.changing,
        }
    }
}
