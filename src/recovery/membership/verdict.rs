//! The reports of the state machine to the program.

use super::message::{Cause, Recovery};
use super::ranks::Ranks;

/// A report to the program. After `QuorumLost`, `Evicted` and `Leave` the machine does nothing
/// more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The epoch is revoked, with the first cause that is known here.
    Revoked(Cause),
    /// The operation succeeded.
    Ok(u64),
    /// The operation failed; in uniform mode, at all members.
    Failed(u64),
    /// An agreement has ended.
    Agreed {
        /// The number of the agreement in its epoch.
        slot: u32,
        /// The bitwise AND of the flags of `members`.
        flags: u64,
        /// The ranks whose flags are in it.
        members: Ranks,
    },
    /// A new epoch began. A change that the program calls for finds one for which no call waited.
    Membership {
        /// The number of the epoch.
        epoch: u32,
        /// The members of the epoch.
        members: Ranks,
        /// The last operations before; the next one has the number `high + 1`.
        recovery: Recovery,
        /// The best explanation that any member had for the end of the last epoch.
        cause: Option<Cause>,
    },
    /// All members of the epoch have their links: each goes on with it, outside this machine. Later
    /// calls have this answer too.
    Closed {
        /// The number of the epoch.
        epoch: u32,
    },
    /// No member goes on with the epoch, and the members have to be changed again.
    Undone {
        /// The number of the epoch.
        epoch: u32,
        /// The members that are dead, or do not have their links.
        missing: Ranks,
    },
    /// The deadline passed, a change of the members has overtaken an agreement, or members change
    /// the members again instead of closing a change; the same call may be made again.
    TimedOut {
        /// The ranks that have not called, or else have given up their calls or not answered. Of an
        /// agreement that was overtaken, the members of the new epoch that wait there; of a closing
        /// for which all have called, the members that have given it up.
        missing: Ranks,
    },
    /// The live ranks are no quorum: the others may be alive and decide.
    QuorumLost {
        /// The ranks that this one believes alive.
        live: Ranks,
    },
    /// The others went on without this rank.
    Evicted {
        /// The epoch to which this rank does not belong, or with which it cannot go on.
        epoch: u32,
    },
}
