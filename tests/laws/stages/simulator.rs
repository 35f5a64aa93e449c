//! The simulator of calls over stages: all ranks walk the phases of their [`StagedCall`]s over
//! slots that several ranks read and that are used again. An order of ranks is random, or one rank
//! dies after some phase.
//! Law: no rank reads a slot that does not hold the block it wants, or that its owner writes
//! meanwhile; nor, in a call of single copy, memory whose owner has left the call. And ranks wait
//! for each other in no circle: all end, or a rank that has died keeps the others waiting.

use ringreduce::schedule::{Algorithm, Collective, Phase, StagedCall};
use ringreduce::sim::Random;

/// Why a walk breaks the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageViolation {
    /// A rank reads a slot that holds another block, or is being written.
    WrongBlock {
        /// The reader.
        reader: usize,
        /// The owner of the slot.
        owner: usize,
        /// The block that the reader wants.
        block: u64,
    },
    /// A rank writes a slot that another one reads.
    Overwritten {
        /// The owner of the slot.
        owner: usize,
        /// The new block.
        block: u64,
    },
    /// No rank can move, and none has died.
    Deadlock,
}

/// A slot: the block in it, whether its owner writes it now, and how many ranks read it now.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// The number of the block plus 1; 0 for none.
    holds: u64,
    is_written: bool,
    readers: usize,
}

/// One rank.
struct Rank {
    calls: Vec<StagedCall>,
    /// The phases of all calls, with the index of the call; after those of each call it is left.
    steps: Vec<(usize, Option<Phase>, u64)>,
    at: usize,
    /// True between the begin and the end of a phase.
    is_inside: bool,
    /// Blocks for which each phase is complete.
    done: [u64; 3],
}

/// The death of a rank in a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    /// The rank.
    pub(crate) rank: usize,
    /// The events (each phase begins and ends) after which the rank does nothing more.
    pub(crate) events: usize,
}

/// The ranks and their stages.
pub(crate) struct Stages {
    depth: u64,
    ranks: Vec<Rank>,
    slots: Vec<Slot>,
    results: Vec<Slot>,
    /// The memory of each rank's user, which peers read in calls of single copy.
    inputs: Vec<Slot>,
    /// True if ranks know that all have left the earlier calls as soon as all have.
    knows_finished: bool,
    /// True if ranks do not wait at the end of a call.
    leave_early: bool,
}

impl Stages {
    /// Stages of `size` ranks with `depth` slots, for these calls one after the other: collectives
    /// by [`Algorithm::Staged`] or [`Algorithm::SingleCopy`], and their numbers of blocks.
    /// `knows_finished`: ranks know at once that all have left the
    /// calls before, or never.
    #[must_use]
    pub(crate) fn new(
        size: usize,
        depth: u64,
        calls: &[(Algorithm, Collective, u64)],
        knows_finished: bool,
    ) -> Self {
        let rank = |me| {
            let mut first = 0;
            let calls = calls.iter().map(|&(algorithm, collective, blocks)| {
                let is_single_copy = algorithm == Algorithm::SingleCopy;
                let call =
                    StagedCall { collective, size, me, first, blocks, depth, is_single_copy };
                first += blocks;
                call
            });
            let calls: Vec<_> = calls.collect();
            let steps = calls.iter().enumerate();
            let steps = steps.flat_map(|(at, call)| {
                let phases = call.steps().map(move |(phase, block)| (at, Some(phase), block));
                phases.chain([(at, None, call.first)])
            });
            Rank { steps: steps.collect(), calls, at: 0, is_inside: false, done: [0; 3] }
        };
        let slots = vec![Slot::default(); size * depth as usize];
        let (ranks, results) = ((0..size).map(rank).collect(), slots.clone());
        let inputs = vec![Slot::default(); size];
        Self { depth, ranks, results, slots, inputs, knows_finished, leave_early: false }
    }

    /// Stages with a number of slots on which ranks do not count, to see that the walk notices.
    #[must_use]
    pub(crate) fn with_slots(self, depth: u64) -> Self {
        let slots = vec![Slot::default(); self.ranks.len() * depth as usize];
        Self { depth, results: slots.clone(), slots, ..self }
    }

    /// Ranks that do not wait at the end of a call, to see that the walk notices.
    #[must_use]
    pub(crate) fn leaving_early(self) -> Self {
        Self { leave_early: true, ..self }
    }

    /// Walks all ranks in the random order of this seed, with the death of one, if asked.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn walk(
        mut self,
        seed: u64,
        mut death: Option<Death>,
    ) -> Result<(), StageViolation> {
        let mut random = Random::new(seed);
        loop {
            let dead = death.filter(|death| death.events == 0).map(|death| death.rank);
            let can = |&rank: &usize| Some(rank) != dead && self.can_move(rank);
            let able: Vec<usize> = (0..self.ranks.len()).filter(can).collect();
            if able.is_empty() {
                let ended = self.ranks.iter().all(|rank| rank.at == rank.steps.len());
                return if ended || dead.is_some() {
                    Ok(())
                } else {
                    Err(StageViolation::Deadlock)
                };
            }
            let rank = able[random.below(able.len())];
            if let Some(Death { events, .. }) = death.as_mut().filter(|death| death.rank == rank) {
                *events -= 1;
            }
            self.advance(rank)?;
        }
    }

    fn can_move(&self, me: usize) -> bool {
        let rank = &self.ranks[me];
        let Some(&(call, phase, block)) = rank.steps.get(rank.at) else { return false };
        let call = &rank.calls[call];
        // The first phase of a call shows that a rank has left the calls before.
        let begun = |rank: &Rank| rank.done[Phase::CopyIn as usize] > call.first;
        let all_begun = self.knows_finished && self.ranks.iter().all(begun);
        let finished = if all_begun { call.first } else { 0 };
        let meets = |peer: usize| {
            let needs = match phase {
                Some(phase) => call.needs((phase, block), peer, finished),
                None => [call.leaves_after(peer), None],
            };
            let done = self.ranks[peer].done;
            needs.into_iter().flatten().all(|need| done[need.phase as usize] >= need.blocks)
        };
        let waits = !(self.leave_early && phase.is_none());
        rank.is_inside || !waits || (0..self.ranks.len()).filter(|&peer| peer != me).all(meets)
    }

    /// Begins or ends a phase of a rank.
    fn advance(&mut self, me: usize) -> Result<(), StageViolation> {
        let (call, phase, block) = self.ranks[me].steps[self.ranks[me].at];
        let call = self.ranks[me].calls[call];
        let begins = !self.ranks[me].is_inside;
        let depth = self.depth as usize;
        let at = |rank: usize| rank * depth + block as usize % depth;
        let peers = || 0..call.size;
        let is_read = peers().any(|peer| call.reads_stage(peer, me));
        let is_result_read = peers().any(|peer| call.reads_result(peer, me));
        let is_users = |is_read: bool| !begins && is_read && call.is_single_copy;
        match phase {
            Some(Phase::CopyIn) => {
                write(&mut self.slots[at(me)], (me, block), begins, is_read)?;
                write(&mut self.inputs[me], (me, block), begins, is_read && call.is_single_copy)?;
            }
            Some(Phase::Fold) => {
                for owner in peers().filter(|&owner| call.reads_stage(me, owner)) {
                    read(&mut self.slots[at(owner)], (me, owner, block), begins)?;
                    if call.is_single_copy {
                        read(&mut self.inputs[owner], (me, owner, block), begins)?;
                    }
                }
                write(&mut self.results[at(me)], (me, block), begins, is_result_read)?;
            }
            Some(Phase::CopyOut) => {
                for owner in peers().filter(|&owner| call.reads_result(me, owner)) {
                    read(&mut self.results[at(owner)], (me, owner, block), begins)?;
                }
                // In place, the others' results are stored over the input.
                let is_stored_to = is_result_read && call.is_single_copy;
                write(&mut self.inputs[me], (me, block), begins, is_stored_to)?;
            }
            None => {
                // After the call the user writes to the memory, and goes on writing.
                write(&mut self.inputs[me], (me, block), true, is_users(is_read))?;
                write(&mut self.results[at(me)], (me, block), true, is_users(is_result_read))?;
            }
        }
        let rank = &mut self.ranks[me];
        rank.is_inside = begins;
        if !begins {
            rank.at += 1;
            if let Some(phase) = phase {
                rank.done[phase as usize] = block + 1;
            }
        }
        Ok(())
    }
}

/// Begins or ends writing a block, if other ranks read it.
fn write(
    slot: &mut Slot,
    (owner, block): (usize, u64),
    begins: bool,
    is_read: bool,
) -> Result<(), StageViolation> {
    if is_read {
        if slot.readers > 0 {
            return Err(StageViolation::Overwritten { owner, block });
        }
        *slot = Slot { holds: block + 1, is_written: begins, readers: 0 };
    }
    Ok(())
}

/// Begins or ends reading a block.
fn read(
    slot: &mut Slot,
    (reader, owner, block): (usize, usize, u64),
    begins: bool,
) -> Result<(), StageViolation> {
    if slot.holds != block + 1 || slot.is_written {
        return Err(StageViolation::WrongBlock { reader, owner, block });
    }
    slot.readers = if begins { slot.readers + 1 } else { slot.readers - 1 };
    Ok(())
}
