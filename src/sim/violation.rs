//! What a schedule can do wrong: which law, who, where. May touch: nothing. Law: every variant but
//! `Malformed` names a rank and, where there is one, the chunk and the step of that rank.

use core::fmt;

use thiserror::Error;

/// The law that a set of schedules breaks, and where. Ranks, chunks and steps count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The schedules are no description of this collective: a rank or chunk that does not exist,
    /// a peer where none belongs, or a wrong number of chunks.
    #[error("malformed: rank {rank}, step {step:?}: {what}")]
    Malformed {
        /// Whose schedule.
        rank: u32,
        /// Its step; `None` if the whole schedule is meant.
        step: Option<u32>,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Law 1: a contribution that must be in the result is not.
    #[error("law 1, complete: rank {rank} ends without the whole of chunk {chunk} (step {step:?})")]
    Incomplete {
        /// Who has the wrong result.
        rank: u32,
        /// In which chunk.
        chunk: u32,
        /// The step that stored it; `None` if none did.
        step: Option<u32>,
    },
    /// Law 2: a contribution is in the result more than once.
    #[error("law 2, once: rank {rank} has a contribution to chunk {chunk} twice (step {step:?})")]
    Twice {
        /// Who has the wrong result.
        rank: u32,
        /// In which chunk.
        chunk: u32,
        /// The step that stored it.
        step: Option<u32>,
    },
    /// Law 3: a store of a chunk that the rank does not need, or has, or gets later.
    #[error("law 3, no needless store: rank {rank}, step {step}, chunk {chunk}")]
    NeedlessStore {
        /// Who stores.
        rank: u32,
        /// Which chunk.
        chunk: u32,
        /// In which step.
        step: u32,
    },
    /// Law 4: a rank, or all together, sends another number of chunks than the formula says.
    #[error("law 4, bytes: {sent} chunks sent by rank {rank:?} (`None`: by all), not {formula}")]
    Bytes {
        /// Who sends too much; `None` if it is the sum that is wrong.
        rank: Option<u32>,
        /// Chunks sent.
        sent: u64,
        /// What the formula allows a rank, or demands of the sum.
        formula: u64,
    },
    /// Law 5: a rank receives another chunk (or slice of it) than its step says.
    #[error("law 5, order: rank {rank}, step {step} wants chunk {chunk}, rank {from} sent {got}")]
    Order {
        /// Who receives.
        rank: u32,
        /// In which step.
        step: u32,
        /// The chunk of that step.
        chunk: u32,
        /// The sender.
        from: u32,
        /// The chunk that it sent; if it is the same, another slice or round of it.
        got: u32,
    },
    /// Law 5: slices are left on a link when everybody is done.
    #[error("law 5, order: {left} slices from rank {from} are never received by rank {to}")]
    Unreceived {
        /// The sender.
        from: u32,
        /// Who should have received.
        to: u32,
        /// How many slices are left.
        left: u64,
    },
    /// Law 6: nobody can move and somebody is not done.
    #[error("law 6, live: {}", list(.0))]
    Stuck(
        /// Everybody who is not done, in the order of ranks.
        Vec<Blocked>,
    ),
    /// Law 7: two ranks hold results that were folded in different orders.
    #[error("law 7, one expression: ranks {rank} and {other} fold chunk {chunk} differently")]
    Differs {
        /// One rank.
        rank: u32,
        /// The other, of lower number.
        other: u32,
        /// The chunk.
        chunk: u32,
    },
    /// Law 8: a prefix has every contribution once, but not in the order of ranks.
    #[error("law 8, rank order: rank {rank}'s prefix of chunk {chunk} is in disorder ({step:?})")]
    Disordered {
        /// Who has the wrong result.
        rank: u32,
        /// In which chunk.
        chunk: u32,
        /// The step that stored it.
        step: Option<u32>,
    },
    /// The mark of the last contribution is missing where it belongs, or is where it does not.
    #[error("last: rank {rank}, step {step}, chunk {chunk} is wrongly marked")]
    Last {
        /// Whose step.
        rank: u32,
        /// Which.
        step: u32,
        /// Its chunk.
        chunk: u32,
    },
}

/// Somebody who cannot move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Who.
    pub rank: u32,
    /// In which round.
    pub round: u32,
    /// In which of its steps.
    pub step: u32,
    /// At which slice of that step.
    pub slice: u32,
    /// The sending end of the link it waits on.
    pub from: u32,
    /// The receiving end of it.
    pub to: u32,
    /// What it waits for there.
    pub wants: Wants,
}

/// What a rank can wait for on a link.
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
