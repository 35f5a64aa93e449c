//! The steps of a training: gradients, their exchange, the update, and the parameters for all.
//! Law: every rank updates from the same sums, so all models stay equal to the bit.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gradients::{BucketSizes, Parameter, Reducer};
use ringreduce::{Communicator, DataType, ReduceOp, Registered};

use crate::exchange::{Busy, exchange, floats, owned, publish};
use crate::optimizer::square_sum;
use crate::sums::{LOSS, Sums};
use crate::{Error, Model, Optimizer, Part, Sink, Strategy};

/// How a model is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Where gradients are reduced, and where parameters are updated.
    pub strategy: Strategy,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// The largest norm of all gradients; larger ones are scaled down to it.
    pub clip_norm: Option<f32>,
    /// The bytes at which a bucket of gradients is closed.
    pub buckets: BucketSizes,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The mean loss over the batches of all ranks.
    pub loss: f32,
    /// Where the time of this rank went.
    pub times: Times,
}

/// Where the time of a step went, at one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The forward and backward passes.
    pub compute: Duration,
    /// Communication, the waits for other ranks included, whether or not the model computed
    /// meanwhile.
    pub communication: Duration,
    /// The part of the communication that this rank waited for.
    pub exposed: Duration,
}

/// The parameters of a bucket.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) memory: Registered<'static, f32>,
    /// The elements that this rank updates.
    pub(crate) owned: Range<usize>,
    /// The state of the optimizer, for these elements.
    pub(crate) moments: Vec<Vec<f32>>,
    /// The places of the parameters; the loss is one, before those of the model.
    pub(crate) places: Vec<(usize, Range<usize>)>,
}

impl Values {
    /// The model's parameters and their places.
    pub(crate) fn model_places(&self) -> Vec<(usize, Range<usize>)> {
        let of_model =
            |(at, place): &(usize, Range<usize>)| Some((at.checked_sub(1)?, place.clone()));
        self.places.iter().filter_map(of_model).collect()
    }
}

/// Trains a model together with the trainers of all other ranks.
pub struct Trainer {
    pub(crate) settings: Settings,
    pub(crate) sums: Arc<Mutex<Sums>>,
    sink: Sink,
    busy: Arc<Busy>,
    pub(crate) values: Vec<Values>,
    /// The names and lengths of the model's parameters.
    pub(crate) shapes: Vec<(String, usize)>,
    /// Completed steps.
    pub(crate) steps: u64,
}

impl Trainer {
    /// Gives all ranks' models the parameters of rank 0. All ranks call this.
    ///
    /// # Errors
    /// If an optimizer that needs whole parameters is sharded; if other ranks have another model or
    /// other settings; those of the model; and if a peer is lost.
    pub fn new<M: Model>(
        comm: Communicator,
        model: &mut M,
        settings: Settings,
    ) -> Result<Self, Error<M::Error>> {
        let Settings { strategy, optimizer, .. } = settings;
        if strategy == Strategy::ShardedOptimizer && optimizer.is_by_parameter() {
            let expected = "SGD or Adam: a part of a parameter has no norm";
            let given = format!("{optimizer:?}");
            let call = "Trainer::new";
            return Err(ringreduce::Error::argument(call, "optimizer", given, expected).into());
        }
        let shapes = model.parameters();
        // The loss is reduced with the gradients, as one more parameter before the first one.
        let counts = [1].into_iter().chain(shapes.iter().map(|(_, count)| *count));
        let parameter = |count| Parameter { dtype: DataType::F32, count };
        let parameters: Vec<Parameter> = counts.map(parameter).collect();
        let busy = Arc::new(Busy::default());
        let exchange = exchange(strategy, Arc::clone(&busy));
        let mut reducer = Reducer::with_exchange(comm, &parameters, settings.buckets, exchange)?;
        let mut values = Vec::new();
        let places: Vec<Vec<_>> = reducer.places().into_iter().map(Into::into).collect();
        for (bucket, places) in places.into_iter().enumerate() {
            let len = floats(reducer.memory(bucket)).len();
            let comm = reducer.communicator();
            let owned = owned(strategy, comm.rank(), comm.size(), len);
            let moments = vec![vec![0.0; owned.len()]; optimizer.moments()];
            let mut memory = comm.alloc(len)?;
            let elements = |place: Range<usize>| place.start / 4..place.end / 4;
            let places: Vec<_> =
                places.into_iter().map(|(at, place)| (at, elements(place))).collect();
            for (parameter, place) in &places {
                if let Some(parameter) = parameter.checked_sub(1) {
                    model.read(parameter, &mut memory[place.clone()]).map_err(Error::Model)?;
                }
            }
            comm.broadcast(&mut memory, 0)?;
            values.push(Values { memory, owned, moments, places });
        }
        let sums = Arc::new(Mutex::new(Sums::new(reducer, &parameters)));
        let sink = Sums::sink(&sums);
        let trainer = Self { settings, sums, sink, busy, values, shapes, steps: 0 };
        trainer.write(model)?;
        Ok(trainer)
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call of the ranks, between two steps.
    pub fn with_communicator<R>(&self, call: impl FnOnce(&mut Communicator) -> R) -> R {
        call(self.sums().reducer.communicator())
    }

    /// Completed steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One update from the sum of the gradients of these parts of one batch, each with the batch's
    /// [`Part::total`]: several where a part is too large for the memory. All ranks call this, with
    /// as many parts as they like. The exchanges start in the backward pass of the last part.
    ///
    /// # Errors
    /// Those of the model; if the loss is not finite, at all ranks; and if a peer is lost. The
    /// parameters are as before then. After the model's error or a lost peer this value is of no
    /// more use.
    pub fn step<M: Model>(
        &mut self,
        model: &mut M,
        parts: &[Part<M::Batch>],
        rate: f32,
    ) -> Result<Step, Error<M::Error>> {
        let start = Instant::now();
        let mut loss = 0.0;
        for (at, part) in parts.iter().enumerate() {
            self.sums().is_last = at + 1 == parts.len();
            if part.batch.is_some() {
                loss += model.gradients(part, &self.sink).map_err(Error::Model)?;
            }
        }
        let compute = start.elapsed();
        let waiting = Instant::now();
        self.sums().finish(loss)?;
        let (loss, norm) = self.totals()?;
        let exposed = waiting.elapsed();
        if !loss.is_finite() || !norm.is_finite() {
            return Err(self.diverged(loss)?);
        }
        self.update(rate, norm);
        let publishing = Instant::now();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        for values in &mut self.values {
            publish(self.settings.strategy, sums.reducer.communicator(), &mut values.memory)?;
        }
        drop(sums);
        let published = publishing.elapsed();
        self.write(model)?;
        self.steps += 1;
        let communication = self.busy.take() + published;
        let exposed = exposed + published;
        Ok(Step { loss, times: Times { compute, communication, exposed } })
    }

    /// The loss of the whole batch, and the norm of all gradients: 0 where no clipping asks for it
    /// and all ranks have all sums.
    fn totals(&self) -> Result<(f32, f64), ringreduce::Error> {
        let mut sums = self.sums();
        let is_everywhere =
            matches!(self.settings.strategy, Strategy::Mirrored(_) | Strategy::Naive);
        let mut totals = [0.0_f64; 2];
        for (bucket, values) in self.values.iter().enumerate() {
            let gradients = floats(sums.reducer.memory(bucket));
            let loss = values.places.iter().find(|(parameter, _)| *parameter == LOSS);
            let loss = loss.map(|(_, place)| place.start);
            if let Some(loss) = loss.filter(|place| values.owned.contains(place)) {
                totals[0] += f64::from(gradients[loss]);
            }
            if self.settings.clip_norm.is_some() {
                totals[1] += square_sum(&gradients[values.owned.clone()]);
                if let Some(loss) = loss.filter(|place| values.owned.contains(place)) {
                    totals[1] -= f64::from(gradients[loss]).powi(2);
                }
            }
        }
        if !is_everywhere {
            sums.reducer.communicator().all_reduce(&mut totals, ReduceOp::Sum)?;
        }
        Ok((totals[0] as f32, totals[1].max(0.0).sqrt()))
    }

    /// Updates the elements that this rank owns.
    fn update(&mut self, rate: f32, norm: f64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let scale = match self.settings.clip_norm {
            Some(limit) if norm > f64::from(limit) => (f64::from(limit) / norm) as f32,
            _ => 1.0,
        };
        let step = self.steps + 1;
        for (bucket, values) in self.values.iter_mut().enumerate() {
            let Values { memory, owned, moments, places } = values;
            let gradients = &mut sums.reducer.memory(bucket)[..];
            let gradients: &mut [f32] = bytemuck::cast_slice_mut(gradients);
            if let Some((_, loss)) = places.iter().find(|(parameter, _)| *parameter == LOSS) {
                gradients[loss.clone()].fill(0.0);
            }
            let gradients = &mut gradients[owned.clone()];
            if scale < 1.0 {
                gradients.iter_mut().for_each(|it| *it *= scale);
            }
            // An optimizer that goes by parameters owns all of the bucket, or nothing.
            let parameters: Vec<_> = match self.settings.optimizer.is_by_parameter() {
                true if owned.start < owned.end => {
                    places.iter().map(|(_, it)| it.clone()).collect()
                }
                _ => Vec::new(),
            };
            let values = &mut memory[owned.clone()];
            let optimizer = self.settings.optimizer;
            optimizer.update((rate, step), moments, values, gradients, &parameters);
        }
    }

    /// Gives the model all parameters.
    pub(crate) fn write<M: Model>(&self, model: &mut M) -> Result<(), Error<M::Error>> {
        for values in &self.values {
            for (parameter, place) in values.model_places() {
                model.write(parameter, &values.memory[place]).map_err(Error::Model)?;
            }
        }
        Ok(())
    }

    /// The error of a loss that is not finite, which names the first rank that has caused it.
    fn diverged<M>(&self, loss: f32) -> Result<Error<M>, ringreduce::Error> {
        let mut sums = self.sums();
        let mine = sums.diverged.take().map_or(u64::MAX, |parameter| parameter as u64);
        let comm = sums.reducer.communicator();
        let mut all = vec![0; comm.size()];
        comm.all_gather(&[mine], &mut all)?;
        let first = all.iter().enumerate().find(|(_, parameter)| **parameter != u64::MAX);
        let cause = match first {
            Some((rank, 0)) => format!("rank {rank} has such a loss"),
            Some((rank, parameter)) => {
                let name = self.shapes.get(*parameter as usize - 1).map_or("", |(name, _)| name);
                format!("rank {rank} has such a gradient of {name}")
            }
            None => "the sum over all ranks overflows".into(),
        };
        Ok(Error::Diverged { step: self.steps + 1, loss, cause })
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer").field("settings", &self.settings).finish_non_exhaustive()
    }
}
