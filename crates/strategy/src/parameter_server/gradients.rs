//! The gradients of a step at a worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringreduce::{Error as RankError, Result};

use crate::Sink;
use crate::divergence::are_finite;

/// The gradients that the sink has taken in a step.
#[derive(Debug, Default)]
pub(crate) struct Gradients {
    /// One after the other.
    pub(crate) values: Vec<f32>,
    /// The first parameter whose gradient is not finite.
    pub(crate) diverged: Option<usize>,
    pub(crate) error: Option<RankError>,
    /// Whether the model has given the gradient of each parameter.
    is_given: Vec<bool>,
}

pub(crate) fn lock(gradients: &Mutex<Gradients>) -> MutexGuard<'_, Gradients> {
    gradients.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gradients {
    /// Those of parameters with so many elements, before the first step.
    pub(crate) fn new(counts: &[usize]) -> Self {
        let values = vec![0.0; counts.iter().sum()];
        Self { values, is_given: vec![false; counts.len()], ..Self::default() }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self) {
        self.values.fill(0.0);
        self.is_given.fill(false);
        (self.diverged, self.error) = (None, None);
    }

    fn take(&mut self, counts: &[usize], parameter: usize, gradient: &[f32]) -> Result<()> {
        let wrong =
            |given, expected| Err(RankError::argument("Model::gradients", "sink", given, expected));
        if counts.get(parameter) != Some(&gradient.len()) {
            let given = format!("{} elements of parameter {parameter}", gradient.len());
            return wrong(given, format!("{:?} elements", counts.get(parameter)));
        }
        if std::mem::replace(&mut self.is_given[parameter], true) {
            return wrong(format!("parameter {parameter} twice"), "it once".into());
        }
        if self.diverged.is_none() && !are_finite(gradient) {
            self.diverged = Some(parameter);
        }
        let start = counts.iter().take(parameter).sum::<usize>();
        self.values[start..start + gradient.len()].copy_from_slice(gradient);
        Ok(())
    }
}

/// A sink that writes each gradient to its place.
pub(crate) fn sink(counts: Vec<usize>, gradients: Arc<Mutex<Gradients>>) -> Sink {
    Arc::new(move |parameter, gradient| {
        let mut gradients = lock(&gradients);
        if let Err(error) = gradients.take(&counts, parameter, gradient) {
            gradients.error.get_or_insert(error);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gradient_is_taken_once_a_step() {
        let mut gradients = Gradients::new(&[2, 1]);
        let mut said = |parameter: usize, gradient: &[f32]| {
            gradients.take(&[2, 1], parameter, gradient).map_err(|error| error.to_string())
        };
        assert_eq!(said(1, &[3.0]), Ok(()));
        assert!(said(1, &[4.0]).unwrap_err().contains("parameter 1 twice"));
        assert!(said(0, &[4.0]).unwrap_err().contains("1 elements of parameter 0"));
        assert!(said(2, &[4.0]).unwrap_err().contains("1 elements of parameter 2"));
        assert_eq!(said(0, &[1.0, f32::INFINITY]), Ok(()));
        assert_eq!(
            (&gradients.values[..], gradients.diverged),
            (&[1.0, f32::INFINITY, 3.0][..], Some(0))
        );
        gradients.begin();
        assert_eq!(gradients.take(&[2, 1], 1, &[5.0]).map_err(|error| error.to_string()), Ok(()));
        assert_eq!((&gradients.values[..], gradients.diverged), (&[0.0, 0.0, 5.0][..], None));
    }
}
