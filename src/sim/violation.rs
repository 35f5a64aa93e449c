//! Violations of the laws by a set of schedules. Law: every variant names the rank or ranks at
//! fault (only a wrong sum of bytes is of all), and the chunk and the step where there is one.

use core::fmt;

use thiserror::Error;

/// The law that a set of schedules violates, and where. Ranks, chunks and steps count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The schedules are no valid description of this collective: a rank or chunk that does not
    /// exist, a peer where none belongs, or a wrong number of chunks.
    #[error("malformed: rank {rank}, step {step:?}: {what}")]
    Malformed {
        /// The rank of the schedule.
        rank: u32,
        /// The step; `None` if the whole schedule is meant.
        step: Option<u32>,
        /// Description of the defect.
        what: &'static str,
    },
    /// Law 1: a contribution that must be in the result is not.
    #[error("law 1, complete: rank {rank} ends without the whole of chunk {chunk} (step {step:?})")]
    Incomplete {
        /// The rank with the wrong result.
        rank: u32,
        /// The chunk of its output.
        chunk: u32,
        /// The step that stored it; `None` if none did.
        step: Option<u32>,
    },
    /// Law 2: a contribution is in the result more than once.
    #[error("law 2, once: rank {rank} has a contribution to chunk {chunk} twice (step {step:?})")]
    Twice {
        /// The rank with the wrong result.
        rank: u32,
        /// The chunk of its output.
        chunk: u32,
        /// The step that stored it.
        step: Option<u32>,
    },
    /// Law 3: a store of a chunk that the rank does not need, already has, or gets later.
    #[error("law 3, no needless store: rank {rank}, step {step}, chunk {chunk}")]
    NeedlessStore {
        /// The rank that stores.
        rank: u32,
        /// The chunk.
        chunk: u32,
        /// The step that stores it.
        step: u32,
    },
    /// Law 4: a rank, or all ranks together, send another number of chunks than the formula says.
    #[error("law 4, bytes: {sent} chunks sent by rank {rank:?} (`None`: by all), not {formula}")]
    Bytes {
        /// The rank that sends too much; `None` if the sum over all ranks is wrong.
        rank: Option<u32>,
        /// Number of chunks sent.
        sent: u64,
        /// The limit for one rank, or the required sum, by the formula.
        formula: u64,
    },
    /// Law 5: a rank receives another chunk, or another slice of it, than its step says.
    #[error("law 5, order: rank {rank}, step {step} wants chunk {chunk}, rank {from} sent {got}")]
    Order {
        /// The rank that receives.
        rank: u32,
        /// The step that receives.
        step: u32,
        /// The chunk that the step expects.
        chunk: u32,
        /// The sender.
        from: u32,
        /// The chunk that came; if it is the expected one, another slice or round of it.
        got: u32,
    },
    /// Law 5: slices are left on a link when all ranks are done.
    #[error("law 5, order: {left} slices from rank {from} are never received by rank {to}")]
    Unreceived {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Number of slices left.
        left: u64,
    },
    /// Law 6: no rank can move, and some are not done.
    #[error("law 6, live: {}", list(.0))]
    Stuck(
        /// All ranks that are not done, ascending.
        Vec<Blocked>,
    ),
    /// Law 7: two ranks hold results that were folded in different orders.
    #[error("law 7, one expression: ranks {rank} and {other} fold chunk {chunk} differently")]
    Differs {
        /// One rank.
        rank: u32,
        /// Another rank, with a lower number.
        other: u32,
        /// The chunk.
        chunk: u32,
    },
    /// Law 8: a prefix has every contribution once, but not in the order of ranks.
    #[error("law 8, rank order: rank {rank}'s prefix of chunk {chunk} is in disorder ({step:?})")]
    Disordered {
        /// The rank with the wrong result.
        rank: u32,
        /// The chunk of its output.
        chunk: u32,
        /// The step that stored it.
        step: Option<u32>,
    },
    /// The mark of the last contribution is missing, or set where it does not belong.
    #[error("last: rank {rank}, step {step}, chunk {chunk} is wrongly marked")]
    Last {
        /// The rank of the step.
        rank: u32,
        /// The step.
        step: u32,
        /// The chunk of the step.
        chunk: u32,
    },
}

/// A rank that cannot move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: u32,
    /// The round.
    pub round: u32,
    /// The step of its schedule.
    pub step: u32,
    /// The slice of that step.
    pub slice: u32,
    /// The sending end of the link that it waits on.
    pub from: u32,
    /// The receiving end of that link.
    pub to: u32,
    /// The awaited event.
    pub wants: Wants,
}

/// An event on a link that a rank can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The next incoming slice.
    Slice,
    /// An empty slot.
    Slot,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, round, step, slice, from, to, wants } = self;
        let wants = match wants {
            Wants::Slice => "a slice",
            Wants::Slot => "an empty slot",
        };
        write!(f, "rank {rank} at round {round}, step {step}, slice {slice} waits for {wants}")?;
        write!(f, " on the link {from} -> {to}")
    }
}

fn list(blocked: &[Blocked]) -> String {
    blocked.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
