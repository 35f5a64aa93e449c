//! Pipelines: each rank has some consecutive layers, a stage. Model parallelism is a pipeline of
//! one micro-batch.

use std::ops::Range;
use std::time::Duration;

use candle_core::{Device, Tensor, Var};
use ringreduce::Communicator;
use serde::Serialize;
use strategy::{PipelineSettings, PipelineStep, PipelineTrainer, balanced_stages, bubble};

use super::data_parallel::{digest, network, test};
use super::engine::{Division, Done, Engine, Pieces, Tested};
use super::history::History;
use super::job::Job;
use super::rejoin::Rejoin;
use super::world::sent_bytes;
use crate::checkpoint::{Snapshot, buffers, set_buffers};
use crate::cli::StrategyName;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::Network;
use crate::parallel::{NetworkStage, layer_of, layer_seconds};

/// What a pipeline says at the end.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineOutcome {
    /// The number of layers of each rank.
    pub layers: Vec<usize>,
    /// The most micro-batches whose activations this rank has held at a time.
    pub most_held: usize,
}

/// A rank's stage, and its trainer.
pub(crate) struct Pipelined<'a> {
    rejoin: Rejoin<'a>,
    comm: Communicator,
    trainer: PipelineTrainer,
    stage: NetworkStage,
    /// The layers of each rank.
    stages: Vec<Range<usize>>,
    /// The steps that this value has made, and the sum over them of the share of the time in which
    /// stages wait.
    measured: (u64, f64),
}

/// The micro-batches of a step.
fn micro_batches(job: &Job) -> usize {
    match job.settings.strategy {
        StrategyName::Pipeline => job.settings.micro_batches,
        _ => 1,
    }
}

/// This rank's stage, its trainer, and the layers of each rank.
fn own_stage(
    comm: &mut Communicator,
    job: &Job,
) -> Result<(PipelineTrainer, NetworkStage, Vec<Range<usize>>)> {
    let (settings, network) = (&job.settings, network(job)?);
    let (rank, size, layers) = (comm.rank(), comm.size(), network.layers().len());
    if size > layers {
        return Err(Error::Unfit(format!(
            "{size} ranks can't share {layers} layers: use {layers} ranks at most"
        )));
    }
    // One rank measures for all, since the figures differ.
    let mut costs = match rank {
        0 => layer_seconds(&network, job.data.shape, settings.batch / micro_batches(job))?,
        _ => Vec::new(),
    };
    comm.broadcast_object(&mut costs, 0)?;
    let stages = balanced_stages(&costs, size);
    let mut stage = NetworkStage::new(network, job.data.shape, stages[rank].clone())?;
    let settings = PipelineSettings {
        stages: size,
        schedule: settings.order.schedule(),
        optimizer: settings.optimizer(),
        clip_norm: settings.clip_norm,
    };
    let trainer = PipelineTrainer::new(comm.duplicate()?, &mut stage, settings)?;
    Ok((trainer, stage, stages))
}

impl<'a> Pipelined<'a> {
    /// All ranks call this, those that are left after a loss with its error and their steps.
    pub(crate) fn new(
        comm: Communicator,
        mut rejoin: Rejoin<'a>,
        lost: Option<(ringreduce::Error, u64)>,
    ) -> Result<Self> {
        let (comm, (trainer, stage, stages)) = rejoin.begin(comm, lost, own_stage)?;
        Ok(Self { rejoin, comm, trainer, stage, stages, measured: (0, 0.0) })
    }

    fn outcome(&self) -> PipelineOutcome {
        let layers = self.stages.iter().map(Range::len).collect();
        PipelineOutcome { layers, most_held: self.stage.most_held() }
    }

    fn network(&self) -> &Network {
        self.stage.network()
    }

    /// The rank whose stage has this parameter or buffer.
    fn owner(&self, name: &str) -> usize {
        let layer = layer_of(self.network(), name).unwrap_or(0);
        self.stages.iter().position(|stage| stage.contains(&layer)).unwrap_or(0)
    }

    /// Gives all ranks these values of their owners.
    fn share(&mut self, vars: &[(String, Var)]) -> Result<()> {
        for (name, var) in vars {
            let mut values = var.flatten_all()?.to_vec1::<f32>()?;
            let owner = self.owner(name);
            self.comm.broadcast(&mut values, owner)?;
            var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }
}

impl Engine for Pipelined<'_> {
    fn division(&self) -> Division {
        Division::Whole
    }

    /// After [`Self::prepare_tests`] each rank has all layers.
    fn test_division(&self) -> Division {
        Division::ByRank
    }

    fn pieces(&self, job: &Job) -> usize {
        micro_batches(job)
    }

    fn parameters(&self) -> usize {
        self.network().vars().iter().map(|(_, var)| var.elem_count()).sum()
    }

    fn digest(&self) -> Result<u64> {
        digest(self.network())
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn step(&mut self, pieces: Pieces, rate: f32) -> Result<Done> {
        let batches: Vec<Batch> = pieces.batches.into_iter().flatten().collect();
        let count = batches.len();
        self.stage.set_batch(batches, pieces.total);
        let PipelineStep { loss, times, bubble } =
            self.trainer.step(&mut self.stage, count, rate)?;
        self.measured = (self.measured.0 + 1, self.measured.1 + bubble);
        Ok(Done { loss, exposed: times.idle, hidden: Duration::ZERO })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        let (vars, buffers) = (self.network().vars().to_vec(), self.network().buffers().to_vec());
        self.share(&vars)?;
        self.share(&buffers)
    }

    fn test(&mut self, batch: &Batch) -> Result<Tested> {
        test(self.network(), batch)
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        let shared = self.network().buffers().to_vec();
        self.share(&shared)?;
        let buffers = buffers(self.network())?;
        let state = self.trainer.state(&self.stage)?;
        Ok(state.map(|state| Snapshot { state, buffers }))
    }

    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        self.trainer.load_state(&mut self.stage, snapshot.map(|it| &it.state))?;
        let mut values = match snapshot {
            Some(snapshot) => snapshot.buffers.clone(),
            None => buffers(self.network())?,
        };
        self.comm.broadcast_object(&mut values, 0)?;
        set_buffers(self.network(), &values)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> R {
        call(&mut self.comm)
    }

    fn recover(self, lost: ringreduce::Error, history: &mut History) -> Result<Self> {
        let Self { rejoin, comm, trainer, .. } = self;
        let steps = trainer.steps();
        // Other ranks may wait for activations of this one until it has closed its communicator.
        drop(trainer);
        *history = History::default();
        Self::new(comm, rejoin, Some((lost, steps)))
    }

    fn sent_bytes(&mut self) -> u64 {
        self.trainer.monitors().iter().map(sent_bytes).sum()
    }

    fn notes(&self) -> Vec<String> {
        let (steps, bubbles) = self.measured;
        let measured = bubbles / steps.max(1) as f64;
        let formula = bubble(self.stages.len(), micro_batches(self.rejoin.job));
        let PipelineOutcome { layers, most_held } = self.outcome();
        vec![format!(
            "layers by rank {layers:?}; ranks waited {:.1} % of each step, by formula {:.1} %; \
             rank 0 held activations of {most_held} micro-batches at most",
            measured * 100.0,
            formula * 100.0
        )]
    }

    fn pipeline(&self) -> Option<PipelineOutcome> {
        Some(self.outcome())
    }
}
