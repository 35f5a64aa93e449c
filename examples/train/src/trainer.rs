//! Steps and epochs of data-parallel training with momentum. May touch the group, the model and
//! the data; prints nothing. Law: parameters and momentum are bitwise the same on every rank,
//! because all start from rank 0's and every update uses only averaged gradients.

use std::time::Instant;

use candle_core::{D, Error as ModelError};
use candle_nn::loss::cross_entropy;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use ringreduce::Communicator;

use crate::bucket::{Flat, average};
use crate::cli::Settings;
use crate::data::{Dataset, Split};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::model::LeNet;
use crate::report::EpochReport;

/// Images that are tested at once; bounds the memory.
const TEST_BATCH: usize = 250;

/// One rank's part of the training.
#[derive(Debug)]
pub struct Trainer {
    group: Group,
    model: LeNet,
    flat: Flat,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    velocity: Vec<f32>,
    settings: Settings,
    /// Shuffled anew for each epoch, from the same seed on every rank.
    order: Vec<usize>,
    rng: StdRng,
}

impl Trainer {
    /// Makes the network for `data` and gives every rank the first weights of rank 0.
    ///
    /// # Errors
    /// If the settings fit neither the data nor the world size, or a collective fails.
    pub fn new(comm: Communicator, data: &Dataset, settings: Settings) -> Result<Self> {
        let mut group = Group::new(comm);
        let (batch, size, count) = (settings.batch, group.size(), data.train.len());
        if !batch.is_multiple_of(size) {
            return Err(Error::Unfit(format!(
                "--batch {batch} does not divide among {size} ranks: make it a multiple of {size}"
            )));
        }
        if batch > count {
            return Err(Error::Unfit(format!(
                "--batch {batch} is more than the {count} training images: make it smaller"
            )));
        }
        let images = &data.train.images;
        // Each rank draws its own: it is the broadcast that makes them equal.
        let seed = settings.seed.wrapping_add(group.rank() as u64);
        let model = LeNet::new(images.rows, images.columns, seed)?;
        let flat = Flat::new(model.vars());
        let mut parameters = Vec::new();
        flat.gather(&mut parameters, |var| Ok(var.as_tensor()))?;
        group.broadcast(&mut parameters)?;
        flat.scatter(&parameters)?;
        Ok(Self {
            group,
            model,
            flat,
            gradients: Vec::with_capacity(parameters.len()),
            velocity: vec![0.0; parameters.len()],
            parameters,
            order: (0..count).collect(),
            rng: StdRng::seed_from_u64(settings.seed),
            settings,
        })
    }

    /// The network's parameters as one vector.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Whole batches in the training images.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        self.order.len() / self.settings.batch
    }

    /// Goes once through the training images, then tests; `tick` is called after each step.
    ///
    /// # Errors
    /// If a collective or the framework fails, or the loss leaves the numbers.
    pub fn epoch(
        &mut self,
        data: &Dataset,
        number: usize,
        mut tick: impl FnMut(),
    ) -> Result<EpochReport> {
        let (start, spent) = (Instant::now(), self.group.spent());
        self.order.shuffle(&mut self.rng);
        let (batch, share) = (self.settings.batch, self.settings.batch / self.group.size());
        let mut losses = Vec::with_capacity(self.steps_per_epoch());
        let steps = self.steps_per_epoch();
        for step in 0..steps {
            let mine = step * batch + self.group.rank() * share;
            let indices = self.order[mine..mine + share].to_vec();
            let done = ((number - 1) * steps + step) as f32;
            let rate = self.settings.lr * (1.0 - done / (self.settings.epochs * steps) as f32);
            losses.push(self.step(&data.train, &indices, rate)?);
            tick();
        }
        self.group.average(&mut losses)?;
        let seconds = start.elapsed().as_secs_f64();
        let communicating = (self.group.spent() - spent).as_secs_f64();
        if let Some(step) = losses.iter().position(|loss| !loss.is_finite()) {
            return Err(Error::Diverged { epoch: number, step: step + 1, loss: losses[step] });
        }
        let images = losses.len() * batch;
        let accuracy = self.accuracy(&data.test)?;
        Ok(EpochReport { epoch: number, losses, accuracy, images, seconds, communicating })
    }

    /// One update from this rank's share of a batch; its loss before the update.
    fn step(&mut self, train: &Split, indices: &[usize], rate: f32) -> Result<f32> {
        let (images, classes) = train.batch(indices)?;
        let loss = cross_entropy(&self.model.forward(&images)?, &classes)?;
        let grads = loss.backward()?;
        self.flat.gather(&mut self.gradients, |var| {
            let missing = || ModelError::Msg("a variable has no gradient".into());
            Ok(grads.get(var).ok_or_else(missing)?)
        })?;
        average(&mut self.group, &mut self.gradients, self.settings.bucket_bytes)?;
        let momentum = self.settings.momentum;
        let state = self.parameters.iter_mut().zip(&mut self.velocity).zip(&self.gradients);
        for ((parameter, velocity), gradient) in state {
            *velocity = momentum * *velocity + gradient;
            *parameter -= rate * *velocity;
        }
        self.flat.scatter(&self.parameters)?;
        Ok(loss.to_scalar()?)
    }

    /// The share of test images that the network knows; each rank looks at its part of them.
    fn accuracy(&mut self, test: &Split) -> Result<f64> {
        let mine: Vec<usize> = (self.group.rank()..test.len()).step_by(self.group.size()).collect();
        let mut right = 0;
        for indices in mine.chunks(TEST_BATCH) {
            let (images, classes) = test.batch(indices)?;
            let found = self.model.forward(&images)?.argmax(D::Minus1)?;
            let hits = found.eq(&classes)?.to_vec1::<u8>()?;
            right += hits.into_iter().map(u64::from).sum::<u64>();
        }
        let mut counts = [right, mine.len() as u64];
        self.group.sum(&mut counts)?;
        Ok(counts[0] as f64 / counts[1] as f64)
    }
}
