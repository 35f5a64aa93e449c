//! The state of a training by parameter servers, out and in at a worker: what a checkpoint holds.
//! Trainers of all strategies make the same kind of state, so one can go on from another's.

use super::member::{Member, is_loss};
use super::protocol::{HEADER, Header, PUSH, STATE, kept};
use super::worker::Worker;
use crate::{Error, Model, Optimizer, ParameterState, State};

impl Worker {
    /// As [`Self::new`], for the worker whose member was made by [`Member::resume`] with the steps
    /// of `state`: the servers get its parameters and the state of their optimizer.
    ///
    /// # Errors
    /// [`Error::State`] if the state is of another model or optimizer, or of other steps than the
    /// member; those of [`Self::new`].
    pub fn resume<M: Model>(
        member: Member,
        model: &mut M,
        optimizer: Optimizer,
        state: &State,
    ) -> Result<Self, Error<M::Error>> {
        let shapes = model.parameters();
        if let Some(mismatch) = state.mismatch(optimizer, &shapes) {
            return Err(Error::State(mismatch));
        }
        let steps = member.roles.clocks[member.rank];
        if steps != state.steps {
            return Err(Error::State(format!("it has {} steps, and the job {steps}", state.steps)));
        }
        let states = state.by_name();
        let mut moments = vec![Vec::new(); optimizer.moments()];
        for (parameter, (name, _)) in shapes.iter().enumerate() {
            // `mismatch` has found each of them.
            let Some(saved) = states.get(&**name) else { continue };
            model.write(parameter, &saved.values).map_err(Error::Model)?;
            moments.iter_mut().zip(&saved.moments).for_each(|(all, of)| all.extend(of));
        }
        Self::begun(member, model, moments)
    }

    /// The whole state after the steps that this worker has made; `None` if a server is lost
    /// meanwhile and comes back. The servers of an asynchronous job go on meanwhile.
    ///
    /// # Errors
    /// If a server is lost and does not come back.
    pub fn state<M: Model>(
        &self,
        model: &M,
        optimizer: Optimizer,
    ) -> ringreduce::Result<Option<State>> {
        let moments = optimizer.moments();
        let mut all = vec![vec![0.0; self.values.len()]; 1 + moments];
        match self.fetch_state(&mut all) {
            Err(error) if self.member.is_elastic() && is_loss(&error) => return Ok(None),
            fetched => fetched?,
        }
        let mut start = 0;
        let parameters = model.parameters().into_iter().map(|(name, count)| {
            let place = start..start + count;
            start = place.end;
            let mut parts = all.iter().map(|values| values[place.clone()].to_vec());
            let values = parts.next().unwrap_or_default();
            ParameterState { name, values, moments: parts.collect() }
        });
        let parameters = parameters.collect();
        Ok(Some(State { optimizer: optimizer.name().to_owned(), steps: self.steps(), parameters }))
    }

    /// The first worker sends its parameters to all servers, which take them if they have none.
    pub(super) fn offer_parameters(&self) -> ringreduce::Result<()> {
        if self.number() > 0 {
            return Ok(());
        }
        for (server, rank) in self.member.roles.servers.iter().enumerate() {
            let place = kept(self.values.len(), server, self.member.layout.servers);
            let (elements, moments) = (place.len() as u64, self.moments.len() as u64);
            let updates = if moments > 0 { self.steps } else { 0 };
            let header = Header::Start { elements, updates, moments };
            self.messages.send(&header.words(), *rank, HEADER)?;
            for values in std::iter::once(&self.values).chain(&self.moments) {
                self.messages.send(&values[place.clone()], *rank, PUSH)?;
            }
        }
        Ok(())
    }

    /// All servers' parameters and moments.
    fn fetch_state(&self, all: &mut [Vec<f32>]) -> ringreduce::Result<()> {
        let servers = &self.member.roles.servers;
        for rank in servers {
            self.messages.send(&Header::State.words(), *rank, HEADER)?;
        }
        for (server, rank) in servers.iter().enumerate() {
            let place = kept(self.values.len(), server, servers.len());
            for values in &mut *all {
                self.messages.recv(&mut values[place.clone()], *rank, STATE)?;
            }
        }
        Ok(())
    }
}
