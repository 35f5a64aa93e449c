//! The passes of a step of one stage: it computes in the order of its schedule, and exchanges
//! activations and their gradients with the stages before and after it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ringreduce::{MessageRequest, Messenger};

use super::schedule::{PipelineSchedule, Work};
use crate::divergence::are_finite;
use crate::{Error, Parameters};

/// Tags of activations, on their way to the last stage, and of their gradients.
const ACTIVATIONS: u32 = 11;
const GRADIENTS: u32 = 12;

/// The layers of one rank. A stage is told the samples of a step by its owner, before the step:
/// the first stage has the inputs, the last one the labels.
pub trait Stage: Parameters {
    /// The activations of a micro-batch for the next stage, from those of the stage before: empty
    /// at the first stage. The last stage gives the loss, one number: the sum of the micro-batch's
    /// losses, divided by the number of samples of the whole batch.
    ///
    /// # Errors
    /// If the framework can't.
    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, Self::Error>;

    /// The gradient of the input of a micro-batch, from the gradient of its output: empty at the
    /// last stage. The first stage's result is not used. Passes the gradients of the stage's
    /// parameters to `sink`, which adds them up; a parameter that is not passed counts as zero.
    ///
    /// # Errors
    /// If the framework can't.
    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, Self::Error>;
}

/// Where the time of a stage went in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineTimes {
    /// Forward and backward passes.
    pub busy: Duration,
    /// Waits for other stages: the bubble and the communication.
    pub idle: Duration,
}

/// The results of the passes of a step.
#[derive(Debug, Default)]
pub(super) struct Passes {
    pub(super) times: PipelineTimes,
    /// The loss of all micro-batches: of the last stage, else 0.
    pub(super) loss: f32,
    /// Whether an output was not finite.
    pub(super) has_bad_output: bool,
    /// The error of a tensor that the stage passed to the sink and that is no parameter's gradient.
    pub(super) refused: Option<ringreduce::Error>,
}

/// The exchanges of a stage.
struct Neighbors<'a> {
    messages: &'a Messenger,
    sent: VecDeque<MessageRequest<Vec<f32>>>,
}

impl Neighbors<'_> {
    /// The values that the neighbor sends; nothing if there is none.
    fn receive(&self, from: Option<usize>, tag: u32) -> ringreduce::Result<Vec<f32>> {
        let Some(from) = from else { return Ok(Vec::new()) };
        let bytes = self.messages.probe(from, tag)?.bytes;
        let mut values = vec![0.0; bytes / size_of::<f32>()];
        self.messages.recv(&mut values, from, tag)?;
        Ok(values)
    }

    /// Sends without waiting: the neighbor may be sending, too. Frees what has been sent.
    fn send(&mut self, values: Vec<f32>, to: Option<usize>, tag: u32) -> ringreduce::Result<()> {
        while self.sent.front().is_some_and(MessageRequest::is_done) {
            self.sent.pop_front().map(MessageRequest::wait).transpose()?;
        }
        if let Some(to) = to {
            self.sent.push_back(self.messages.isend(values, to, tag)?);
        }
        Ok(())
    }
}

/// Makes the passes of `count` micro-batches, of which this rank is one stage, and adds the
/// gradients of its parameters to `gradients`. The ranks of `messages` are the stages in order.
pub(super) fn run<S: Stage>(
    messages: &Messenger,
    schedule: PipelineSchedule,
    count: usize,
    stage: &mut S,
    gradients: &mut [Vec<f32>],
) -> Result<Passes, Error<S::Error>> {
    let (rank, size) = (messages.rank(), messages.size());
    let (before, after) = (rank.checked_sub(1), Some(rank + 1).filter(|next| *next < size));
    let mut neighbors = Neighbors { messages, sent: VecDeque::new() };
    let mut passes = Passes::default();
    let mut refused = None;
    let mut sink = |parameter: usize, gradient: &[f32]| match gradients.get_mut(parameter) {
        Some(sums) if sums.len() == gradient.len() => {
            sums.iter_mut().zip(gradient).for_each(|(sum, it)| *sum += it);
        }
        _ => {
            let given = format!("{} elements of parameter {parameter}", gradient.len());
            let expected = "a parameter of Stage::parameters, with its number of elements";
            let error = || ringreduce::Error::argument("Stage::backward", "sink", given, expected);
            refused.get_or_insert_with(error);
        }
    };
    let start = Instant::now();
    for work in schedule.work(rank, size, count) {
        let (from, to, tag) = match work {
            Work::Forward(_) => (before, after, ACTIVATIONS),
            Work::Backward(_) => (after, before, GRADIENTS),
        };
        let input = neighbors.receive(from, tag)?;
        let computing = Instant::now();
        let output = match work {
            Work::Forward(at) => stage.forward(at, &input),
            Work::Backward(at) => stage.backward(at, &input, &mut sink),
        };
        let output = output.map_err(Error::Model)?;
        if let Work::Forward(_) = work {
            passes.has_bad_output |= !are_finite(&output);
            if after.is_none() {
                passes.loss += output.iter().sum::<f32>();
            }
        }
        passes.times.busy += computing.elapsed();
        neighbors.send(output, to, tag)?;
    }
    for sent in neighbors.sent {
        sent.wait()?;
    }
    passes.times.idle = start.elapsed().saturating_sub(passes.times.busy);
    passes.refused = refused;
    Ok(passes)
}
