//! What a training has done so far.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochReport {
    /// Its number, from 1.
    pub epoch: usize,
    /// The mean loss of each step's batch.
    pub losses: Vec<f32>,
    /// The share of test images that are classified right after the epoch, 0 to 1.
    pub accuracy: f64,
    /// Training images seen, by all ranks together.
    pub images: usize,
    /// Seconds that training took at rank 0, from step to step: with checkpoints and what ranks
    /// agree on, without tests.
    pub seconds: f64,
    /// The seconds of them in which rank 0 waited for communication.
    pub exposed: f64,
    /// Seconds of communication at rank 0 that computation has hidden.
    pub hidden: f64,
}

impl EpochReport {
    /// The mean of the losses of all steps.
    #[must_use]
    pub fn loss(&self) -> f32 {
        self.losses.iter().sum::<f32>() / self.losses.len().max(1) as f32
    }

    /// Training images a second, by all ranks together.
    #[must_use]
    pub fn images_per_second(&self) -> f64 {
        self.images as f64 / self.seconds.max(1e-9)
    }
}

/// Where the time of an epoch goes at this rank.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Spent {
    pub(crate) all: Duration,
    pub(crate) exposed: Duration,
    pub(crate) hidden: Duration,
}

/// The completed epochs, and the steps of the current one. It is part of a checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The completed epochs.
    pub epochs: Vec<EpochReport>,
    /// The losses of the completed steps of the current epoch.
    pub(crate) losses: Vec<f32>,
    pub(crate) spent: Spent,
}

impl History {
    /// The history of a worker that goes on after steps of others, whose losses it does not know:
    /// they count as 0.
    pub(crate) fn unseen(steps: u64, steps_per_epoch: usize) -> Self {
        let (epochs, left) = (steps as usize / steps_per_epoch, steps as usize % steps_per_epoch);
        let mut history = Self::default();
        for _ in 0..epochs {
            history.end_epoch(0.0, 0);
        }
        history.losses = vec![0.0; left];
        history
    }

    /// Whether no step was made.
    pub(crate) fn is_new(&self) -> bool {
        self.epochs.is_empty() && self.losses.is_empty()
    }

    pub(crate) fn end_epoch(&mut self, accuracy: f64, images: usize) {
        let Spent { all, exposed, hidden } = std::mem::take(&mut self.spent);
        self.epochs.push(EpochReport {
            epoch: self.epochs.len() + 1,
            losses: std::mem::take(&mut self.losses),
            accuracy,
            images,
            seconds: all.as_secs_f64(),
            exposed: exposed.as_secs_f64(),
            hidden: hidden.as_secs_f64(),
        });
    }
}
