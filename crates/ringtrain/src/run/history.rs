//! The history of a training so far.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

/// An epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochReport {
    /// Its number, from 1.
    pub epoch: usize,
    /// The mean loss of each step's batch. NaN, in a file null, where this rank does not know it.
    #[serde(deserialize_with = "losses")]
    pub losses: Vec<f32>,
    /// The share of test images that are classified right after the epoch, 0 to 1; NaN, in a file
    /// null, where another rank has tested.
    #[serde(deserialize_with = "accuracy")]
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
    /// The mean of the losses of all steps that this rank knows; NaN if there is none.
    #[must_use]
    pub fn loss(&self) -> f32 {
        let known = || self.losses.iter().filter(|loss| !loss.is_nan());
        known().sum::<f32>() / known().count() as f32
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
    #[serde(deserialize_with = "losses")]
    pub(crate) losses: Vec<f32>,
    pub(crate) spent: Spent,
}

impl History {
    /// Takes up the steps of others until there are so many: their losses this rank does not know.
    pub(crate) fn catch_up(&mut self, steps: u64, steps_per_epoch: usize) {
        let known = self.epochs.len() * steps_per_epoch + self.losses.len();
        for _ in known as u64..steps {
            self.losses.push(f32::NAN);
            if self.losses.len() >= steps_per_epoch {
                self.end_epoch(f64::NAN, 0);
            }
        }
    }

    /// The loss of the parameters after so many steps, if it is known.
    pub(crate) fn loss_after(&self, steps: u64) -> Option<f32> {
        let mut all = self.epochs.iter().map(|epoch| &epoch.losses).chain([&self.losses]).flatten();
        all.nth(usize::try_from(steps).ok()?).copied().filter(|loss| loss.is_finite())
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

fn losses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
    let known = Vec::<Option<f32>>::deserialize(from)?;
    Ok(known.into_iter().map(|loss| loss.unwrap_or(f32::NAN)).collect())
}

fn accuracy<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::History;

    /// A worker that joins in the second epoch takes over the file of the others.
    #[test]
    fn what_a_rank_does_not_know_is_null_in_a_file() {
        let mut history = History::default();
        history.catch_up(5, 4);
        history.losses.push(0.5);
        let file = serde_json::to_string(&history).unwrap();
        assert!(file.contains("[null,null,null,null]") && file.contains("[null,0.5]"), "{file}");
        let mut read: History = serde_json::from_str(&file).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), file);
        assert!(read.epochs[0].loss().is_nan() && read.epochs[0].accuracy.is_nan());
        read.end_epoch(1.0, 8);
        assert_eq!(read.epochs[1].loss(), 0.5);
    }

    /// The others of a worker's group may have ended its epoch meanwhile.
    #[test]
    fn steps_that_others_have_made_count_for_the_epochs_of_this_rank() {
        let mut history = History { losses: vec![0.5; 3], ..History::default() };
        history.catch_up(3, 4);
        assert_eq!((history.epochs.len(), history.losses.len()), (0, 3));
        history.catch_up(6, 4);
        assert_eq!((history.epochs.len(), history.losses.len()), (1, 2));
        assert_eq!(history.epochs[0].loss(), 0.5);
        history.losses.extend([1.0; 2]);
        // The last step was this rank's own, so it still tests.
        history.catch_up(8, 4);
        assert_eq!((history.epochs.len(), history.losses.len()), (1, 4));
    }
}
