//! Goes on when ranks are lost or join: all ranks take over one state.
//! Law: an update that a rank has completed is made by all ranks that are left, or repeated by all.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use gradients::BucketSizes;
use ringreduce::{Communicator, Error as RankError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::copies::{HeldMoments, RecoveryOffer, newest};
use crate::exchange::{ValueMemory, is_serial};
use crate::trainer::Values;
use crate::{Error, JobConfig, Model, Settings, Trainer, buckets};

/// The progress that a rank brings into a recovery.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Whether the model's parameters are those of the training.
    has_state: bool,
    pub(crate) is_state_lost: bool,
    sizes: Option<BucketSizes>,
    /// The step that the moments are of.
    pub(crate) updated: u64,
    pub(crate) held: Vec<HeldMoments>,
    /// Whether the next rank keeps copies of this rank's moments.
    pub(crate) keeps_copies: bool,
    /// The settings that must be the same at all ranks.
    config: JobConfig,
}

impl Progress {
    pub(crate) fn new(has_state: bool, sizes: Option<BucketSizes>, config: JobConfig) -> Self {
        let (is_state_lost, updated, held, keeps_copies) = (false, 0, Vec::new(), false);
        Self { has_state, is_state_lost, sizes, updated, held, keeps_copies, config }
    }
}

/// Which state all ranks take over.
#[derive(Clone, Copy, Debug)]
struct Source {
    steps: u64,
    /// The first rank with its parameters.
    root: usize,
    /// Whether ranks have its moments; otherwise they are zero.
    has_moments: bool,
}

impl Trainer {
    /// As [`Self::new`], for ranks that go on when others are lost or join: also a rank that joins
    /// calls this, and gets the state of the others. `record` is what the program knows of the
    /// training, such as its losses: all ranks take over that of the rank whose parameters they
    /// take over. `config` is what must be the same at all ranks besides `settings` and the names
    /// and lengths of the parameters.
    ///
    /// Sharded and central strategies keep a copy of each rank's moments at the next rank, which
    /// receives it in each step. Where both are lost at a time, see [`Self::is_state_lost`].
    ///
    /// # Errors
    /// As [`Self::new`], but for lost ranks; [`JobConfig::agree`]'s if ranks have other settings.
    pub fn elastic<M: Model, R: Serialize + DeserializeOwned>(
        comm: Communicator,
        model: &mut M,
        settings: Settings,
        config: JobConfig,
        record: &mut R,
    ) -> Result<Self, Error<M::Error>> {
        let mut trainer = Self::without_state(comm, model, settings, config)?;
        let has_moments = settings.optimizer.moments() > 0;
        trainer.elastic.keeps_copies = settings.strategy.has_parts() && has_moments;
        if let Err(error) = trainer.settle(model, record) {
            trainer.recover(error, model, record)?;
        }
        Ok(trainer)
    }

    /// Goes on without the lost ranks after `error`, from whichever call. All ranks that are left
    /// call this, since all calls fail then. [`Self::steps`] may have changed, and the rank and the
    /// size too: the program computes the next part of a batch from these alone, and so an update
    /// that no rank has completed is repeated. A rank that does not come within the communicator's
    /// timeout is left behind.
    ///
    /// # Errors
    /// `error`, if no rank was lost, or the ranks are threads. Those of
    /// [`evict`](Communicator::evict) and of the model.
    pub fn recover<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        mut error: Error<M::Error>,
        model: &mut M,
        record: &mut R,
    ) -> Result<(), Error<M::Error>> {
        while error.is_lost_rank() {
            let smaller = self.with_communicator(|comm| comm.evict(comm.timeout()));
            match smaller {
                Ok(smaller) => self.take_over(smaller),
                Err(RankError::Argument { .. }) => return Err(error),
                Err(other) => return Err(other.into()),
            }
            match self.settle(model, record) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    /// Lets ranks join that were started again; true if there were some. All ranks call this,
    /// between two steps. It costs a question to the launcher and a broadcast, so a program may
    /// call it every some steps.
    ///
    /// # Errors
    /// Those of [`grow`](Communicator::grow): after a lost rank [`Self::recover`] can go on, and
    /// where the launcher does not answer this value still works. Those of the model.
    pub fn grow<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        model: &mut M,
        record: &mut R,
    ) -> Result<bool, Error<M::Error>> {
        let larger = self.with_communicator(|comm| comm.grow(comm.timeout()))?;
        let Some(larger) = larger else { return Ok(false) };
        self.take_over(larger);
        if let Err(error) = self.settle(model, record) {
            self.recover(error, model, record)?;
        }
        Ok(true)
    }

    /// Whether the optimizer's state was lost, because a rank and the one that kept its copy were.
    /// All ranks know it. A step and [`Self::state`] are errors then, until a checkpoint is loaded
    /// by [`Self::load_state`]. The parameters are those of [`Self::steps`].
    #[must_use]
    pub fn is_state_lost(&self) -> bool {
        self.elastic.is_state_lost
    }

    /// Goes on with other ranks, once [`Self::settle`] has given them one state.
    fn take_over(&mut self, comm: Communicator) {
        let steps = self.elastic.updated;
        let hold = |(bucket, values): (usize, Values)| HeldMoments {
            steps,
            bucket,
            range: values.owned,
            moments: values.moments,
        };
        let own = std::mem::take(&mut self.values).into_iter().enumerate().map(hold);
        if self.elastic.is_state_lost {
            self.elastic.held.clear();
        } else {
            self.elastic.held.extend(own);
        }
        self.sums().replace_communicator(comm);
    }

    fn offer(&self) -> RecoveryOffer {
        let Progress { has_state, is_state_lost, sizes, ref held, .. } = self.elastic;
        let moments = |it: &HeldMoments| (it.steps, it.bucket, it.range.clone());
        RecoveryOffer {
            sizes: sizes.map(|it| (it.first, it.others)),
            steps: has_state.then_some(self.steps),
            is_state_lost,
            moments: held.iter().map(moments).collect(),
        }
    }

    /// Gives all ranks the state of the one with most progress. All ranks call this, on a
    /// communicator that is new.
    pub(crate) fn settle<M: Model, R: Serialize + DeserializeOwned>(
        &mut self,
        model: &mut M,
        record: &mut R,
    ) -> Result<(), Error<M::Error>> {
        let shared = Arc::clone(&self.sums);
        let mut sums = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let reducer = &mut sums.reducer;
        self.elastic.config.agree(reducer.communicator(), self.elastic.has_state)?;
        let offers = reducer.communicator().all_gather_object(&self.offer())?;
        let sizes = match offers.iter().find_map(|offer| offer.sizes) {
            Some((first, others)) => BucketSizes { first, others },
            None => buckets::measured(reducer.communicator())?,
        };
        self.elastic.sizes = Some(sizes);
        let is_serial = is_serial(self.settings.strategy, reducer.communicator());
        reducer.set_serial(is_serial);
        reducer.assign(sizes)?;
        let places: Vec<Vec<_>> = reducer.places().into_iter().map(Into::into).collect();
        let len = |places: &Vec<(usize, Range<usize>)>| places.last().map_or(0, |it| it.1.end / 4);
        let lens: Vec<usize> = places.iter().map(len).collect();
        let had_all = !offers.iter().any(|offer| offer.is_state_lost);
        let needed = if self.settings.optimizer.moments() > 0 { &lens[..] } else { &[] };
        let whole = newest(&offers, needed).filter(|_| had_all);
        let (steps, root) = whole.or_else(|| newest(&offers, &[])).unwrap_or_default();
        let source = Source { steps, root, has_moments: whole.is_some() && steps > 0 };
        let (mut values, mut copies) = (Vec::new(), Vec::new());
        for (bucket, places) in places.into_iter().enumerate() {
            let len = reducer.memory_len(bucket) / 4;
            let comm = reducer.communicator();
            let (these, copy) = self.restore(comm, model, source, (bucket, len), places)?;
            values.push(these);
            copies.push(copy);
        }
        reducer.communicator().broadcast_object(record, root)?;
        sums.set_owned(values.iter().map(|it| it.owned.clone()));
        self.values = values;
        self.steps = steps;
        self.write(model)?;
        self.elastic.has_state = true;
        self.elastic.updated = steps;
        self.elastic.is_state_lost = whole.is_none() && steps > 0;
        // All ranks have this state now, or the older ones are still needed.
        sums.reducer.communicator().barrier()?;
        self.elastic.held = if self.elastic.keeps_copies { copies } else { Vec::new() };
        Ok(())
    }

    /// The values of a bucket of `len` elements, and the copy that this rank keeps of another one's
    /// moments.
    fn restore<M: Model>(
        &self,
        comm: &mut Communicator,
        model: &M,
        Source { steps, root, has_moments }: Source,
        (bucket, len): (usize, usize),
        places: Vec<(usize, Range<usize>)>,
    ) -> Result<(Values, HeldMoments), Error<M::Error>> {
        let (rank, size) = (comm.rank(), comm.size());
        let elements = |place: Range<usize>| place.start / 4..place.end / 4;
        let places = places.into_iter().map(|(at, place)| (at, elements(place))).collect();
        let strategy = self.settings.strategy;
        let owned = strategy.owned(rank, size, len);
        let mut values = Values {
            memory: ValueMemory::new(strategy, comm, len)?,
            owned,
            moments: Vec::new(),
            places,
        };
        if rank == root {
            for (parameter, place) in values.model_places() {
                model.read(parameter, &mut values.memory[place]).map_err(Error::Model)?;
            }
        }
        comm.broadcast(&mut values.memory, root)?;
        let mut copy = self.copy_of(comm, steps, bucket, len);
        for moment in 0..self.settings.optimizer.moments() {
            let mut all = vec![0.0; len];
            if has_moments {
                self.collect(comm, (steps, bucket, moment), &mut all)?;
            }
            values.moments.push(all[values.owned.clone()].to_vec());
            copy.take(&all);
        }
        Ok((values, copy))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;
    use std::thread;

    use gradients::BucketSizes;
    use ringreduce::Communicator;

    use crate::{
        CrossDeviceOp, JobConfig, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy,
        Trainer,
    };

    /// A parameter of one element, whose gradient is the sample.
    struct Scalar(f32);

    impl Parameters for Scalar {
        type Error = Infallible;

        fn parameters(&self) -> Vec<(String, usize)> {
            vec![("scalar".into(), 1)]
        }

        fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
            to[0] = self.0;
            Ok(())
        }

        fn write(&mut self, _: usize, from: &[f32]) -> Result<(), Infallible> {
            self.0 = from[0];
            Ok(())
        }
    }

    impl Model for Scalar {
        type Batch = f32;

        fn gradients(&mut self, part: &Part<f32>, sink: &Sink) -> Result<f32, Infallible> {
            let gradient = part.batch.unwrap_or_default();
            sink(0, &[gradient]);
            Ok(gradient)
        }
    }

    /// A rank alone after so many steps, whose record is the number of each step.
    fn trained(steps: usize) -> (Trainer, Scalar, Vec<usize>) {
        let settings = Settings {
            strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
            optimizer: Optimizer::Sgd { momentum: 0.5, weight_decay: 0.0 },
            clip_norm: None,
            buckets: Some(BucketSizes { first: 100, others: 100 }),
        };
        let comm = Communicator::local(1).unwrap().remove(0);
        let (mut scalar, mut record) = (Scalar(0.0), Vec::new());
        let config = JobConfig::default();
        let mut trainer =
            Trainer::elastic(comm, &mut scalar, settings, config, &mut record).unwrap();
        for step in 0..steps {
            let part = Part { batch: Some(1.0), total: 1 };
            trainer.step(&mut scalar, &[part], 1.0).unwrap();
            record.push(step);
        }
        (trainer, scalar, record)
    }

    /// A rank may be lost when some of the others have completed a step and some have not.
    #[test]
    fn all_ranks_take_over_the_record_of_the_rank_whose_parameters_they_take_over() {
        let expected = |steps: usize| {
            let (_, Scalar(value), record) = trained(steps);
            (steps as u64, value, record)
        };
        for steps in [&[1, 2][..], &[2, 1], &[1, 1, 2], &[0, 2, 1], &[1, 2, 2]] {
            let ranks = Communicator::local(steps.len()).unwrap().into_iter().zip(steps);
            let join = |(comm, steps): (Communicator, &usize)| {
                let steps = *steps;
                thread::spawn(move || {
                    let (mut trainer, mut scalar, mut record) = trained(steps);
                    trainer.take_over(comm);
                    trainer.settle(&mut scalar, &mut record).unwrap();
                    (trainer.steps(), scalar.0, record)
                })
            };
            let ranks: Vec<_> = ranks.map(join).collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), expected(2), "{steps:?}");
            }
        }
    }
}
