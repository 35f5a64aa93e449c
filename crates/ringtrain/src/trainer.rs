//! Steps and epochs of data-parallel training with momentum, also when ranks leave or join. Law:
//! parameters and momentum are bitwise the same on every rank, because all start from those of one
//! rank and every update uses averaged gradients.

use std::time::Instant;

use candle_core::{D, Error as ModelError};
use candle_nn::loss::cross_entropy;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use ringreduce::Communicator;

use crate::bucket::{Flat, average};
use crate::cli::Settings;
use crate::data::{Batch, Dataset, Samples};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::models::{ModelKind, Network};
use crate::progress::Progress;
use crate::report::EpochReport;

/// The images of one test batch, which bounds the memory.
const TEST_BATCH: usize = 250;

/// One rank's part of the training.
#[derive(Debug)]
pub struct Trainer {
    pub(crate) group: Group,
    model: Network,
    pub(crate) flat: Flat,
    pub(crate) parameters: Vec<f32>,
    gradients: Vec<f32>,
    pub(crate) velocity: Vec<f32>,
    settings: Settings,
    /// The progress of this rank; none if it has joined and has no state yet.
    pub(crate) progress: Option<Progress>,
    /// True if all ranks have the progress of this one.
    pub(crate) is_level: bool,
    images: usize,
    lose_at: Option<usize>,
}

impl Trainer {
    /// Makes the network for `data` and gives every rank the first weights of rank 0; a rank that
    /// joins later gets the present state.
    pub fn new(comm: Communicator, data: &Dataset, settings: Settings) -> Result<Self> {
        let group = Group::new(comm);
        let (batch, size, count) = (settings.batch, group.size(), data.train.len());
        let is_new = group.epoch() > 0;
        if !is_new && !batch.is_multiple_of(size) {
            return Err(Error::Unfit(format!(
                "--batch {batch} does not divide among {size} ranks: make it a multiple of {size}"
            )));
        }
        if batch > count {
            return Err(Error::Unfit(format!(
                "--batch {batch} is more than the {count} training images: make it smaller"
            )));
        }
        // Each rank draws its own weights, and then receives those of rank 0.
        let seed = settings.seed.wrapping_add(group.rank() as u64);
        let model = Network::new(ModelKind::LeNet, data.shape, data.classes.len(), seed)?;
        let flat = Flat::new(model.vars());
        let mut parameters = Vec::new();
        flat.gather(&mut parameters, |var| Ok(var.as_tensor()))?;
        let mut trainer = Self {
            group,
            model,
            flat,
            gradients: Vec::with_capacity(parameters.len() + 1),
            velocity: vec![0.0; parameters.len()],
            parameters,
            settings,
            progress: (!is_new).then(Progress::default),
            is_level: false,
            images: count,
            lose_at: None,
        };
        trainer.persist(Self::level)?;
        Ok(trainer)
    }

    /// The last one of the first ranks aborts in this step, counted from 1.
    pub fn lose_at(&mut self, step: Option<usize>) {
        let is_last = self.group.epoch() == 0 && self.group.rank() + 1 == self.group.size();
        self.lose_at = step.filter(|_| is_last);
    }

    /// The network's parameters as one vector.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Whole batches in the training images.
    pub fn steps_per_epoch(&self) -> usize {
        self.images / self.settings.batch
    }

    pub fn epochs(&self) -> &[EpochReport] {
        self.progress.as_ref().map_or(&[], |progress| &progress.epochs)
    }

    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// Goes once through the training images, then tests; `tick` is called after each step.
    pub fn epoch(&mut self, data: &Dataset, mut tick: impl FnMut()) -> Result<EpochReport> {
        let (start, spent, done) = (Instant::now(), self.group.spent(), self.epochs().len());
        let mut order: Vec<usize> = (0..self.images).collect();
        let mut rng = StdRng::seed_from_u64(self.settings.seed);
        // An epoch shuffles the order of the last one, which a rank that joins can compute too.
        (0..=done).for_each(|_| order.shuffle(&mut rng));
        let steps = self.steps_per_epoch();
        loop {
            self.persist(Self::level)?;
            // Other ranks may have completed the epoch.
            if let Some(epoch) = self.epochs().get(done) {
                return Ok(epoch.clone());
            }
            let losses = self.progress.as_ref().map_or(&[][..], |progress| &progress.losses);
            let at = losses.len();
            if at < steps {
                let loss = self.persist_once(|trainer| trainer.step_of(data, &order, done, at))?;
                if let (Some(loss), Some(progress)) = (loss, &mut self.progress) {
                    progress.losses.push(loss);
                    tick();
                    // Ranks join only here, before all take over one state and make the next step.
                    self.persist_once(Self::let_in)?;
                }
                continue;
            }
            let losses = losses.to_vec();
            let seconds = start.elapsed().as_secs_f64();
            let communicating = (self.group.spent() - spent).as_secs_f64();
            let Some(accuracy) = self.persist_once(|trainer| trainer.accuracy(&data.test))? else {
                continue;
            };
            let (epoch, images) = (done + 1, steps * self.settings.batch);
            let report = EpochReport { epoch, losses, accuracy, images, seconds, communicating };
            if let Some(progress) = &mut self.progress {
                progress.losses.clear();
                progress.epochs.push(report.clone());
            }
            return Ok(report);
        }
    }

    /// A digest of the weights.
    pub fn digest(&mut self) -> Result<u64> {
        loop {
            let bits = self.parameters.iter().map(|parameter| u64::from(parameter.to_bits()));
            let digest = bits.fold(0, |digest: u64, bits| {
                (digest ^ bits).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
            });
            let ends = self.persist_once(|trainer| {
                trainer.level()?;
                Ok((trainer.group.most(digest)?, !trainer.group.most(!digest)?))
            })?;
            match ends {
                Some((most, least)) if most == least => return Ok(digest),
                Some(_) => return Err(Error::Unfit("the ranks' weights differ".into())),
                None => {}
            }
        }
    }

    /// One step of an epoch, from this rank's part of a batch; the loss of all before it.
    fn step_of(&mut self, data: &Dataset, order: &[usize], done: usize, at: usize) -> Result<f32> {
        let (steps, batch, size) = (self.steps_per_epoch(), self.settings.batch, self.group.size());
        let part = |rank: usize| at * batch + rank * batch / size;
        let mine = part(self.group.rank())..part(self.group.rank() + 1);
        // A part weighs in the average by its length.
        let weight = (mine.len() * size) as f32 / batch as f32;
        let number = done * steps + at;
        let rate = 1.0 - number as f32 / (self.settings.epochs * steps) as f32;
        let loss =
            self.step(&data.train, &order[mine], self.settings.lr * rate, weight, number + 1)?;
        if !loss.is_finite() {
            return Err(Error::Diverged { epoch: done + 1, step: at + 1, loss });
        }
        Ok(loss)
    }

    /// One update, which changes nothing if it fails.
    fn step(
        &mut self,
        train: &Samples,
        indices: &[usize],
        rate: f32,
        weight: f32,
        number: usize,
    ) -> Result<f32> {
        let Batch { images, labels: classes } = train.batch(indices)?;
        let loss = cross_entropy(&self.model.forward(&images, true)?, &classes)?;
        let grads = loss.backward()?;
        self.flat.gather(&mut self.gradients, |var| {
            let missing = || ModelError::Msg("a variable has no gradient".into());
            Ok(grads.get(var).ok_or_else(missing)?)
        })?;
        if self.lose_at == Some(number) {
            std::process::abort();
        }
        self.gradients.push(loss.to_scalar()?);
        self.gradients.iter_mut().for_each(|gradient| *gradient *= weight);
        average(&mut self.group, &mut self.gradients, self.settings.bucket_bytes)?;
        let loss = self.gradients.pop().unwrap_or(f32::NAN);
        let momentum = self.settings.momentum;
        let state = self.parameters.iter_mut().zip(&mut self.velocity).zip(&self.gradients);
        for ((parameter, velocity), gradient) in state {
            *velocity = momentum * *velocity + gradient;
            *parameter -= rate * *velocity;
        }
        self.flat.scatter(&self.parameters)?;
        Ok(loss)
    }

    /// The share of test images that are classified right; each rank tests its part.
    fn accuracy(&mut self, test: &Samples) -> Result<f64> {
        let mine: Vec<usize> = (self.group.rank()..test.len()).step_by(self.group.size()).collect();
        let mut right = 0;
        for indices in mine.chunks(TEST_BATCH) {
            let Batch { images, labels: classes } = test.batch(indices)?;
            let found = self.model.forward(&images, false)?.argmax(D::Minus1)?;
            let hits = found.eq(&classes)?.to_vec1::<u8>()?;
            right += hits.into_iter().map(u64::from).sum::<u64>();
        }
        let mut counts = [right, mine.len() as u64];
        self.group.sum(&mut counts)?;
        Ok(counts[0] as f64 / counts[1] as f64)
    }
}
