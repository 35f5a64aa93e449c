//! The steps of a training: gradients, their exchange, the update, and the parameters for all.
//! Law: every rank updates from the same sums, so all models stay equal to the bit.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gradients::{BucketSizes, Parameter, Reducer};
use ringreduce::{Communicator, DataType, ReduceOp};

use crate::copies::HeldMoments;
use crate::divergence::divergence;
use crate::elastic::Progress;
use crate::exchange::{HostCalls, Scratch, ValueMemory, exchange, publish};
use crate::optimizer::{clip_scale, square_sum};
use crate::sums::{LOSS, Sums};
use crate::trace::Exchanges;
use crate::{BucketTrace, Error, JobConfig, Model, Optimizer, Part, Sink, Strategy};

/// How a model is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Where gradients are reduced, and where parameters are updated.
    pub strategy: Strategy,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// The largest norm of all gradients; larger ones are scaled down to it.
    pub clip_norm: Option<f32>,
    /// The bytes at which a bucket of gradients is closed; none for those of the cost model.
    pub buckets: Option<BucketSizes>,
}

impl Settings {
    /// Whether the optimizer can work with the parts of parameters that the strategy gives it.
    pub(crate) fn check(&self, call: &'static str) -> ringreduce::Result<()> {
        if !self.strategy.is_sharded() || !self.optimizer.is_by_parameter() {
            return Ok(());
        }
        let expected = "SGD or Adam: a part of a parameter has no norm";
        let given = format!("{:?}", self.optimizer);
        Err(ringreduce::Error::argument(call, "optimizer", given, expected))
    }

    /// The names and values that all ranks must have in common.
    pub(crate) fn of_all_ranks(&self) -> [(&str, &dyn std::fmt::Debug); 4] {
        [
            ("strategy", &self.strategy),
            ("optimizer", &self.optimizer),
            ("clip_norm", &self.clip_norm),
            ("buckets", &self.buckets),
        ]
    }
}

/// The results of a step.
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
    /// The forward and backward passes, without their waits for exchanges.
    pub compute: Duration,
    /// Communication, the waits for other ranks included, whether or not the model computed
    /// meanwhile.
    pub communication: Duration,
    /// The part of the communication that this rank waited for.
    pub exposed: Duration,
}

impl Times {
    /// The part of the communication during which the model computed.
    #[must_use]
    pub fn hidden(&self) -> Duration {
        self.communication.saturating_sub(self.exposed)
    }
}

/// The parameters of a bucket.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) memory: ValueMemory,
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

    /// The place of the loss among the elements that this rank updates.
    fn owned_loss(&self) -> Option<usize> {
        let (_, place) = self.places.iter().find(|(parameter, _)| *parameter == LOSS)?;
        self.owned.contains(&place.start).then(|| place.start - self.owned.start)
    }
}

/// Trains a model together with the trainers of all other ranks.
pub struct Trainer {
    pub(crate) settings: Settings,
    pub(crate) sums: Arc<Mutex<Sums>>,
    sink: Sink,
    exchanges: Arc<Exchanges>,
    scratch: Scratch,
    pub(crate) values: Vec<Values>,
    /// The names and lengths of the model's parameters.
    pub(crate) shapes: Vec<(String, usize)>,
    /// Completed steps.
    pub(crate) steps: u64,
    trace: Vec<BucketTrace>,
    pub(crate) elastic: Progress,
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
        let mut trainer = Self::without_state(comm, model, settings, JobConfig::default())?;
        trainer.settle(model, &mut ())?;
        Ok(trainer)
    }

    /// A trainer that has not heard of the other ranks.
    pub(crate) fn without_state<M: Model>(
        comm: Communicator,
        model: &M,
        settings: Settings,
        config: JobConfig,
    ) -> Result<Self, Error<M::Error>> {
        settings.check("Trainer::new")?;
        let Settings { strategy, buckets, .. } = settings;
        let shapes = model.parameters();
        // The loss is reduced with the gradients, as one more parameter before the first one.
        let counts = [1].into_iter().chain(shapes.iter().map(|(_, count)| *count));
        let parameter = |count| Parameter { dtype: DataType::F32, count };
        let parameters: Vec<Parameter> = counts.map(parameter).collect();
        let exchanges = Arc::new(Exchanges::default());
        let scratch = Scratch::default();
        let exchange = exchange(strategy, Arc::clone(&exchanges), Arc::clone(&scratch));
        let has_state = comm.epoch() == 0;
        let (keep, kept) = Sums::keep(strategy);
        let reducer = Reducer::unassigned(comm, &parameters, exchange, keep);
        let sums = Arc::new(Mutex::new(Sums::new(reducer, &parameters, kept)));
        let sink = Sums::sink(&sums);
        let (values, trace) = (Vec::new(), Vec::new());
        let config = config.with_settings(&settings.of_all_ranks(), &shapes);
        let elastic = Progress::new(has_state, buckets, config);
        let steps = 0;
        Ok(Self { settings, sums, sink, exchanges, scratch, values, shapes, steps, trace, elastic })
    }

    pub(crate) fn sums(&self) -> MutexGuard<'_, Sums> {
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

    /// The exchanges of the last step, in their order.
    #[must_use]
    pub fn trace(&self) -> &[BucketTrace] {
        &self.trace
    }

    /// The bytes of the memory that this value has allocated: for parameters, gradients, what comes
    /// from other ranks to be added up, and the state of the optimizer. The model's own copies are
    /// not among them.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        let of_bucket = |values: &Values| {
            values.memory.len() + values.moments.iter().map(Vec::len).sum::<usize>()
        };
        let held = self.elastic.held.iter().map(HeldMoments::elements).sum::<usize>();
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).capacity();
        let elements = self.values.iter().map(of_bucket).sum::<usize>() + held + scratch;
        size_of::<f32>() * elements + self.sums().allocated_bytes()
    }

    /// One update from the sum of the gradients of these parts of one batch, each with the batch's
    /// [`Part::total`]: several where a part is too large for the memory. All ranks call this, with
    /// as many parts as they like. The exchanges start in the backward pass of the last part; of
    /// each part where gradients are sharded.
    ///
    /// # Errors
    /// Those of the model; if the loss or a gradient is not finite, at all ranks; and if a peer is
    /// lost, after which [`Self::recover`] can go on. The parameters are as before then. After the
    /// model's error this value is of no more use.
    pub fn step<M: Model>(
        &mut self,
        model: &mut M,
        parts: &[Part<M::Batch>],
        rate: f32,
    ) -> Result<Step, Error<M::Error>> {
        if self.elastic.is_state_lost {
            return Err(Error::StateLost(self.steps));
        }
        let (compute, asked) = self.gradients(model, parts)?;
        let totaling = Instant::now();
        let (loss, norm) = self.totals()?;
        let mut exposed = asked + totaling.elapsed();
        if !loss.is_finite() || !norm.is_finite() {
            let mut sums = self.sums();
            let first = sums.diverged.take();
            let comm = sums.reducer.communicator();
            return Err(divergence(comm, &self.shapes, (self.steps + 1, loss), first)?);
        }
        self.update(rate, norm);
        let publishing = Instant::now();
        self.keep_copies()?;
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (comm, strategy) = (sums.reducer.communicator(), self.settings.strategy);
        let mut calls = HostCalls { comm, strategy, scratch: &mut Vec::new() };
        for values in &mut self.values {
            publish(strategy, &mut calls, &mut values.memory)?;
        }
        drop(sums);
        exposed += publishing.elapsed();
        self.write(model)?;
        self.steps += 1;
        self.forget_copies();
        let exchanged: Duration = self.trace.iter().map(|it| it.ended - it.started).sum();
        let waited: Duration = self.trace.iter().map(|it| it.waited.1 - it.waited.0).sum();
        let times =
            Times { compute, communication: exchanged + exposed, exposed: waited + exposed };
        Ok(Step { loss, times })
    }

    /// The sums of the gradients of all parts at all ranks. Gives the time of the model's passes,
    /// and the time to agree with the other ranks on the number of exchanges.
    fn gradients<M: Model>(
        &mut self,
        model: &mut M,
        parts: &[Part<M::Batch>],
    ) -> Result<(Duration, Duration), Error<M::Error>> {
        let asking = Instant::now();
        let rounds = if self.settings.strategy.keeps_own_sums() {
            let mut most = [parts.len().max(1) as u64];
            self.with_communicator(|comm| comm.all_reduce(&mut most, ReduceOp::Max))?;
            (0..most[0] as usize).map(|at| parts.get(at..=at).unwrap_or_default()).collect()
        } else {
            vec![parts]
        };
        let asked = asking.elapsed();
        let mut compute = Duration::ZERO;
        self.trace.clear();
        // Exchanges of a failed step are discarded.
        self.exchanges.take(asking, &[]);
        self.sums().begin();
        for round in rounds {
            let (start, mut loss) = (Instant::now(), 0.0);
            for (at, part) in round.iter().enumerate() {
                self.sums().begin_part(at + 1 == round.len());
                if part.batch.is_some() {
                    loss += model.gradients(part, &self.sink).map_err(Error::Model)?;
                }
            }
            let mut sums = self.sums();
            let waits = sums.reducer.waits().iter().filter(|(from, _)| *from >= start);
            let waited: Duration = waits.map(|(from, to)| *to - *from).sum();
            compute += start.elapsed().saturating_sub(waited);
            sums.finish(loss)?;
            let trace = self.exchanges.take(asking, sums.reducer.waits());
            drop(sums);
            self.trace.extend(trace);
        }
        Ok((compute, asked))
    }

    /// The loss of the whole batch, and the norm of all gradients: 0 where no clipping asks for it.
    fn totals(&self) -> Result<(f32, f64), ringreduce::Error> {
        let mut sums = self.sums();
        let mut totals = [0.0_f64; 2];
        for (bucket, values) in self.values.iter().enumerate() {
            sums.with_owned(bucket, &values.owned, |gradients| {
                let loss = values.owned_loss().map_or(0.0, |place| f64::from(gradients[place]));
                totals[0] += loss;
                if self.settings.clip_norm.is_some() {
                    totals[1] += square_sum(gradients) - loss.powi(2);
                }
            });
        }
        if self.settings.strategy.has_parts() {
            sums.reducer.communicator().all_reduce(&mut totals, ReduceOp::Sum)?;
        }
        // Rounding may leave less than nothing; what is not a number stays so.
        let norm = if totals[1] < 0.0 { 0.0 } else { totals[1].sqrt() };
        Ok((totals[0] as f32, norm))
    }

    /// Updates the elements that this rank owns.
    fn update(&mut self, rate: f32, norm: f64) {
        self.keep_moments();
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let scale = clip_scale(self.settings.clip_norm, norm);
        let step = self.steps + 1;
        let optimizer = self.settings.optimizer;
        for (bucket, values) in self.values.iter_mut().enumerate() {
            let loss = values.owned_loss();
            let Values { memory, owned, moments, places } = values;
            // An optimizer that goes by parameters owns all of the bucket, or nothing.
            let is_by_parameter = optimizer.is_by_parameter() && owned.start < owned.end;
            let parameters: Vec<_> =
                places.iter().filter(|_| is_by_parameter).map(|(_, it)| it.clone()).collect();
            sums.with_owned(bucket, owned, |gradients| {
                if let Some(loss) = loss {
                    gradients[loss] = 0.0;
                }
                if scale < 1.0 {
                    gradients.iter_mut().for_each(|it| *it *= scale);
                }
                let values = &mut memory[owned.clone()];
                optimizer.update((rate, step), moments, values, gradients, &parameters);
            });
        }
        self.elastic.updated = step;
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
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer").field("settings", &self.settings).finish_non_exhaustive()
    }
}
