//! The order in which a stage computes: a pure function.
//! Law: each micro-batch passes forward once, and then backward once; both directions take them in
//! order, so that messages between two stages need no numbers.

/// A unit of work of a stage, with the number of its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward pass of a micro-batch.
    Forward(usize),
    /// The backward pass of a micro-batch.
    Backward(usize),
}

/// In which order stages compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes (GPipe; Huang et al., 2019).
    FillDrain,
    /// Backward passes as soon as they can be, so that a stage holds the activations of few
    /// micro-batches (1F1B; `PipeDream`, Narayanan et al., 2019).
    OneForwardOneBackward,
}

impl PipelineSchedule {
    /// The work of stage `stage` of `stages` in a step of `count` micro-batches.
    #[must_use]
    pub fn work(self, stage: usize, stages: usize, count: usize) -> Vec<Work> {
        // Forward passes before the first backward pass.
        let ahead = match self {
            Self::FillDrain => count,
            Self::OneForwardOneBackward => stages.saturating_sub(stage).min(count),
        };
        let first = (0..ahead).map(Work::Forward);
        let pairs = (ahead..count).flat_map(|at| [Work::Backward(at - ahead), Work::Forward(at)]);
        first.chain(pairs).chain((count - ahead..count).map(Work::Backward)).collect()
    }
}

/// The share of a step in which a stage waits, if all stages compute equally long:
/// (p-1) / (m+p-1) with p stages and m micro-batches, for both schedules (Huang et al., 2019).
#[must_use]
pub fn bubble(stages: usize, count: usize) -> f64 {
    let idle = stages.saturating_sub(1) as f64;
    idle / (count as f64 + idle).max(1.0)
}
