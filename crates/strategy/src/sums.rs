//! The gradients of a step on their way into the reducer: added up over the parts of a batch, and
//! looked through for numbers that are not finite.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::cast_slice_mut;
use gradients::{Parameter, Reducer};
use ringreduce::{Error, Result};

use crate::Sink;

/// The parameter whose gradient is the loss; the model's parameters follow it.
pub(crate) const LOSS: usize = 0;

/// The gradients of a step.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) reducer: Reducer,
    /// The sums over the parts before the last one, by parameter; empty for those that have none.
    earlier: Vec<Vec<f32>>,
    counts: Vec<usize>,
    is_filled: Vec<bool>,
    /// Whether the part that computes is the last one of the step.
    pub(crate) is_last: bool,
    /// The first parameter whose gradient was not finite.
    pub(crate) diverged: Option<usize>,
    error: Option<Error>,
}

impl Sums {
    pub(crate) fn new(reducer: Reducer, parameters: &[Parameter]) -> Self {
        Self {
            reducer,
            earlier: vec![Vec::new(); parameters.len()],
            counts: parameters.iter().map(|it| it.count).collect(),
            is_filled: vec![false; parameters.len()],
            is_last: false,
            diverged: None,
            error: None,
        }
    }

    /// The sink for a model, whose parameters have numbers less by one.
    pub(crate) fn sink(sums: &Arc<Mutex<Self>>) -> Sink {
        let sums = Arc::clone(sums);
        Arc::new(move |parameter, gradient| {
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = sums.take(parameter.saturating_add(1), gradient);
            if let Err(error) = taken {
                sums.error.get_or_insert(error);
            }
        })
    }

    /// Takes a gradient of the part that computes.
    fn take(&mut self, parameter: usize, gradient: &[f32]) -> Result<()> {
        let wrong = |given: String, expected: String| {
            Err(Error::argument("Model::gradients", "sink", given, expected))
        };
        match self.counts.get(parameter) {
            None => {
                let given = format!("parameter {}", parameter - 1);
                return wrong(given, format!("one of {}", self.counts.len() - 1));
            }
            Some(count) if *count != gradient.len() => {
                let given = format!("{} elements of parameter {}", gradient.len(), parameter - 1);
                return wrong(given, format!("{count}"));
            }
            Some(_) => {}
        }
        if self.diverged.is_none() && !gradient.iter().all(|it| it.is_finite()) {
            self.diverged = Some(parameter);
        }
        let earlier = &mut self.earlier[parameter];
        if !self.is_last {
            if earlier.is_empty() {
                earlier.extend_from_slice(gradient);
            } else {
                earlier.iter_mut().zip(gradient).for_each(|(sum, it)| *sum += it);
            }
            return Ok(());
        }
        if self.is_filled[parameter] {
            return wrong(format!("parameter {} twice", parameter - 1), "it once".into());
        }
        self.is_filled[parameter] = true;
        self.reducer.fill::<Error>(parameter, |to| {
            let to: &mut [f32] = cast_slice_mut(to);
            to.copy_from_slice(gradient);
            to.iter_mut().zip(&*earlier).for_each(|(sum, it)| *sum += it);
            earlier.clear();
            Ok(true)
        })
    }

    /// Ends the gradients of a step: fills what has none, and waits for all exchanges.
    pub(crate) fn finish(&mut self, loss: f32) -> Result<()> {
        self.is_last = true;
        // Ranks that can't take a gradient come too, or the others would wait for them.
        let failed = self.error.take();
        for parameter in (1..self.counts.len()).rev() {
            if !self.is_filled[parameter] {
                let count = self.counts[parameter];
                self.take(parameter, &vec![0.0; count])?;
            }
        }
        // A gradient that is not finite makes itself known to all ranks.
        let loss = if self.diverged.is_some() { f32::NAN } else { loss };
        self.take(LOSS, &[loss])?;
        self.is_filled.fill(false);
        self.reducer.wait()?;
        failed.map_or(Ok(()), Err)
    }
}
