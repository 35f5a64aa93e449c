//! The state of a training by parameter servers, out and in at a worker: what a checkpoint holds.
//! Trainers of all strategies make the same kind of state, so one can go on from another's.

use super::member::Member;
use super::protocol::{HEADER, Header, PUSH, STATE, kept};
use super::worker::{Origin, Worker};
use crate::{Error, JobError, Model, Optimizer, ParameterState, State};

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
        Self::begun(member, model, Origin::Saved { moments, updates: state.updates })
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
    ) -> Result<Option<State>, JobError> {
        let moments = optimizer.moments();
        let mut all = vec![vec![0.0; self.values.len()]; 1 + moments];
        self.member.set_waiting(true);
        let fetched = self.fetch_state(&mut all);
        self.member.set_waiting(false);
        let updates = match fetched {
            Err(error) if self.member.goes_on_after(&error) => return Ok(None),
            fetched => fetched.map_err(|error| self.explained(error))?,
        };
        let mut start = 0;
        let parameters = model.parameters().into_iter().map(|(name, count)| {
            let place = start..start + count;
            start = place.end;
            let mut parts = all.iter().map(|values| values[place.clone()].to_vec());
            let values = parts.next().unwrap_or_default();
            ParameterState { name, values, moments: parts.collect() }
        });
        let parameters = parameters.collect();
        let (optimizer, steps) = (optimizer.name().to_owned(), self.steps());
        Ok(Some(State { optimizer, steps, updates, parameters }))
    }

    /// The first worker sends its parameters to all servers, which take them if they have none. A
    /// worker without parameters of this job sends nothing.
    pub(super) fn offer_parameters(&self) -> Result<(), JobError> {
        let none = Vec::new();
        let (moments, updates) = match &self.origin {
            Origin::Others => return Ok(()),
            Origin::Model if self.steps > 0 => return Ok(()),
            Origin::Model | Origin::Servers => (&none, 0),
            Origin::Saved { moments, updates } => (moments, *updates),
        };
        if self.number() > 0 {
            return Ok(());
        }
        for (server, rank) in self.member.roles.servers.iter().enumerate() {
            let place = kept(self.values.len(), server, self.member.layout.servers);
            let elements = place.len() as u64;
            let header = Header::Start { elements, updates, moments: moments.len() as u64 };
            self.messages.send(&header.words(), *rank, HEADER)?;
            for values in std::iter::once(&self.values).chain(moments) {
                self.messages.send(&values[place.clone()], *rank, PUSH)?;
            }
        }
        Ok(())
    }

    /// All servers' parameters and moments; returns the most updates of a server. One server after
    /// the other is asked: a server that waits until its state is received takes no gradients, and
    /// another worker that waits for it may have the next server wait in turn.
    fn fetch_state(&self, all: &mut [Vec<f32>]) -> Result<u64, JobError> {
        let mut most = 0;
        for server in 0..self.member.roles.servers.len() {
            most = most.max(self.fetch_part(server, all)?);
        }
        Ok(most)
    }

    /// The parameters and moments of one server; returns its updates.
    fn fetch_part(&self, server: usize, all: &mut [Vec<f32>]) -> Result<u64, JobError> {
        let servers = &self.member.roles.servers;
        let (rank, place) = (servers[server], kept(self.values.len(), server, servers.len()));
        self.messages.send(&Header::State.words(), rank, HEADER)?;
        let mut updates = [0];
        self.messages.recv(&mut updates, rank, STATE)?;
        for values in all {
            self.messages.recv(&mut values[place.clone()], rank, STATE)?;
        }
        Ok(updates[0])
    }
}
