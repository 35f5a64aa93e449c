//! What members say to each other. May touch: ranks. Law: every message names its epoch, and is
//! meant for that epoch alone.

use super::ranks::Ranks;

/// How sure it is that a rank is lost, the surest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// Nobody is lost: the rank asked for the revocation.
    Called,
    /// The rank said goodbye, and a call needs it.
    Left,
    /// Nothing was heard of it for too long; it may be paused, or cut off.
    Suspected,
    /// Its connection ended without a goodbye.
    Strong,
    /// Its process has ended: the system says so, or whoever started it.
    Certain,
}

/// Why an epoch was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// Who is lost, or who called.
    pub rank: u32,
    /// How sure that is.
    pub evidence: Evidence,
    /// Which operation whoever noticed was at.
    pub sequence: u64,
}

impl Cause {
    /// The better explanation of two: the surer, then the earlier, then of the lower rank.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        let key = |cause: Self| (core::cmp::Reverse(cause.evidence), cause.sequence, cause.rank);
        if key(other) < key(self) { other } else { self }
    }
}

/// The number of an attempt to agree; every leader has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Counts the attempts; the first is 1.
    pub round: u32,
    /// Who leads it.
    pub leader: u32,
}

/// What ranks agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Which operations that a revocation interrupted count as done.
    Settle,
    /// The bitwise and of what all say.
    Agree,
    /// Who belongs to the next epoch.
    Change,
}

/// What one rank brings to an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What for.
    pub kind: Kind,
    /// Agree: what it says.
    pub flags: u64,
    /// Change: who is ready to join, as far as it knows.
    pub joiners: Ranks,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// What it is about.
    pub kind: Kind,
    /// Change: the members of the next epoch. Else: whose calls are in it.
    pub members: Ranks,
    /// Change: those of them that are new.
    pub joined: Ranks,
    /// Agree: the bitwise and.
    pub flags: u64,
    /// How far operations have come.
    pub recovery: Recovery,
    /// The best explanation that anybody had, if the epoch was revoked.
    pub cause: Option<Cause>,
}

/// Which operations succeeded at the ranks that agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// Up to this one at all of them.
    pub low: u64,
    /// Up to this one at some of them. The same as `low` in uniform mode.
    pub high: u64,
}

/// What a rank that acts no more leaves behind: what it voted for last. Who comes after must know,
/// for others may have gone on by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Testament {
    /// In which epoch.
    pub epoch: u32,
    /// The vote to settle.
    pub settle: Vote,
    /// The vote in the last agreement of callers in which it had one.
    pub call: Vote,
}

/// What a rank has accepted in one agreement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vote {
    /// In which.
    pub slot: u32,
    /// The last ballot; of round 0 if it has accepted nothing.
    pub ballot: Ballot,
    /// Who took part in all ballots in which it accepted something.
    pub takers: Ranks,
}

/// What a rank promises a ballot with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Who will not act again, of members and joiners.
    pub gone: Ranks,
    /// Whom the rank itself holds for lost.
    pub doubted: Ranks,
    /// The last operation that returned `Ok`.
    pub done: u64,
    /// The last operation of which it has the whole result.
    pub full: u64,
    /// What it brings.
    pub call: Call,
    /// Why the epoch was revoked, if it was.
    pub cause: Option<Cause>,
    /// What it accepted last.
    pub accepted: Option<(Ballot, Value)>,
}

/// What one member says to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// The sender's epoch; of a decision, the epoch that made it.
    pub epoch: u32,
    /// Which agreement of the epoch: 0 settles, callers' begin at 1. 0 where there is none.
    pub slot: u32,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Tell me what I missed.
    Ask,
    /// I leave, and shall not act in this job again.
    Goodbye(Testament),
    /// You are no member; the sender's epoch is that of the message.
    Evicted,
    /// The epoch is revoked, or one more death is certain, with what the dead one leaves.
    Revoke(Cause, Option<Testament>),
    /// My caller has called.
    Enter(Kind),
    /// Promise me this ballot, and report.
    Gather(Ballot),
    /// I promise, and this is how things are with me.
    Promise(Ballot, Report),
    /// Not the first ballot: I have promised the second.
    Refuse(Ballot, Ballot),
    /// Accept this value, which is proposed to these ranks.
    Propose(Ballot, Value, Ranks),
    /// I have accepted.
    Accept(Ballot),
    /// All have accepted.
    Decide(Value),
}
