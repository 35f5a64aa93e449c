//! A collective as data: the list of steps that one rank walks, made by a pure function.
//! May touch: nothing. Laws: see `sim::check`, which proves every schedule made here.
//!
//! The step names are those of NCCL and MSCCLang; "copy" means "store in my memory".

mod algorithm;
mod all_pairs;
mod all_to_all;
mod bruck;
mod collective;
mod dissemination;
mod fuse;
mod halving;
mod hierarchical;
mod hosts;
mod recursive;
pub mod relay;
mod ring;
mod rooted;
mod scan;
mod step;
mod tree;
mod two_rings;

pub use algorithm::Algorithm;
use algorithm::{Definition, Reads};
pub use all_to_all::all_to_all;
pub use collective::{ALL_PAIRS, Collective};
pub use fuse::fuse;
use fuse::halves;
pub use hierarchical::hierarchical_cost;
use hosts::Hosts;
pub use ring::{Ring, all_gather, all_reduce, barrier, broadcast, reduce_scatter};
pub use rooted::{gather, reduce, scatter};
pub use scan::{exscan, scan};
pub use step::{Op, Order, Place, Space, Step};

/// How many chunks an algorithm sends: what the sending steps of its schedules must add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// By one rank, at most.
    pub most: u64,
    /// By all together.
    pub total: u64,
}

/// The steps of one rank, and into how many chunks they take its memory to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Chunks of the input.
    pub input: u32,
    /// Chunks of the output.
    pub output: u32,
    /// For each chunk of the scratch the chunk (of input or output) that it is as long as. A
    /// scratch chunk holds one round's piece, and the next round uses it again.
    pub scratch: Vec<Place>,
    /// The steps, walked in order.
    pub steps: Vec<Step>,
}

impl Schedule {
    /// Nothing to do, over so many chunks and no scratch.
    #[must_use]
    pub fn new(input: u32, output: u32) -> Self {
        Self { input, output, scratch: Vec::new(), steps: Vec::new() }
    }

    /// The chunk of input or output that the chunk at `place` is as long as.
    ///
    /// # Panics
    /// If there is no such scratch.
    #[must_use]
    pub fn like(&self, place: Place) -> Place {
        match place.space {
            Space::Scratch => self.scratch[place.chunk as usize],
            Space::Input | Space::Output => place,
        }
    }

    /// The same steps at other places: a part of a larger schedule. Copies that become copies of a
    /// place to itself are left out.
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
