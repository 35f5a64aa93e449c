//! The gradients of a step on their way into the reducer: added up over the parts of a batch, and
//! looked through for numbers that are not finite.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::cast_slice_mut;
use gradients::{Keep, Parameter, Reducer};
use ringreduce::{Communicator, Error, Result};

use crate::divergence::are_finite;
use crate::exchange::floats;
use crate::{Sink, Strategy};

/// The parameter whose gradient is the loss; the model's parameters follow it.
pub(crate) const LOSS: usize = 0;

/// The gradients of a step.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) reducer: Reducer,
    /// The sums over the parts before the last one, by parameter; empty for those that have none.
    earlier: Vec<Vec<f32>>,
    counts: Vec<usize>,
    /// Whether the part that computes has given the gradient of each parameter.
    is_filled: Vec<bool>,
    /// Whether the part that computes is the last one of the step.
    is_last: bool,
    /// The first parameter whose gradient was not finite.
    pub(crate) diverged: Option<usize>,
    error: Option<Error>,
    /// The sums that this rank owns, where buckets don't keep their memory.
    kept: Option<OwnedSums>,
}

/// For each bucket the elements that this rank owns, and their sums.
pub(crate) type OwnedSums = Arc<Mutex<Vec<(Range<usize>, Vec<f32>)>>>;

impl Sums {
    /// The function that takes over the results of buckets, and the place where it puts them; none
    /// where gradients are not sharded.
    pub(crate) fn keep(strategy: Strategy) -> (Option<Keep>, Option<OwnedSums>) {
        if !strategy.keeps_own_sums() {
            return (None, None);
        }
        let kept = OwnedSums::default();
        let to = Arc::clone(&kept);
        let keep: Keep = Box::new(move |bucket, result| {
            let mut kept = to.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((owned, sums)) = kept.get_mut(bucket) {
                let result = &floats(result)[owned.clone()];
                sums.iter_mut().zip(result).for_each(|(sum, it)| *sum += it);
            }
        });
        (Some(keep), Some(kept))
    }

    pub(crate) fn new(reducer: Reducer, parameters: &[Parameter], kept: Option<OwnedSums>) -> Self {
        Self {
            reducer,
            kept,
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
        if !are_finite(gradient) {
            self.diverged.get_or_insert(parameter);
        }
        if std::mem::replace(&mut self.is_filled[parameter], true) {
            return wrong(format!("parameter {} twice", parameter - 1), "it once".into());
        }
        let earlier = &mut self.earlier[parameter];
        if !self.is_last {
            earlier.resize(gradient.len(), 0.0);
            earlier.iter_mut().zip(gradient).for_each(|(sum, it)| *sum += it);
            return Ok(());
        }
        self.reducer.fill::<Error>(parameter, |to| {
            let to: &mut [f32] = cast_slice_mut(to);
            to.copy_from_slice(gradient);
            to.iter_mut().zip(&*earlier).for_each(|(sum, it)| *sum += it);
            earlier.clear();
            Ok(true)
        })
    }

    /// Goes on with other ranks, from a step that has failed.
    pub(crate) fn replace_communicator(&mut self, comm: Communicator) {
        self.reducer.replace_communicator(comm);
        self.earlier.iter_mut().for_each(Vec::clear);
        self.is_filled.fill(false);
        (self.diverged, self.error) = (None, None);
    }

    /// Makes memory for the sums that this rank owns.
    pub(crate) fn set_owned(&mut self, owned: impl Iterator<Item = Range<usize>>) {
        if let Some(kept) = &self.kept {
            let sums = owned.map(|owned| (owned.clone(), vec![0.0; owned.len()])).collect();
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = sums;
        }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self) {
        self.is_filled.fill(false);
        if let Some(kept) = &self.kept {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter_mut().for_each(|(_, sums)| sums.fill(0.0));
        }
    }

    /// Begins a part of the batch of a step.
    pub(crate) fn begin_part(&mut self, is_last: bool) {
        self.is_last = is_last;
        self.is_filled.fill(false);
    }

    /// Calls `work` with the sums of a bucket that this rank owns.
    pub(crate) fn with_owned<R>(
        &mut self,
        bucket: usize,
        owned: &Range<usize>,
        work: impl FnOnce(&mut [f32]) -> R,
    ) -> R {
        match &self.kept {
            Some(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                work(kept.get_mut(bucket).map_or(&mut [], |(_, sums)| sums))
            }
            None => work(&mut cast_slice_mut(self.reducer.memory(bucket))[owned.clone()]),
        }
    }

    /// The bytes of buckets and sums.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| {
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().map(|(_, sums)| sums.len()).sum()
        });
        let earlier = self.earlier.iter().map(Vec::capacity).sum::<usize>();
        size_of::<f32>() * (kept + earlier) + self.reducer.allocated_bytes()
    }

    /// Ends the gradients of a step: fills what has none, and waits for all exchanges.
    pub(crate) fn finish(&mut self, loss: f32) -> Result<()> {
        self.is_last = true;
        // Ranks that can't take a gradient come too, or the others would wait for them.
        let failed = self.error.take();
        let filled = self.fill_missing(loss);
        self.is_filled.fill(false);
        let waited = filled.and_then(|()| self.reducer.wait());
        // The first failure is the cause of the others.
        failed.map_or(waited, Err)
    }

    /// Fills what has no gradient, and the loss.
    fn fill_missing(&mut self, loss: f32) -> Result<()> {
        for parameter in (1..self.counts.len()).rev() {
            if !self.is_filled[parameter] {
                let count = self.counts[parameter];
                self.take(parameter, &vec![0.0; count])?;
            }
        }
        // A gradient that is not finite makes itself known to all ranks.
        // A narrow type on the wire may take an infinite loss for its largest number.
        let is_finite = self.diverged.is_none() && loss.is_finite();
        let loss = if is_finite { loss } else { f32::NAN };
        self.take(LOSS, &[loss])
    }
}
