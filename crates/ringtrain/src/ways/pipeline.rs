//! Pipelines: each rank has some consecutive layers, a stage. Model parallelism is a pipeline of
//! one micro-batch.

use std::ops::Range;

use candle_core::{Device, Tensor, Var};
use ringreduce::Communicator;
use strategy::{
    JobConfig, Part, PipelineSettings, PipelineStep, PipelineTrainer, balanced_stages, bubble,
};

use super::flow::Flow;
use super::{Sizes, Way};
use crate::checkpoint::{Snapshot, buffers};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::Network;
use crate::parallel::{NetworkStage, input_shapes, layer_of, layer_seconds};
use crate::run::{
    Division, Done, Engine, Extras, History, Job, Outcome, PipelineOutcome, Rejoin, sent_bytes,
    train_by, unfit,
};

pub(super) static PIPELINE: Way = way(
    "pipeline",
    "Layers are split over ranks; micro-batches follow each other",
    &["micro_batches", "order", "lose", "clip_norm", "warmup", "patience"],
    Flow::row("layers by rank; micro-batches follow each other"),
);
pub(super) static MODEL_PARALLEL: Way = way(
    "model-parallel",
    "Layers are split over ranks; one rank computes at a time",
    &["lose", "clip_norm", "warmup", "patience"],
    Flow::row("layers by rank; one computes at a time"),
);

const fn way(
    name: &'static str,
    help: &'static str,
    options: &'static [&'static str],
    flow: Flow,
) -> Way {
    Way {
        name,
        help,
        trainer: None,
        options,
        splits_parameters: false,
        check,
        ranks: |job| Ok(1..=job.network()?.layers().len()),
        flow,
        bytes,
        start,
    }
}

fn check(job: &Job, _: usize) -> Result<()> {
    let batch = job.settings.batch;
    match micro_batches(job) {
        count if count > batch => {
            unfit(format!("--micro-batches {count} is more than --batch {batch}: make it smaller"))
        }
        _ => Ok(()),
    }
}

/// A stage sends the activations of all samples of a step forward, and the gradient of its inputs
/// back: 2mA in m micro-batches if both have A bytes in each. There is one pipeline, so no
/// gradients are added up over replicas.
fn bytes(job: &Job, Sizes { stages, .. }: &Sizes<'_>) -> Result<Vec<u64>> {
    let shapes = input_shapes(&job.network()?, job.data.shape)?;
    let start = |stage: usize| stages[..stage].iter().sum::<usize>();
    let before = |stage: usize| job.bytes_per_epoch(shapes[start(stage)].iter().product());
    let by = |stage: usize| {
        let forward = if stage + 1 < stages.len() { before(stage + 1) } else { 0 };
        let back = if stage > 0 { before(stage) } else { 0 };
        (forward + back) / job.steps_per_epoch() as u64
    };
    Ok((0..stages.len()).map(by).collect())
}

fn start(comm: Communicator, job: &Job, config: JobConfig, extras: &Extras<'_>) -> Result<Outcome> {
    train_by(job, extras, (comm.rank(), comm.size()), |_| {
        Pipelined::new(comm, Rejoin::new(job, &config, extras), None)
    })
}

/// A rank's stage, and its trainer.
struct Pipelined<'a> {
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
    if job.settings.strategy.has("micro_batches") { job.settings.micro_batches } else { 1 }
}

/// This rank's stage, its trainer, and the layers of each rank.
fn own_stage(
    comm: &mut Communicator,
    job: &Job,
) -> Result<(PipelineTrainer, NetworkStage, Vec<Range<usize>>)> {
    let (settings, network) = (&job.settings, job.network()?);
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
    fn new(
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

    fn network(&self) -> &Network {
        self.stage.network()
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn step(&mut self, pieces: Vec<Part<Batch>>, rate: f32) -> Result<Done> {
        let total = pieces.first().map_or(0, |piece| piece.total);
        let batches: Vec<Batch> = pieces.into_iter().filter_map(|piece| piece.batch).collect();
        let count = batches.len();
        self.stage.set_batch(batches, total);
        let PipelineStep { loss, times, bubble } =
            self.trainer.step(&mut self.stage, count, rate)?;
        self.measured = (self.measured.0 + 1, self.measured.1 + bubble);
        Ok(Done { loss, exposed: times.idle, ..Done::default() })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        let (vars, buffers) = (self.network().vars().to_vec(), self.network().buffers().to_vec());
        self.share(&vars)?;
        self.share(&buffers)
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
        self.pass_buffers(snapshot)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> Option<R> {
        Some(call(&mut self.comm))
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
