//! The state of a training, out and in: what a checkpoint holds.
//! Law: a state does not depend on the strategy, the number of ranks or the sizes of buckets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use ringreduce::Communicator;
use serde::{Deserialize, Serialize};

use crate::{Error, Model, Optimizer, Settings, Strategy, Trainer};

/// All that a training needs to go on: parameters, the optimizer's state and the completed steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`Optimizer::name`] of the one that the moments are of.
    pub optimizer: String,
    /// Completed steps.
    pub steps: u64,
    /// Updates of the parameters: as many as the steps, but more where asynchronous servers make
    /// one of each worker's gradient. They go on with this number, and other strategies with the
    /// steps.
    pub updates: u64,
    /// The parameters, in any order.
    pub parameters: Vec<ParameterState>,
}

/// The state of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterState {
    /// The model's name for it.
    pub name: String,
    /// Its values.
    pub values: Vec<f32>,
    /// The optimizer's moments of each value, in the order of [`Optimizer::moment_names`].
    pub moments: Vec<Vec<f32>>,
}

impl State {
    /// Why a model with these parameters can't go on from this state with `optimizer`.
    pub(crate) fn mismatch(
        &self,
        optimizer: Optimizer,
        shapes: &[(String, usize)],
    ) -> Option<String> {
        if self.optimizer != optimizer.name() {
            let (theirs, own) = (&self.optimizer, optimizer.name());
            return Some(format!("it is of the optimizer {theirs}, and this training uses {own}"));
        }
        let mut left = self.by_name();
        for (name, count) in shapes {
            let Some(state) = left.remove(&**name) else {
                return Some(format!("it has no parameter {name}"));
            };
            let moments = optimizer.moment_names();
            if state.values.len() != *count {
                let given = state.values.len();
                return Some(format!("{name} has {given} values there, and {count} here"));
            }
            if state.moments.len() != moments.len() {
                let given = state.moments.len();
                let expected = moments.len();
                return Some(format!(
                    "{name} has {given} moments there, and {} keeps {expected} here",
                    optimizer.name()
                ));
            }
            for (moment, values) in moments.iter().zip(&state.moments) {
                let given = values.len();
                if given != *count {
                    return Some(format!("{moment} of {name} has {given} values, not {count}"));
                }
            }
        }
        let other = self.parameters.iter().find(|it| left.contains_key(&*it.name));
        other.map(|other| format!("this model has no parameter {}", other.name))
    }

    pub(crate) fn by_name(&self) -> BTreeMap<&str, &ParameterState> {
        self.parameters.iter().map(|it| (&*it.name, it)).collect()
    }

    /// The state after these steps, without values yet.
    pub(crate) fn empty(optimizer: Optimizer, steps: u64, shapes: &[(String, usize)]) -> Self {
        let parameter = |(name, _): &(String, usize)| ParameterState {
            name: name.clone(),
            values: Vec::new(),
            moments: Vec::new(),
        };
        let parameters = shapes.iter().map(parameter).collect();
        Self { optimizer: optimizer.name().to_owned(), steps, updates: steps, parameters }
    }

    /// Enters the parameters at these places of a bucket, of which this rank has some of the
    /// moments, but all values. Rank 0 has all moments in the end. All ranks call this.
    pub(crate) fn enter(
        &mut self,
        (strategy, comm): (Strategy, &mut Communicator),
        places: &[(usize, Range<usize>)],
        values: &[f32],
        moments: &[Vec<f32>],
    ) -> ringreduce::Result<()> {
        let whole = |moment: &Vec<f32>| whole(strategy, comm, moment, values.len());
        let moments: Vec<_> = moments.iter().map(whole).collect::<Result<_, _>>()?;
        for (parameter, place) in places {
            let state = &mut self.parameters[*parameter];
            state.values = values[place.clone()].to_vec();
            let part = |it: &Vec<f32>| it.get(place.clone()).unwrap_or_default().to_vec();
            state.moments = moments.iter().map(part).collect();
        }
        Ok(())
    }
}

/// The state that rank 0 gives to all ranks.
pub(crate) struct LoadedState<'a> {
    shapes: &'a [(String, usize)],
    /// At rank 0.
    parameters: Option<BTreeMap<&'a str, &'a ParameterState>>,
    pub(crate) steps: u64,
}

impl<'a> LoadedState<'a> {
    /// Compares the state that rank 0 has passed with the model. All ranks call this.
    pub(crate) fn new<M>(
        comm: &mut Communicator,
        optimizer: Optimizer,
        shapes: &'a [(String, usize)],
        state: Option<&'a State>,
    ) -> Result<Self, Error<M>> {
        let state = state.filter(|_| comm.rank() == 0);
        let mut mismatch = match state {
            Some(state) => state.mismatch(optimizer, shapes).unwrap_or_default(),
            None => "rank 0 has passed none".into(),
        };
        comm.broadcast_object(&mut mismatch, 0)?;
        if !mismatch.is_empty() {
            return Err(Error::State(mismatch));
        }
        let mut steps = [state.map_or(0, |state| state.steps)];
        comm.broadcast(&mut steps, 0)?;
        Ok(Self { shapes, parameters: state.map(State::by_name), steps: steps[0] })
    }

    /// The values of the parameters at these places of a bucket, or one of their moments. All ranks
    /// call this.
    pub(crate) fn read(
        &self,
        comm: &mut Communicator,
        places: &[(usize, Range<usize>)],
        moment: Option<usize>,
        to: &mut [f32],
    ) -> ringreduce::Result<()> {
        for (parameter, place) in places {
            let name = &*self.shapes[*parameter].0;
            if let Some(state) = self.parameters.as_ref().and_then(|all| all.get(name)) {
                let from = moment.map_or(&state.values, |at| &state.moments[at]);
                to[place.clone()].copy_from_slice(from);
            }
        }
        comm.broadcast(to, 0)
    }
}

impl Trainer {
    /// The complete state, at rank 0; none at the others. All ranks call this, between two steps.
    ///
    /// # Errors
    /// [`Error::StateLost`] at all ranks while [`Self::is_state_lost`]; if a peer is lost. `M` is
    /// the error of a model, which is not asked.
    pub fn state<M>(&self) -> Result<Option<State>, Error<M>> {
        if self.elastic.is_state_lost {
            return Err(Error::StateLost(self.steps));
        }
        let Settings { strategy, optimizer, .. } = self.settings;
        let mut state = State::empty(optimizer, self.steps, &self.shapes);
        let is_root = self.with_communicator(|comm| {
            for bucket in &self.values {
                let (places, ranks) = (bucket.model_places(), (strategy, &mut *comm));
                state.enter(ranks, &places, &bucket.memory, &bucket.moments)?;
            }
            Ok::<_, ringreduce::Error>(comm.rank() == 0)
        })?;
        Ok(is_root.then_some(state))
    }

    /// Goes on from the state that rank 0 passes; those of other ranks are not looked at. The
    /// strategy, the number of ranks and the sizes of buckets may differ from those of the training
    /// that gave the state. All ranks call this, between two steps.
    ///
    /// # Errors
    /// [`Error::State`] at all ranks, with everything as it was, if rank 0 passes none, or one of
    /// another model or optimizer: it names the first parameter that differs. Those of the model;
    /// and if a peer is lost.
    pub fn load_state<M: Model>(
        &mut self,
        model: &mut M,
        state: Option<&State>,
    ) -> Result<(), Error<M::Error>> {
        let shared = Arc::clone(&self.sums);
        let mut sums = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = sums.reducer.communicator();
        let source = LoadedState::new(comm, self.settings.optimizer, &self.shapes, state)?;
        let steps = source.steps;
        let lens: Vec<usize> = self.values.iter().map(|bucket| bucket.memory.len()).collect();
        let copy = |(at, len): (usize, &usize)| self.copy_of(comm, steps, at, *len);
        let mut copies: Vec<_> = lens.iter().enumerate().map(copy).collect();
        for (bucket, copy) in self.values.iter_mut().zip(&mut copies) {
            let places = bucket.model_places();
            source.read(comm, &places, None, &mut bucket.memory)?;
            for at in 0..bucket.moments.len() {
                let mut moment = vec![0.0; bucket.memory.len()];
                source.read(comm, &places, Some(at), &mut moment)?;
                bucket.moments[at].copy_from_slice(&moment[bucket.owned.clone()]);
                copy.take(&moment);
            }
        }
        drop(sums);
        self.steps = steps;
        self.replace_copies(copies);
        self.write(model)
    }
}

/// A moment of a whole bucket at rank 0, from the parts of the ranks.
fn whole(
    strategy: Strategy,
    comm: &mut Communicator,
    part: &[f32],
    len: usize,
) -> Result<Vec<f32>, ringreduce::Error> {
    if !strategy.is_sharded() {
        return Ok(part.to_vec());
    }
    let mut whole = if comm.rank() == 0 { vec![0.0; len] } else { Vec::new() };
    comm.gather(part, &mut whole, 0)?;
    Ok(whole)
}
