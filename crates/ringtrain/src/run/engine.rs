//! The interface of a way of training that the training loop needs.

use std::ops::Range;
use std::time::Duration;

use candle_core::D;
use ringreduce::Communicator;
use serde::Serialize;
use strategy::{Part, share};

use super::history::History;
use super::job::Job;
use super::world::sent_bytes;
use crate::checkpoint::{Snapshot, buffers, set_buffers};
use crate::data::Batch;
use crate::error::Result;
use crate::models::Network;

/// The results of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// The mean loss of the whole batch, the same at all ranks.
    pub(crate) loss: f32,
    /// Communication that this rank waited for.
    pub(crate) exposed: Duration,
    /// Communication that went on while this rank computed.
    pub(crate) hidden: Duration,
    /// The membership has changed: this rank may have another place, and the others may have made
    /// steps without it.
    pub(crate) has_changed: bool,
}

/// The results of tests, added up over batches.
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

/// The report of a pipeline at the end.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineOutcome {
    /// The number of layers of each rank.
    pub layers: Vec<usize>,
    /// The most micro-batches whose activations this rank has held at a time.
    pub most_held: usize,
}

/// One rank's part of a training. Ranks that make the same steps call the methods together; a
/// worker of parameter servers goes at its own pace, and the first one tests and saves for all.
pub(crate) trait Engine: Sized {
    fn division(&self) -> Division;

    /// As [`Self::division`], for tests.
    fn test_division(&self) -> Division {
        self.division()
    }

    /// The pieces in which a rank takes its samples of a step.
    fn pieces(&self, _: &Job) -> usize {
        1
    }

    /// This rank's layers.
    fn network(&self) -> &Network;

    /// The elements of all trained parameters, of this rank's part of the model if it is split.
    fn parameters(&self) -> usize {
        self.network().vars().iter().map(|(_, var)| var.elem_count()).sum()
    }

    /// A digest of these elements.
    fn digest(&self) -> Result<u64> {
        let mut digest = 0_u64;
        for (_, var) in self.network().vars() {
            for value in var.flatten_all()?.to_vec1::<f32>()? {
                let mixed = digest ^ u64::from(value.to_bits());
                digest = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        }
        Ok(digest)
    }

    /// Completed steps.
    fn steps(&self) -> u64;

    /// Whether it begins with the state of others or of a checkpoint.
    fn has_state(&self) -> bool {
        self.steps() > 0
    }

    /// Whether the state is lost with ranks, so that a checkpoint must be loaded.
    fn is_state_lost(&self) -> bool {
        false
    }

    /// The learning rate of the next step.
    fn rate(&self, job: &Job) -> f32 {
        job.settings.rate(self.steps(), job.steps())
    }

    /// One update of all parameters from this rank's samples of a step, in pieces.
    fn step(&mut self, pieces: Vec<Part<Batch>>, rate: f32) -> Result<Done>;

    /// Gets ready for tests: all ranks then have the same model.
    fn prepare_tests(&mut self) -> Result<()> {
        Ok(())
    }

    /// Tests this rank's model on this rank's images, or the model of all ranks on the same images,
    /// as [`Self::test_division`] says.
    fn test(&mut self, batch: &Batch) -> Result<Tested> {
        test(self.network(), batch)
    }

    /// The whole state, at rank 0.
    fn snapshot(&mut self) -> Result<Option<Snapshot>>;

    /// Goes on from the state that rank 0 passes.
    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()>;

    /// Gives all ranks the buffers of rank 0: those of its snapshot, if it has one.
    fn pass_buffers(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        let mut values = match snapshot {
            Some(snapshot) => snapshot.buffers.clone(),
            None => buffers(self.network())?,
        };
        self.call(|comm| comm.broadcast_object(&mut values, 0)).transpose()?;
        set_buffers(self.network(), &values)
    }

    /// The steps up to which checkpoints are proven by the finite loss of this step, which is of
    /// the parameters before it.
    fn proven(&self, finite: u64) -> u64 {
        finite.saturating_sub(1)
    }

    /// Makes a call of the ranks; none where they do not make the same steps.
    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> Option<R>;

    /// This rank's number among those that train, and their number.
    fn place(&mut self) -> (usize, usize) {
        self.call(|comm| (comm.rank(), comm.size())).unwrap_or((0, 1))
    }

    /// All ranks of the job.
    fn ranks(&mut self) -> usize {
        self.place().1
    }

    /// Whether the others have said that the training ends, where ranks do not ask each other.
    fn is_stopping(&self) -> bool {
        false
    }

    /// The bytes that this rank has sent over links so far.
    fn sent_bytes(&mut self) -> u64 {
        self.call(|comm| sent_bytes(&comm.monitor())).unwrap_or_default()
    }

    /// Further notes at the end.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The report of a pipeline at the end; none for others.
    fn pipeline(&self) -> Option<PipelineOutcome> {
        None
    }

    /// Goes on after this error, which is the loss of ranks: without them, and all others have the
    /// state of one of them and its history of the training; or, where each rank has a part of the
    /// model, with all ranks, once the lost ones have been started again, and without a state.
    fn recover(self, lost: ringreduce::Error, history: &mut History) -> Result<Self>;

    /// Admits ranks that were started again; true if there is one. All then have the same state and
    /// history.
    fn grow(&mut self, _history: &mut History) -> Result<bool> {
        Ok(false)
    }

    /// Ends this rank's part, after its last step. True if others were stopped before theirs.
    fn end(self) -> Result<bool> {
        Ok(false)
    }
}

/// How a network classifies images.
pub(crate) fn test(network: &Network, batch: &Batch) -> Result<Tested> {
    let scores = network.forward(&batch.images, false)?;
    let hits = scores.argmax(D::Minus1)?.eq(&batch.labels)?.to_vec1::<u8>()?;
    let loss = Network::loss(&scores, &batch.labels)?.to_scalar::<f32>()?;
    let right = hits.into_iter().map(u64::from).sum();
    Ok(Tested { right, diverged: u64::from(!loss.is_finite()) })
}
