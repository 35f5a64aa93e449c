//! A step of one stage: it computes in the order of its schedule, and exchanges activations and
//! their gradients with the stages before and after it.

use std::time::{Duration, Instant};

use ringreduce::{MessageRequest, Messenger};

use super::schedule::{PipelineSchedule, Work};
use crate::Error;

/// Tags of activations, on their way to the last stage, and of their gradients.
const ACTIVATIONS: u32 = 11;
const GRADIENTS: u32 = 12;

/// The layers of one rank.
pub trait Stage {
    /// How the framework fails.
    type Error;

    /// The activations of a micro-batch for the next stage, from those of the stage before: empty at
    /// the first stage, which has the samples. The last stage computes the loss; its result is not
    /// used.
    ///
    /// # Errors
    /// If the framework can't.
    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, Self::Error>;

    /// The gradient of the input of a micro-batch, from the gradient of its output: empty at the
    /// last stage. The gradients of the stage's parameters are added up. The first stage's result is
    /// not used.
    ///
    /// # Errors
    /// If the framework can't.
    fn backward(&mut self, micro_batch: usize, gradient: &[f32]) -> Result<Vec<f32>, Self::Error>;
}

/// Where the time of a stage went in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineTimes {
    /// Forward and backward passes.
    pub busy: Duration,
    /// Waits for other stages: the bubble and the communication.
    pub idle: Duration,
}

/// The exchanges of a stage.
struct Neighbors<'a> {
    messages: &'a Messenger,
    sent: Vec<MessageRequest<Vec<f32>>>,
}

impl Neighbors<'_> {
    /// What the neighbor sends; nothing if there is none.
    fn receive(&self, from: Option<usize>, tag: u32) -> ringreduce::Result<Vec<f32>> {
        let Some(from) = from else { return Ok(Vec::new()) };
        let bytes = self.messages.probe(from, tag)?.bytes;
        let mut values = vec![0.0; bytes / size_of::<f32>()];
        self.messages.recv(&mut values, from, tag)?;
        Ok(values)
    }

    /// Sends without waiting: the neighbor may be sending, too.
    fn send(&mut self, values: Vec<f32>, to: Option<usize>, tag: u32) -> ringreduce::Result<()> {
        if let Some(to) = to {
            self.sent.push(self.messages.isend(values, to, tag)?);
        }
        Ok(())
    }
}

/// Makes a step of `count` micro-batches, of which this rank is one stage: the first rank is the
/// first stage. All ranks call this. The parameters are for the caller to update afterwards.
///
/// # Errors
/// Those of the stage; and if a neighbor is lost.
pub fn run<S: Stage>(
    messages: &Messenger,
    schedule: PipelineSchedule,
    count: usize,
    stage: &mut S,
) -> Result<PipelineTimes, Error<S::Error>> {
    let (rank, size) = (messages.rank(), messages.size());
    let (before, after) = (rank.checked_sub(1), Some(rank + 1).filter(|next| *next < size));
    let mut neighbors = Neighbors { messages, sent: Vec::with_capacity(2 * count) };
    let (start, mut busy) = (Instant::now(), Duration::ZERO);
    for work in schedule.work(rank, size, count) {
        let (from, to, tag) = match work {
            Work::Forward(_) => (before, after, ACTIVATIONS),
            Work::Backward(_) => (after, before, GRADIENTS),
        };
        let input = neighbors.receive(from, tag)?;
        let computing = Instant::now();
        let output = match work {
            Work::Forward(at) => stage.forward(at, &input),
            Work::Backward(at) => stage.backward(at, &input),
        };
        let output = output.map_err(Error::Model)?;
        busy += computing.elapsed();
        neighbors.send(output, to, tag)?;
    }
    for sent in neighbors.sent {
        sent.wait()?;
    }
    Ok(PipelineTimes { busy, idle: start.elapsed().saturating_sub(busy) })
}
