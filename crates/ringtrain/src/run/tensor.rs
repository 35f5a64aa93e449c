//! Tensor-parallel layers: each rank has a part of each layer of the dense network, and takes all
//! samples.

use candle_core::D;
use ringreduce::{Communicator, Monitor, ReduceOp};
use strategy::{CrossDeviceOp, Model, Part, Step, Strategy, TensorParallel, Trainer};

use super::engine::{Division, Done, Engine, Pieces};
use super::history::History;
use super::job::Job;
use super::rejoin::Rejoin;
use super::world::sent_bytes;
use crate::checkpoint::{Buffers, Snapshot};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::parallel::DensePart;

/// A rank's part of the network, and its trainer.
pub(crate) struct TensorParts<'a> {
    rejoin: Rejoin<'a>,
    comm: Communicator,
    /// The counters of the calls in which activations go from rank to rank.
    activations: Monitor,
    trainer: Trainer,
    network: DensePart,
}

/// This rank's part, its trainer, and the counters of the calls between the ranks.
fn own_part(comm: &mut Communicator, job: &Job) -> Result<(Trainer, DensePart, Monitor)> {
    let (data, settings) = (&job.data, &job.settings);
    let ranks = comm.duplicate()?;
    let activations = ranks.monitor();
    let ranks = TensorParallel::new(ranks);
    let mut network = DensePart::new(ranks, data.shape, data.classes.len(), settings.seed)?;
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
    pub(crate) fn new(
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
        let Some((step, loss, cause)) = mine else { return done };
        // Each rank is rank 0 of its own trainer.
        let cause = cause.replacen("rank 0", &format!("rank {first}"), 1);
        Err(Error::Diverged { step, loss, cause, saved: None })
    }
}

impl Engine for TensorParts<'_> {
    fn division(&self) -> Division {
        Division::Whole
    }

    fn parameters(&self) -> usize {
        self.network.parameters().iter().map(|(_, count)| count).sum()
    }

    fn digest(&self) -> Result<u64> {
        let mut digest = 0_u64;
        for (parameter, (_, count)) in self.network.parameters().into_iter().enumerate() {
            let mut values = vec![0.0_f32; count];
            self.network.read(parameter, &mut values)?;
            let mix = |digest: u64, value: &f32| {
                (digest ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            };
            digest = values.iter().fold(digest, mix);
        }
        Ok(digest)
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn step(&mut self, pieces: Pieces, rate: f32) -> Result<Done> {
        let Pieces { batches, total } = pieces;
        let parts: Vec<_> = batches.into_iter().map(|batch| Part { batch, total }).collect();
        let before = self.network.communication();
        let done = self.trainer.step(&mut self.network, &parts, rate).map_err(Error::from);
        let Step { loss, .. } = self.agree(done)?;
        let exposed = self.network.communication() - before;
        Ok(Done { loss, exposed, ..Done::default() })
    }

    fn prepare_tests(&mut self) -> Result<()> {
        Ok(())
    }

    fn right(&mut self, batch: &Batch) -> Result<u64> {
        let found = self.network.forward(&batch.images)?.argmax(D::Minus1)?;
        let hits = found.eq(&batch.labels)?.to_vec1::<u8>()?;
        Ok(hits.into_iter().map(u64::from).sum())
    }

    /// Joins the parts of all ranks: as `f64`, of which a narrow type on the wire takes nothing
    /// away, and by the call that all settings of reductions allow.
    fn snapshot(&mut self) -> Result<Option<Snapshot>> {
        // This rank is alone in its trainer, so it has the state of its parts.
        let Some(mut state) = self.trainer.state()? else { return Ok(None) };
        for (parameter, state) in state.parameters.iter_mut().enumerate() {
            for values in std::iter::once(&mut state.values).chain(&mut state.moments) {
                let part = self.network.spread(parameter, values)?;
                let mut whole: Vec<f64> = part.into_iter().map(f64::from).collect();
                self.comm.all_reduce(&mut whole, ReduceOp::Sum)?;
                *values = whole.into_iter().map(|it| it as f32).collect();
            }
        }
        let snapshot = Snapshot { state, buffers: Buffers::new() };
        Ok((self.comm.rank() == 0).then_some(snapshot))
    }

    fn load(&mut self, snapshot: Option<&Snapshot>) -> Result<()> {
        let mut state = snapshot.map(|it| it.state.clone());
        self.comm.broadcast_object(&mut state, 0)?;
        let mut state = state.ok_or_else(|| Error::State("rank 0 has passed none".into()))?;
        for (parameter, (name, _)) in self.network.parameters().into_iter().enumerate() {
            // The trainer says which parameters are missing.
            let Some(state) = state.parameters.iter_mut().find(|it| it.name == name) else {
                continue;
            };
            for values in std::iter::once(&mut state.values).chain(&mut state.moments) {
                *values = self.network.cut(parameter, values)?;
            }
        }
        Ok(self.trainer.load_state(&mut self.network, Some(&state))?)
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Communicator) -> R) -> R {
        call(&mut self.comm)
    }

    fn recover(self, lost: ringreduce::Error, history: &mut History) -> Result<Self> {
        let Self { rejoin, comm, network, trainer, .. } = self;
        let steps = trainer.steps();
        // No rank waits for activations of one that has taken leave.
        drop(network);
        *history = History::default();
        Self::new(comm, rejoin, Some((lost, steps)))
    }

    fn sent_bytes(&mut self) -> u64 {
        sent_bytes(&self.activations)
    }
}
