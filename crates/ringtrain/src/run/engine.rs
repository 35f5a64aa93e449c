//! What the training loop needs of a strategy.

use std::ops::Range;
use std::time::Duration;

use ringreduce::Communicator;
use strategy::share;

use super::history::History;
use super::job::Job;
use super::pipeline::PipelineOutcome;
use super::world::sent_bytes;
use crate::checkpoint::Snapshot;
use crate::data::{Batch, Samples};
use crate::error::Result;

/// The images of one test batch, which bounds the memory.
const TEST_BATCH: usize = 250;

/// A rank's samples of a step, in pieces; none where the rank has no sample.
pub(crate) struct Pieces {
    pub(crate) batches: Vec<Option<Batch>>,
    /// The samples of all ranks.
    pub(crate) total: usize,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// The mean loss of the whole batch, the same at all ranks.
    pub(crate) loss: f32,
    /// Communication that this rank waited for.
    pub(crate) exposed: Duration,
    /// Communication that went on while this rank computed.
    pub(crate) hidden: Duration,
}

/// What tests have found, added up over batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tested {
    /// The images that are classified right.
    pub(crate) right: u64,
    /// The batches whose loss is not finite.
    pub(crate) diverged: u64,
}

/// Which samples of a batch a rank takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Each rank takes a part.
    ByRank,
    /// All ranks take the whole batch, of which each computes something.
    Whole,
}

impl Division {
    /// The places of a rank's samples in step `step` of an epoch, and the samples of all ranks.
    pub(crate) fn share(
        self,
        (samples, batch, step): (usize, usize, usize),
        (rank, size): (usize, usize),
    ) -> (Range<usize>, usize) {
        match self {
            Self::ByRank => share(samples, batch, step, rank, size),
            Self::Whole => share(samples, batch, step, 0, 1),
        }
    }
}

/// One rank's part of a training in which all ranks make the same steps. All ranks call the methods
/// together.
pub(crate) trait Engine {
    fn division(&self) -> Division;

    /// As [`Self::division`], for tests.
    fn test_division(&self) -> Division {
        self.division()
    }

    /// The pieces in which a rank takes its samples of a step.
    fn pieces(&self, _: &Job) -> usize {
        1
    }

    /// The elements of all trained parameters, of this rank's part of the model if it is split.
    fn parameters(&self) -> usize;

    /// A digest of these elements.
    fn digest(&self) -> Result<u64>;

    /// Completed steps.
    fn steps(&self) -> u64;

    /// Whether the state is lost with ranks, so that a checkpoint must be loaded.
    fn is_state_lost(&self) -> bool {
        false
    }

    /// One update of all parameters.
    fn step(&mut self, pieces: Pieces, rate: f32) -> Result<Done>;

    /// Gets ready for tests: all ranks then have the same model.
    fn prepare_tests(&mut self) -> Result<()>;

    /// Tests this rank's model on this rank's images, or the model of all ranks on the same images,
    /// as [`Self::test_division`] says.
    fn test(&mut self, batch: &Batch) -> Result<Tested>;

    /// The whole state, at rank 0.
    fn snapshot(&mut self) -> Result<Option<Snapshot>>;

    /// Goes on from the state that rank 0 passes.
    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()>;

    /// Makes a call of the ranks.
    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> R;

    /// The bytes that this rank has sent over links so far.
    fn sent_bytes(&mut self) -> u64 {
        self.call(|comm| sent_bytes(&comm.monitor()))
    }

    /// What else there is to say at the end.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What a pipeline says at the end; none for others.
    fn pipeline(&self) -> Option<PipelineOutcome> {
        None
    }

    /// Goes on after this error, which is the loss of ranks: without them, and all others have the
    /// state of one of them and its history of the training; or, where each rank has a part of the
    /// model, with all ranks, once the lost ones have been started again, and without a state.
    fn recover(self, lost: ringreduce::Error, history: &mut History) -> Result<Self>
    where
        Self: Sized;

    /// Admits ranks that were started again; true if there is one. All then have the same state and
    /// history.
    fn grow(&mut self, _history: &mut History) -> Result<bool> {
        Ok(false)
    }
}

/// What `test` finds of each batch of the images of these places, added up.
pub(crate) fn test_all(
    images: &Samples,
    places: &[usize],
    mut test: impl FnMut(&Batch) -> Result<Tested>,
) -> Result<Tested> {
    places.chunks(TEST_BATCH).try_fold(Tested::default(), |all, places| {
        let Tested { right, diverged } = test(&images.batch(places)?)?;
        Ok(Tested { right: all.right + right, diverged: all.diverged + diverged })
    })
}
