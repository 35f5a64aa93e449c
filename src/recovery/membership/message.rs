//! Messages between members: the phases of Paxos, revocations and goodbyes.
//! Law: each message names its epoch, and is for that epoch alone.

use super::ranks::Ranks;

/// The evidence that a rank is lost, the weakest first. Messages have these numbers, or 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// No rank is lost: the program of this rank asked for the revocation.
    Called = 1,
    /// The rank said goodbye, and a call needs it.
    Left,
    /// The rank was silent for too long: it may be dead, stopped, or without network.
    Suspected,
    /// The connection to the rank ended without a goodbye.
    Strong,
    /// The process of the rank has ended, by the system or its launcher.
    Certain,
}

/// The cause of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// The lost rank, or the rank that revoked.
    pub rank: u32,
    /// The evidence that the rank is lost.
    pub evidence: Evidence,
    /// The operation of the rank that noticed.
    pub sequence: u64,
}

impl Cause {
    /// The better explanation of two: by stronger evidence, then the earlier, then the lower rank.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        let key = |cause: Self| (core::cmp::Reverse(cause.evidence), cause.sequence, cause.rank);
        if key(other) < key(self) { other } else { self }
    }
}

/// The number of an attempt to agree; no two leaders have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// The number of the attempt, from 1.
    pub round: u32,
    /// The rank that leads the attempt.
    pub leader: u32,
}

/// The kind of an agreement. Messages have these numbers, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgreementKind {
    /// Which of the operations that a revocation interrupted count as done.
    Settle,
    /// The bitwise AND of all flags.
    Agree,
    /// The members of the next epoch.
    Change,
    /// Whether all members of this epoch have their links.
    Close,
}

/// The contribution of one rank to an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The kind of the agreement.
    pub kind: AgreementKind,
    /// Agree: the flags of the rank. Close: 1 if the rank has its links, else 0.
    pub flags: u64,
}

/// The decided value of an agreement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// The kind of the agreement.
    pub kind: AgreementKind,
    /// Change: the members of the next epoch. Close: the ranks that have their links. Else: the
    /// ranks whose calls are in the value.
    pub members: Ranks,
    /// Agree and Close: the bitwise AND.
    pub flags: u64,
    /// The last operations that succeeded.
    pub recovery: Recovery,
    /// The best explanation that any participant had, if the epoch was revoked.
    pub cause: Option<Cause>,
}

/// The operations that succeeded at the ranks that agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// The last operation that succeeded at all of them.
    pub low: u64,
    /// The last operation that succeeded at any of them. Equal to `low` in uniform mode.
    pub high: u64,
}

/// The last votes of a rank, which survivors must know after its death: other ranks may have
/// decided by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LastVotes {
    /// The votes in settlements.
    pub settle: Vote,
    /// The votes in agreements of the program.
    pub call: Vote,
}

impl LastVotes {
    /// These votes with at most so many words of their participants. A rank without the others
    /// knows of fewer ranks that took part, and so counts fewer dead ones as harmless.
    #[must_use]
    pub fn within(&self, words: usize) -> Self {
        let cut = |vote: &Vote| {
            let all = vote.participants.words();
            let participants = Ranks::of_words(&all[..all.len().min(words)]);
            Vote { participants, ..vote.clone() }
        };
        Self { settle: cut(&self.settle), call: cut(&self.call) }
    }
}

/// The last ballots that a rank has promised and accepted, each in the agreement of this number in
/// this epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The epoch and the agreement of `promised`.
    pub promised_in: (u32, u32),
    /// The last promised ballot, which is the highest one there; of round 0 without a promise.
    pub promised: Ballot,
    /// The epoch and the agreement of `accepted`.
    pub accepted_in: (u32, u32),
    /// The last accepted ballot; of round 0 if the rank has accepted none.
    pub accepted: Ballot,
    /// The ranks that took part in every ballot that the rank has accepted there.
    pub participants: Ranks,
}

/// The ends of members that a rank knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Members whose processes have certainly ended without a goodbye.
    pub dead: Ranks,
    /// Members that said goodbye.
    pub left: Ranks,
    /// Members of both kinds whose last votes are known: they never voted.
    pub never_voted: Ranks,
    /// One member of either kind that has voted, with its last votes.
    pub votes: Option<(u32, LastVotes)>,
}

/// The news that the program of a rank has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The kind of the agreement.
    pub kind: AgreementKind,
    /// The receiver answers with its own call, now or once its program makes it.
    pub asks: bool,
}

/// The report of a rank with its promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// The members that the rank believes lost.
    pub suspected: Ranks,
    /// The last operation that returned `Ok`.
    pub done: u64,
    /// The last operation whose complete result the rank has.
    pub full: u64,
    /// The contribution of the rank.
    pub call: Call,
    /// The cause of the revocation, if the epoch was revoked.
    pub cause: Option<Cause>,
    /// The last accepted ballot, and its value.
    pub accepted: Option<(Ballot, Value)>,
}

/// A message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// The sender's epoch; for a decision, the epoch that made it.
    pub epoch: u32,
    /// The number of the agreement in the epoch: 0 for the settlement, and from 1 for agreements of
    /// the program. 0 for messages without agreement.
    pub slot: u32,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// The sender asks what it has missed.
    Ask,
    /// The sender leaves, and will not act in this job again.
    Goodbye(LastVotes),
    /// The receiver is no member of the sender's epoch, which is that of the message.
    Evicted,
    /// The epoch is revoked; with the ends that the sender knows of.
    Revoke(Cause, Ends),
    /// The program of the sender has called.
    Enter(Entry),
    /// The program of the sender waits no longer for the end of its call, which it may make again.
    Withdraw,
    /// Paxos phase 1a: the leader asks for a promise and a report.
    Prepare(Ballot),
    /// Paxos phase 1b: the sender promises the ballot, and reports.
    Promise(Ballot, Report),
    /// The sender refuses the first ballot, because it has promised the second.
    Refuse(Ballot, Ballot),
    /// Paxos phase 2a: the leader proposes a value to these ranks.
    Propose(Ballot, Value, Ranks),
    /// Paxos phase 2b: the sender has accepted.
    Accept(Ballot),
    /// The value is decided: all participants have accepted.
    Decide(Value),
}
