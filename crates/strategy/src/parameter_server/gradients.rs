//! The gradients of a step at a worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringreduce::Error as RankError;

use crate::Sink;
use crate::divergence::are_finite;

/// What the sink has taken in a step.
#[derive(Debug, Default)]
pub(crate) struct Gradients {
    /// One after the other.
    pub(crate) values: Vec<f32>,
    /// The first parameter whose gradient is not finite.
    pub(crate) diverged: Option<usize>,
    pub(crate) error: Option<RankError>,
}

pub(crate) fn lock(gradients: &Mutex<Gradients>) -> MutexGuard<'_, Gradients> {
    gradients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sink that writes each gradient to its place.
pub(crate) fn sink(counts: Vec<usize>, gradients: Arc<Mutex<Gradients>>) -> Sink {
    Arc::new(move |parameter, gradient| {
        let mut gradients = lock(&gradients);
        let start = counts.iter().take(parameter).sum::<usize>();
        if counts.get(parameter) != Some(&gradient.len()) {
            let given = format!("{} elements of parameter {parameter}", gradient.len());
            let expected = format!("{:?} elements", counts.get(parameter));
            let error = RankError::argument("Model::gradients", "sink", given, expected);
            gradients.error.get_or_insert(error);
            return;
        }
        if gradients.diverged.is_none() && !are_finite(gradient) {
            gradients.diverged = Some(parameter);
        }
        gradients.values[start..start + gradient.len()].copy_from_slice(gradient);
    })
}
