//! The state of a training on devices, out and in: the same as that of a trainer on the host, so
//! that each goes on from the other's.

use std::convert::Infallible;

use ringreduce::Result;

use super::DeviceTrainer;
use crate::state::LoadedState;
use crate::{Error, Settings, State};

impl DeviceTrainer {
    /// The complete state, at rank 0; none at the others. Waits for the stream. All ranks call
    /// this, between two steps.
    ///
    /// # Errors
    /// Those of [`Self::check`]; and if a peer is lost.
    pub fn state(&mut self) -> Result<Option<State>> {
        let Settings { strategy, optimizer, .. } = self.settings;
        let mut state = State::empty(optimizer, self.steps, &self.shapes);
        for bucket in &self.buckets {
            let values = self.stream.clone_dtoh(&*bucket.parameters)?;
            let moments = bucket.moments.iter().map(|moment| self.stream.clone_dtoh(moment));
            let moments: Vec<_> = moments.collect::<Result<_, _>>()?;
            state.enter((strategy, &mut self.comm), &bucket.places, &values, &moments)?;
        }
        self.check()?;
        Ok((self.comm.rank() == 0).then_some(state))
    }

    /// Goes on from the state that rank 0 passes; those of other ranks are not looked at. It may be
    /// of a training on the host or on devices, with another strategy, number of ranks or sizes of
    /// buckets. All ranks call this, between two steps.
    ///
    /// # Errors
    /// [`Error::State`] at all ranks, with everything as it was, if rank 0 passes none, or one of
    /// another model or optimizer. If the device refuses something, and if a peer is lost.
    pub fn load_state(&mut self, state: Option<&State>) -> Result<(), Error<Infallible>> {
        let optimizer = self.settings.optimizer;
        let loaded = LoadedState::new(&mut self.comm, optimizer, &self.shapes, state)?;
        for bucket in &mut self.buckets {
            let mut values = vec![0.0; bucket.len];
            loaded.read(&mut self.comm, &bucket.places, None, &mut values)?;
            let write = self.stream.memcpy_htod(&values, &mut bucket.parameters);
            write.map_err(ringreduce::Error::from)?;
            for at in 0..optimizer.moments() {
                loaded.read(&mut self.comm, &bucket.places, Some(at), &mut values)?;
                if let Some(moment) = bucket.moments.get_mut(at) {
                    let write = self.stream.memcpy_htod(&values[bucket.owned.clone()], moment);
                    write.map_err(ringreduce::Error::from)?;
                }
            }
        }
        self.steps = loaded.steps;
        Ok(())
    }
}
