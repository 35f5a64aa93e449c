//! Schedules: a collective as data, the list of steps that each rank makes, computed by a pure
//! function. [`sim::check`](crate::sim::check()) proves every schedule made here.
//!
//! The names of steps are those of NCCL and MSCCLang; "copy" means "store in local memory".
//! # Examples
//!
//! The examples at the heads of the algorithms' files are tables that a test makes from the
//! schedules. Row k has the k-th step of each rank; ranks wait for what they receive, so equal
//! rows are not equal times. Letters are contributions, `a` of rank 0, `b` of rank 1. A cell says:
//!
//! - `2 = d+a`: the rank stores the sum of the contributions of ranks 3 and 0, in this order, at
//!   chunk 2 of its output; `s0 = d+a`: at chunk 0 of its scratch.
//! - `2: d+a > 1`: the rank sends this sum to rank 1, and does not store it.
//! - `2 = d+a > 1`: it does both.

mod algorithm;
mod all_pairs;
mod all_to_all;
mod bruck;
mod circulant;
mod collective;
mod dissemination;
mod fuse;
mod halving;
mod hierarchical;
mod hosts;
mod recursive;
pub mod relay;
mod result;
mod ring;
mod rooted;
mod scan;
mod single_copy;
mod staged;
mod step;
mod tree;
mod two_rings;
#[cfg(test)]
mod worked_examples;

pub use algorithm::Algorithm;
use algorithm::{Definition, ReadOrder, RequiredLinks};
pub use all_to_all::all_to_all;
pub use collective::{ALL_PAIRS, Collective};
pub use fuse::fuse;
use fuse::fuse_halves;
pub(crate) use hierarchical::{TwoLevelStep, between_hosts, two_level_steps};
pub use hierarchical::{hierarchical_cost, two_level_cost};
use hosts::Hosts;
pub use result::ChunkResult;
pub use ring::{Grid, Ring, all_gather, all_reduce, barrier, broadcast, reduce_scatter};
pub use rooted::{gather, reduce, scatter};
pub use scan::{exscan, scan};
pub use staged::{Completed, Phase, StageShape, StagedCall};
pub use step::{Op, Order, Place, Space, Step};

/// The number of chunks that an algorithm's schedules send, by their sending steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// By one rank, at most.
    pub most: u64,
    /// By all ranks.
    pub total: u64,
}

/// The schedule of one rank: its steps, and the numbers of chunks of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Number of chunks of the input.
    pub input: u32,
    /// Number of chunks of the output.
    pub output: u32,
    /// For each chunk of the scratch, the chunk of input or output that it is as long as. A scratch
    /// chunk holds the piece of one round and is reused in the next.
    pub scratch: Vec<Place>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Schedule {
    /// A schedule without steps and scratch, over these numbers of chunks.
    #[must_use]
    pub fn new(input: u32, output: u32) -> Self {
        Self { input, output, scratch: Vec::new(), steps: Vec::new() }
    }

    /// The chunk of input or output that is as long as the chunk at `place`.
    ///
    /// # Panics
    /// If there is no such chunk of the scratch.
    #[must_use]
    pub fn like(&self, place: Place) -> Place {
        match place.space {
            Space::Scratch => self.scratch[place.chunk as usize],
            Space::Input | Space::Output => place,
        }
    }

    /// This schedule with all places mapped by `to`, as a part of a larger schedule over these
    /// numbers of chunks. Copies of a place to itself are dropped.
    #[must_use]
    pub fn moved(mut self, input: u32, output: u32, to: impl Fn(Place) -> Place) -> Self {
        (self.input, self.output) = (input, output);
        for step in &mut self.steps {
            (step.src, step.dst) = (to(step.src), to(step.dst));
        }
        self.steps.retain(|step| step.op != Op::Copy || step.src != step.dst);
        for place in &mut self.scratch {
            *place = to(*place);
        }
        self
    }
}
