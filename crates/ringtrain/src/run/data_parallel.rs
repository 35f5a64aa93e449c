//! Strategies whose ranks have the whole model, and take a part of each batch.

use candle_core::D;
use ringreduce::{Communicator, ReduceOp};
use strategy::{JobConfig, Part, Step, Strategy, SyncBatchNorm, Trainer};

use super::engine::{Division, Done, Engine, Pieces, Tested};
use super::history::History;
use super::job::Job;
use crate::checkpoint::{Buffers, Snapshot, buffers, set_buffers};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::Network;

/// A network, and the trainer that keeps it equal at all ranks.
pub(crate) struct DataParallel {
    trainer: Trainer,
    network: Network,
    synchronises: bool,
}

/// What batch norm adds to the variance, which plays no part in sums.
const EPSILON: f64 = 1e-5;

/// The network of a job, whose first weights are the same at all ranks.
pub(crate) fn network(job: &Job) -> Result<Network> {
    let (data, settings) = (&job.data, &job.settings);
    let mut network = Network::new(settings.model, data.shape, data.classes.len(), settings.seed)?;
    if let Some(weights) = job.weights() {
        weights.give(&network, &settings.weights_except)?;
    }
    for prefix in &settings.freeze {
        if network.freeze(prefix) == 0 {
            let layers: Vec<&str> = network.layers().iter().map(|layer| layer.name()).collect();
            return Err(Error::Unfit(format!(
                "--freeze {prefix} is the beginning of no parameter's name: the layers are {}",
                layers.join(", ")
            )));
        }
    }
    if network.vars().is_empty() {
        let prefixes = settings.freeze.join(" --freeze ");
        return Err(Error::Unfit(format!(
            "--freeze {prefixes} leaves nothing to train: freeze fewer layers"
        )));
    }
    Ok(network)
}

/// How a network classifies images.
pub(crate) fn test(network: &Network, batch: &Batch) -> Result<Tested> {
    let scores = network.forward(&batch.images, false)?;
    let hits = scores.argmax(D::Minus1)?.eq(&batch.labels)?.to_vec1::<u8>()?;
    let loss = Network::loss(&scores, &batch.labels)?.to_scalar::<f32>()?;
    let right = hits.into_iter().map(u64::from).sum();
    Ok(Tested { right, diverged: u64::from(!loss.is_finite()) })
}

/// A digest of a network's trained values.
pub(crate) fn digest(network: &Network) -> Result<u64> {
    let mut digest = 0_u64;
    for (_, var) in network.vars() {
        for value in var.flatten_all()?.to_vec1::<f32>()? {
            let mixed = digest ^ u64::from(value.to_bits());
            digest = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    Ok(digest)
}

impl DataParallel {
    /// All ranks call this; also one that joins others, whose state and history it gets. Ranks that
    /// are processes can go on without lost ones, for which sharded and central strategies keep
    /// copies.
    pub(crate) fn new(
        comm: Communicator,
        job: &Job,
        (strategy, config): (Strategy, JobConfig),
        (are_processes, history): (bool, &mut History),
    ) -> Result<Self> {
        let (settings, mut network) = (&job.settings, network(job)?);
        let settings = strategy::Settings {
            strategy,
            optimizer: settings.optimizer(),
            clip_norm: settings.clip_norm,
            buckets: settings.buckets(),
        };
        let trainer = if are_processes && comm.size() > 1 {
            Trainer::elastic(comm, &mut network, settings, config, history)?
        } else {
            Trainer::new(comm, &mut network, settings)?
        };
        let synchronises = job.settings.sync_batch_norm && !network.buffers().is_empty();
        let mut engine = Self { trainer, network, synchronises };
        match engine.synchronise() {
            Err(Error::Collective(lost)) if are_processes => engine.recover(lost, history),
            done => done.map(|()| engine),
        }
    }

    /// Gives all ranks what batch norm has learnt at the first one, which has the state, and batch
    /// norm the present ranks, by a communicator of its own.
    fn synchronise(&mut self) -> Result<()> {
        let mut learnt = buffers(&self.network)?;
        if !learnt.is_empty() {
            self.call(|comm| comm.broadcast_object(&mut learnt, 0))?;
            set_buffers(&self.network, &learnt)?;
        }
        if self.synchronises {
            let comm = self.call(|comm| comm.duplicate())?;
            self.network.synchronise(Box::new(SyncBatchNorm::new(comm, EPSILON)));
        }
        Ok(())
    }

    /// The average over the ranks of what batch norm has learnt: as `f64`, of which a narrow type
    /// on the wire takes nothing away. Moving averages that go on from it have the same average
    /// later as those that each rank goes on with.
    fn average_buffers(&mut self) -> Result<Buffers> {
        let mut values = buffers(&self.network)?;
        for values in values.values_mut() {
            let mut averages: Vec<f64> = values.iter().copied().map(f64::from).collect();
            self.call(|comm| comm.all_reduce(&mut averages, ReduceOp::Avg))?;
            values.iter_mut().zip(averages).for_each(|(to, average)| *to = average as f32);
        }
        Ok(values)
    }
}

impl Engine for DataParallel {
    fn division(&self) -> Division {
        Division::ByRank
    }

    fn pieces(&self, job: &Job) -> usize {
        job.settings.accumulate
    }

    fn parameters(&self) -> usize {
        self.network.vars().iter().map(|(_, var)| var.elem_count()).sum()
    }

    fn digest(&self) -> Result<u64> {
        digest(&self.network)
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn is_state_lost(&self) -> bool {
        self.trainer.is_state_lost()
    }

    fn step(&mut self, pieces: Pieces, rate: f32) -> Result<Done> {
        let Pieces { batches, total } = pieces;
        let parts: Vec<_> = batches.into_iter().map(|batch| Part { batch, total }).collect();
        let Step { loss, times } = self.trainer.step(&mut self.network, &parts, rate)?;
        Ok(Done { loss, exposed: times.exposed, hidden: times.hidden() })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        let values = self.average_buffers()?;
        set_buffers(&self.network, &values)
    }

    fn test(&mut self, batch: &Batch) -> Result<Tested> {
        test(&self.network, batch)
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        let buffers = self.average_buffers()?;
        Ok(self.trainer.state()?.map(|state| Snapshot { state, buffers }))
    }

    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        self.trainer.load_state(&mut self.network, snapshot.map(|it| &it.state))?;
        let mut values =
            snapshot.map_or_else(|| buffers(&self.network), |it| Ok(it.buffers.clone()))?;
        self.call(|comm| comm.broadcast_object(&mut values, 0))?;
        set_buffers(&self.network, &values)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> R {
        self.trainer.with_communicator(call)
    }

    fn recover(mut self, lost: ringreduce::Error, history: &mut History) -> Result<Self> {
        let mut lost = lost;
        loop {
            self.trainer.recover(lost.into(), &mut self.network, history)?;
            match self.synchronise() {
                // Another rank was lost meanwhile.
                Err(Error::Collective(again)) => lost = again,
                done => return done.map(|()| self),
            }
        }
    }

    fn grow(&mut self, history: &mut History) -> Result<bool> {
        let has_grown = self.trainer.grow(&mut self.network, history)?;
        if has_grown {
            self.synchronise()?;
        }
        Ok(has_grown)
    }
}
