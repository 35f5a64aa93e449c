//! Strategies whose ranks have the whole model, and take a part of each batch.

use ringreduce::{Communicator, ReduceOp};
use strategy::{
    CrossDeviceOp, JobConfig, Part, Step, Strategy, SyncBatchNorm, Trainer, sent_bytes,
};

use super::flow::{Flow, What};
use super::{Sizes, Way};
use crate::checkpoint::{Buffers, Snapshot, buffers, set_buffers};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::{EPSILON, Network};
use crate::run::{Division, Done, Engine, Extras, History, Job, Outcome, train_by};

pub(super) static MIRRORED: Way = way(
    Strategy::Mirrored(CrossDeviceOp::AllReduce),
    "Each rank has the model; gradients are all-reduced during the backward pass",
    Flow::ring(&[What::Gradients], "gradients go round a ring; all update"),
);
pub(super) static HIERARCHICAL_COPY: Way = way(
    Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy),
    "The same, summed and copied back along a binomial tree",
    Flow::tree("sums go up a tree and come back"),
);
pub(super) static ONE_DEVICE: Way = way(
    Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice),
    "The same, summed at rank 0, then broadcast",
    Flow::star(None, What::Gradients, "rank 0 sums and broadcasts"),
);
pub(super) static CENTRAL_STORAGE: Way = way(
    Strategy::CentralStorage,
    "Rank 0 has the variables and updates them",
    Flow::star(Some("0"), What::Parameters, "rank 0 updates; variables come back"),
);
pub(super) static NAIVE: Way = way(
    Strategy::Naive,
    "Rank 0 adds up copies of all gradients and sends the sum back",
    Flow::star(None, What::Gradients, "copies to rank 0, copies of the sum back"),
);
pub(super) static SHARDED_OPTIMIZER: Way = way(
    Strategy::ShardedOptimizer,
    "Each rank has a part of the optimizer's state (ZeRO 1)",
    Flow::ring(&[What::Gradients, What::Parameters], "each rank updates a part, then shares it"),
);
pub(super) static SHARDED_GRADIENTS: Way = way(
    Strategy::ShardedGradients,
    "Each rank has a part of the gradients, too (ZeRO 2)",
    Flow::ring(
        &[What::Gradients, What::Parameters],
        "each rank keeps the gradients of its part only",
    ),
);

const fn way(strategy: Strategy, help: &'static str, flow: Flow) -> Way {
    Way {
        name: strategy.name(),
        help,
        trainer: Some(strategy),
        options: &["accumulate", "bucket_bytes", "sync_batch_norm", "lose", "clip_norm", "warmup"],
        splits_parameters: strategy.is_sharded(),
        check: |job, size| job.check_share(size, "ranks"),
        ranks: |_| Ok(1..=usize::MAX),
        flow,
        bytes,
        start,
    }
}

fn strategy(job: &Job) -> Result<Strategy> {
    let Way { name, trainer, .. } = job.settings.strategy.way();
    trainer.ok_or_else(|| Error::Unfit(format!("--strategy {name} has no trainer of whole models")))
}

/// A ring's all-reduce sends 2(n-1)/n S per rank, where S are the bytes of all gradients and n the
/// ranks; the naive one (n-1) S at rank 0 and S elsewhere.
fn bytes(job: &Job, &Sizes { gradients, ranks, .. }: &Sizes<'_>) -> Result<Vec<u64>> {
    let strategy = strategy(job)?;
    Ok((0..ranks).map(|rank| sent_bytes(strategy, gradients, rank, ranks)).collect())
}

fn start(comm: Communicator, job: &Job, config: JobConfig, extras: &Extras<'_>) -> Result<Outcome> {
    train_by(job, extras, (comm.rank(), comm.size()), |history| {
        DataParallel::new(comm, job, config, (extras.are_processes, history))
    })
}

/// A network, and the trainer that keeps it equal at all ranks.
struct DataParallel {
    trainer: Trainer,
    network: Network,
    synchronises: bool,
}

impl DataParallel {
    /// All ranks call this; also one that joins others, whose state and history it gets. Ranks that
    /// are processes can go on without lost ones, for which sharded and central strategies keep
    /// copies.
    fn new(
        comm: Communicator,
        job: &Job,
        config: JobConfig,
        (are_processes, history): (bool, &mut History),
    ) -> Result<Self> {
        let (settings, mut network) = (&job.settings, job.network()?);
        let settings = strategy::Settings {
            strategy: strategy(job)?,
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
        if !self.network.buffers().is_empty() {
            self.pass_buffers(None)?;
        }
        if self.synchronises {
            let comm = self.trainer.with_communicator(|comm| comm.duplicate())?;
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
            self.call(|comm| comm.all_reduce(&mut averages, ReduceOp::Avg)).transpose()?;
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

    fn network(&self) -> &Network {
        &self.network
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn is_state_lost(&self) -> bool {
        self.trainer.is_state_lost()
    }

    fn step(&mut self, pieces: Vec<Part<Batch>>, rate: f32) -> Result<Done> {
        let Step { loss, times } = self.trainer.step(&mut self.network, &pieces, rate)?;
        Ok(Done { loss, exposed: times.exposed, hidden: times.hidden(), has_changed: false })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        let values = self.average_buffers()?;
        set_buffers(&self.network, &values)
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        let buffers = self.average_buffers()?;
        Ok(self.trainer.state()?.map(|state| Snapshot { state, buffers }))
    }

    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        self.trainer.load_state(&mut self.network, snapshot.map(|it| &it.state))?;
        self.pass_buffers(snapshot)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> Option<R> {
        Some(self.trainer.with_communicator(call))
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
