//! Tensor-parallel layers: each rank has a part of each dense layer at the network's end and all
//! layers before them, and takes all samples.

use ringreduce::{Communicator, Monitor, ReduceOp};
use strategy::{
    CrossDeviceOp, Divergence, JobConfig, Parameters, Part, Step, Strategy, TensorParallel, Trainer,
};

use super::flow::{Flow, What};
use super::{Sizes, Way};
use crate::checkpoint::{Snapshot, buffers, set_buffers};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::Network;
use crate::parallel::{TensorParallelNetwork, borders, most_ranks};
use crate::run::{
    Division, Done, Engine, Extras, History, Job, Outcome, Rejoin, sent_bytes, train_by,
};

pub(super) static TENSOR_PARALLEL: Way = Way {
    name: "tensor-parallel",
    help: "The dense layers at the end are split over all ranks",
    trainer: None,
    options: &["lose", "clip_norm", "warmup", "patience"],
    splits_parameters: true,
    check: |_, _| Ok(()),
    ranks: |job| Ok(1..=most_ranks(&job.network()?)?),
    flow: Flow::ring(
        &[What::Activations, What::Gradients],
        "layers are split; activations are summed",
    ),
    bytes,
    start,
};

/// At the borders of split layers go 2(n-1)/n of the bytes of activations that are summed, and
/// (n-1)/n of those that are gathered: at each rank, or in the mean over the ranks if the
/// activations are so few that a ring has no chunk for each rank.
fn bytes(job: &Job, &Sizes { ranks, .. }: &Sizes<'_>) -> Result<Vec<u64>> {
    let borders = borders(&job.network()?)?.into_iter();
    let sent =
        borders.map(|(mapping, values)| mapping.sent_bytes(job.bytes_per_epoch(values), ranks));
    Ok(vec![sent.sum::<u64>() / job.steps_per_epoch() as u64; ranks])
}

fn start(comm: Communicator, job: &Job, config: JobConfig, extras: &Extras<'_>) -> Result<Outcome> {
    train_by(job, extras, (comm.rank(), comm.size()), |_| {
        TensorParts::new(comm, Rejoin::new(job, &config, extras), None)
    })
}

/// A rank's part of the network, and its trainer.
struct TensorParts<'a> {
    rejoin: Rejoin<'a>,
    comm: Communicator,
    /// The counters of the calls in which activations go from rank to rank.
    activations: Monitor,
    trainer: Trainer,
    network: TensorParallelNetwork,
}

/// This rank's part, its trainer, and the counters of the calls between the ranks.
fn own_part(
    comm: &mut Communicator,
    job: &Job,
) -> Result<(Trainer, TensorParallelNetwork, Monitor)> {
    let settings = &job.settings;
    let ranks = comm.duplicate()?;
    let activations = ranks.monitor();
    let mut network = TensorParallelNetwork::new(TensorParallel::new(ranks), job.network()?)?;
    // The norm is that of the gradients of all ranks, of which the trainer has those of one.
    network.set_clip_norm(settings.clip_norm);
    let missing = || Error::Unfit("a rank is not in its own group".into());
    // No other rank has the same parameters.
    let alone = comm.split(u32::try_from(comm.rank()).ok(), 0)?.ok_or_else(missing)?;
    let settings = strategy::Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: settings.optimizer(),
        clip_norm: None,
        buckets: settings.buckets(),
    };
    let trainer = Trainer::new(alone, &mut network, settings)?;
    Ok((trainer, network, activations))
}

impl<'a> TensorParts<'a> {
    /// All ranks call this, those that are left after a loss with its error and their steps.
    fn new(
        comm: Communicator,
        mut rejoin: Rejoin<'a>,
        lost: Option<(ringreduce::Error, u64)>,
    ) -> Result<Self> {
        let (comm, (trainer, network, activations)) = rejoin.begin(comm, lost, own_part)?;
        Ok(Self { rejoin, comm, activations, trainer, network })
    }

    /// The result of a step, which has diverged at all ranks if it has in the part of one.
    fn agree<T>(&mut self, done: Result<T>) -> Result<T> {
        let mut mine = match &done {
            Err(Error::Diverged { step, loss, cause, .. }) => Some((*step, *loss, cause.clone())),
            _ => None,
        };
        if mine.is_none() && done.is_err() {
            return done;
        }
        let mut all = vec![0; self.comm.size()];
        self.comm.all_gather(&[u8::from(mine.is_some())], &mut all)?;
        let Some(first) = all.iter().position(|it| *it == 1) else { return done };
        self.comm.broadcast_object(&mut mine, first)?;
        let Some((step, loss, mut cause)) = mine else { return done };
        // Each rank is the only one of its own trainer.
        if let Divergence::AtRank { rank, .. } = &mut cause {
            *rank = first;
        }
        Err(Error::Diverged { step, loss, cause, good: None })
    }
}

impl Engine for TensorParts<'_> {
    fn division(&self) -> Division {
        Division::Whole
    }

    fn network(&self) -> &Network {
        self.network.network()
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn step(&mut self, pieces: Vec<Part<Batch>>, rate: f32) -> Result<Done> {
        let before = self.network.communication();
        let done = self.trainer.step(&mut self.network, &pieces, rate).map_err(Error::from);
        let Step { loss, .. } = self.agree(done)?;
        let exposed = self.network.communication() - before;
        Ok(Done { loss, exposed, ..Done::default() })
    }

    /// Joins the parts that ranks have of a parameter: as `f64`, of which a narrow type on the wire
    /// takes nothing away, and by the call that all settings of reductions allow.
    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        // This rank is alone in its trainer, so it has the state of its parts.
        let Some(mut state) = self.trainer.state()? else { return Ok(None) };
        let parameters = state.parameters.iter_mut().enumerate();
        for (parameter, state) in parameters.filter(|(at, _)| self.network.is_split(*at)) {
            for values in std::iter::once(&mut state.values).chain(&mut state.moments) {
                let part = self.network.spread(parameter, values)?;
                let mut whole: Vec<f64> = part.into_iter().map(f64::from).collect();
                self.comm.all_reduce(&mut whole, ReduceOp::Sum)?;
                *values = whole.into_iter().map(|it| it as f32).collect();
            }
        }
        let buffers = buffers(self.network.network())?;
        Ok((self.comm.rank() == 0).then_some(Snapshot { state, buffers }))
    }

    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        let mut passed = snapshot.map(|it| (it.state.clone(), it.buffers.clone()));
        self.comm.broadcast_object(&mut passed, 0)?;
        let (mut state, buffers) =
            passed.ok_or_else(|| Error::State("rank 0 has passed none".into()))?;
        for (parameter, (name, _)) in self.network.parameters().into_iter().enumerate() {
            // The trainer says which parameters are missing.
            let Some(state) = state.parameters.iter_mut().find(|it| it.name == name) else {
                continue;
            };
            for values in std::iter::once(&mut state.values).chain(&mut state.moments) {
                *values = self.network.cut(parameter, values)?;
            }
        }
        self.trainer.load_state(&mut self.network, Some(&state))?;
        set_buffers(self.network.network(), &buffers)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> Option<R> {
        Some(call(&mut self.comm))
    }

    fn recover(self, lost: ringreduce::Error, history: &mut History) -> Result<Self> {
        let Self { rejoin, comm, network, trainer, .. } = self;
        let steps = trainer.steps();
        // No rank waits for activations of one that has closed its communicator.
        drop(network);
        *history = History::default();
        Self::new(comm, rejoin, Some((lost, steps)))
    }

    fn sent_bytes(&mut self) -> u64 {
        sent_bytes(&self.activations)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ringreduce::Builder;

    use super::*;
    use crate::cli::Settings;
    use crate::data::{Dataset, Generated, Source};
    use crate::models::ModelKind;
    use crate::run::{config, world};
    use crate::ways::StrategyName;

    /// The second of two ranks has weights that are so large that the gradient of the layer before
    /// them overflows; that layer's outputs are so small that the loss does not.
    #[test]
    fn a_gradient_that_is_not_finite_in_the_part_of_one_rank_names_it() {
        let source = Source::Generated(Generated { train: 12, test: 1, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        let strategy = StrategyName::TensorParallel;
        let model = ModelKind::Dense;
        for clip_norm in [None, Some(1.0)] {
            let settings = Settings { strategy, model, clip_norm, ..Settings::default() };
            let job = Job::new(data.clone(), settings);
            let causes = world::run(&Builder::default(), 2, &|comm: Communicator| {
                let (extras, config, rank) =
                    (Extras::default(), config::of(&job, None), comm.rank());
                let rejoin = Rejoin::new(&job, &config, &extras);
                let mut parts = TensorParts::new(comm, rejoin, None)?;
                let values = [
                    ("dense1.weight", 0.0),
                    ("dense1.bias", 1e-37),
                    ("dense2.weight", 1e38),
                    ("dense3.weight", 100.0),
                ];
                for (at, (name, count)) in parts.network.parameters().into_iter().enumerate() {
                    if let Some((_, value)) = values.iter().find(|(it, _)| *it == name) {
                        let value = if rank == 0 { 0.0 } else { *value };
                        parts.network.write(at, &vec![value; count])?;
                    }
                }
                let places: Vec<usize> = (0..12).collect();
                let batch = Some(job.data.train.batch(&places)?);
                Ok(match parts.step(vec![Part { batch, total: 12 }], 0.1) {
                    Err(Error::Diverged { step: 1, cause, .. }) => cause.to_string(),
                    other => format!("{other:?}"),
                })
            });
            let expected = "rank 1 has such a gradient of dense1.bias";
            assert_eq!(causes.unwrap(), [expected; 2], "{clip_norm:?}");
        }
    }
}
