//! Steps of a pipeline, or of several replicas of one: passes, the sums of gradients over the
//! replicas, clipping over all stages, updates.

use ringreduce::{Communicator, Messenger, Monitor, ReduceOp};

use super::report::{Report, Totals};
use super::run::{PipelineTimes, Stage, run};
use super::schedule::PipelineSchedule;
use crate::divergence::are_finite;
use crate::optimizer::{clip_scale, square_sum};
use crate::{Divergence, Error, JobConfig, NotFinite, Optimizer, Updater};

/// How a pipeline is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PipelineSettings {
    /// The number of stages; it divides the number of ranks. Rank r is stage r mod `stages` of
    /// replica r / `stages`, so the stages of a replica are consecutive ranks.
    pub stages: usize,
    /// In which order stages compute.
    pub schedule: PipelineSchedule,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// The largest norm of the gradients of all stages; larger ones are scaled down to it.
    pub clip_norm: Option<f32>,
}

/// The results of a step of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PipelineStep {
    /// The loss over the batches of all replicas.
    pub loss: f32,
    /// Where the time of this rank went in the passes.
    pub times: PipelineTimes,
    /// The measured share of the passes in which stages waited, over all ranks; compare
    /// [`bubble`](super::bubble).
    pub bubble: f64,
}

/// Trains a stage together with the trainers of all other ranks.
#[derive(Debug)]
pub struct PipelineTrainer {
    pub(super) settings: PipelineSettings,
    pub(super) comm: Communicator,
    /// The stages of this replica, whose messages carry activations.
    messages: Messenger,
    /// Messages end with their communicator.
    stages: Communicator,
    /// The ranks with the same stage.
    pub(super) replicas: Communicator,
    pub(super) updater: Updater,
    /// The names and the numbers of elements of the stage's parameters.
    pub(super) shapes: Vec<(String, usize)>,
    values: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl PipelineTrainer {
    /// Gives the stages of all replicas the parameters of the first replica. All ranks call this.
    ///
    /// # Errors
    /// If ranks have other settings, the number of ranks is no multiple of the stages, or replicas
    /// of a stage have other parameters; those of the stage; and if a peer is lost.
    pub fn new<S: Stage>(
        mut comm: Communicator,
        stage: &mut S,
        settings: PipelineSettings,
    ) -> Result<Self, Error<S::Error>> {
        let PipelineSettings { stages, schedule, optimizer, clip_norm } = &settings;
        let of_all: [(&str, &dyn std::fmt::Debug); 4] = [
            ("stages", stages),
            ("schedule", schedule),
            ("optimizer", optimizer),
            ("clip_norm", clip_norm),
        ];
        JobConfig::default().with_settings(&of_all, &[]).agree(&mut comm, false)?;
        let (rank, size) = (comm.rank(), comm.size());
        if settings.stages == 0 || !size.is_multiple_of(settings.stages) {
            let (given, call) = (settings.stages.to_string(), "PipelineTrainer::new");
            let expected = format!("a number that divides the {size} ranks");
            return Err(ringreduce::Error::argument(call, "stages", given, expected).into());
        }
        let (replica, at) = (rank / settings.stages, rank % settings.stages);
        let stages = subgroup(&mut comm, replica, at)?;
        let mut replicas = subgroup(&mut comm, at, replica)?;
        let shapes = stage.parameters();
        JobConfig::default().with_settings(&[], &shapes).agree(&mut replicas, false)?;
        let counts: Vec<usize> = shapes.iter().map(|(_, count)| *count).collect();
        let mut values: Vec<Vec<f32>> = counts.iter().map(|count| vec![0.0; *count]).collect();
        for (parameter, values) in values.iter_mut().enumerate() {
            stage.read(parameter, values).map_err(Error::Model)?;
            replicas.broadcast(values, 0)?;
            stage.write(parameter, values).map_err(Error::Model)?;
        }
        let updater = Updater::new(settings.optimizer, &counts);
        let (gradients, messages) = (values.clone(), stages.messenger());
        Ok(Self { settings, comm, messages, stages, replicas, updater, shapes, values, gradients })
    }

    /// Completed steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.updater.steps()
    }

    /// The counters of what this rank sends: in calls of all ranks, in messages between the stages
    /// of its replica, and in calls of the ranks with the same stage.
    #[must_use]
    pub fn monitors(&self) -> [Monitor; 3] {
        [self.comm.monitor(), self.stages.monitor(), self.replicas.monitor()]
    }

    /// One update from the gradients of a batch in `count` micro-batches, 0 if this replica has no
    /// samples. All ranks call this, those of a replica with the same count.
    ///
    /// # Errors
    /// Those of the stage, and if it has passed a wrong gradient to the sink, at this rank; if a
    /// loss or gradient is not finite, at all ranks; and if a peer is lost. The parameters are as
    /// before then. After the stage's error or a lost peer this value is of no more use.
    pub fn step<S: Stage>(
        &mut self,
        stage: &mut S,
        count: usize,
        rate: f32,
    ) -> Result<PipelineStep, Error<S::Error>> {
        self.gradients.iter_mut().for_each(|it| it.fill(0.0));
        let schedule = self.settings.schedule;
        let passes = run(&self.messages, schedule, count, stage, &mut self.gradients)?;
        let bad_gradient = self.gradients.iter().rposition(|gradient| !are_finite(gradient));
        self.replicas.all_reduce_many(&mut self.gradients, ReduceOp::Sum)?;
        let counts_norm = self.settings.clip_norm.is_some() && self.replicas.rank() == 0;
        let square_sum: f64 = match counts_norm {
            true => self.gradients.iter().map(|it| square_sum(it)).sum(),
            false => 0.0,
        };
        let (loss, times) = (f64::from(passes.loss), passes.times);
        let has_bad_output = passes.has_bad_output;
        let report = Report { loss, square_sum, has_bad_output, bad_gradient, times };
        let mut numbers = vec![0.0; Report::LEN * self.comm.size()];
        self.comm.all_gather(&report.numbers(), &mut numbers)?;
        let totals = Totals::of(&numbers, self.settings.stages);
        let is_finite = totals.loss.is_finite() && totals.norm.is_finite();
        let diverged = if totals.culprit.is_some() || !is_finite {
            Some(self.diverged(totals, report)?)
        } else {
            None
        };
        // A rank whose stage has passed a wrong gradient comes so far, or others would wait for it.
        if let Some(error) = passes.refused.map(Error::Ranks).or(diverged) {
            return Err(error);
        }
        self.update(stage, rate, totals.norm)?;
        Ok(PipelineStep { loss: totals.loss, times, bubble: totals.bubble })
    }

    fn update<S: Stage>(
        &mut self,
        stage: &mut S,
        rate: f32,
        norm: f64,
    ) -> Result<(), Error<S::Error>> {
        let scale = clip_scale(self.settings.clip_norm, norm);
        if scale < 1.0 {
            self.gradients.iter_mut().flatten().for_each(|it| *it *= scale);
        }
        for (parameter, values) in self.values.iter_mut().enumerate() {
            stage.read(parameter, values).map_err(Error::Model)?;
        }
        self.updater.step(rate, &mut self.values, &self.gradients)?;
        for (parameter, values) in self.values.iter().enumerate() {
            stage.write(parameter, values).map_err(Error::Model)?;
        }
        Ok(())
    }

    /// The error of a step with a number that is not finite, as the rank knows it at which it came
    /// up.
    fn diverged<M>(
        &mut self,
        totals: Totals,
        report: Report,
    ) -> Result<Error<M>, ringreduce::Error> {
        let mut cause = Divergence::InSum;
        if let Some(rank) = totals.culprit {
            let stage = rank % self.settings.stages;
            if rank == self.comm.rank() {
                let name = |shape: Option<&(String, usize)>| shape.cloned().unwrap_or_default().0;
                let number = match report.bad_gradient.filter(|_| !report.has_bad_output) {
                    Some(at) => NotFinite::Gradient(name(self.shapes.get(at))),
                    None if stage + 1 == self.settings.stages => NotFinite::Loss,
                    None => NotFinite::Output(name(self.shapes.last())),
                };
                cause = Divergence::AtRank { rank, stage: Some(stage), number };
            }
            self.comm.broadcast_object(&mut cause, rank)?;
        }
        Ok(Error::diverged(self.updater.steps() + 1, totals.loss, cause))
    }
}

/// The ranks of one color, in the order of their keys.
fn subgroup(
    comm: &mut Communicator,
    color: usize,
    key: usize,
) -> Result<Communicator, ringreduce::Error> {
    let group = comm.split(u32::try_from(color).ok(), key as i64)?;
    let expected = "fewer than 2^32 ranks";
    group.ok_or_else(|| {
        ringreduce::Error::argument("PipelineTrainer::new", "comm", color.to_string(), expected)
    })
}
