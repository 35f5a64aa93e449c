//! The state of a pipeline, out and in. Law: as of any training, it does not depend on how the
//! model is split, so a pipeline of other stages goes on from it, or no pipeline.

use super::run::Stage;
use super::trainer::PipelineTrainer;
use crate::{Error, ParameterState, State};

impl PipelineTrainer {
    /// The complete state, at rank 0; none at the others. All ranks call this, between two steps.
    ///
    /// # Errors
    /// Those of the stage; and if a peer is lost.
    pub fn state<S: Stage>(&mut self, stage: &S) -> Result<Option<State>, Error<S::Error>> {
        let mut parts = Vec::new();
        // All replicas have the same.
        if self.replicas.rank() == 0 {
            let moments = self.updater.moments().iter();
            for ((at, (name, count)), moments) in self.shapes.iter().enumerate().zip(moments) {
                let mut values = vec![0.0; *count];
                stage.read(at, &mut values).map_err(Error::Model)?;
                let (name, moments) = (name.clone(), moments.clone());
                parts.push(ParameterState { name, values, moments });
            }
        }
        let all = self.comm.gather_object(&parts, 0)?;
        let (optimizer, steps) = (self.settings.optimizer.name().to_owned(), self.steps());
        Ok(all.map(|all| State { optimizer, steps, updates: steps, parameters: all.concat() }))
    }

    /// Goes on from the state that rank 0 passes; those of other ranks are not looked at. It may
    /// come from other stages or from a [`Trainer`](crate::Trainer). All ranks call this, between
    /// two steps.
    ///
    /// # Errors
    /// [`Error::State`] at all ranks, with everything as it was, if rank 0 passes none, or one of
    /// another model or optimizer; those of the stage; and if a peer is lost.
    pub fn load_state<S: Stage>(
        &mut self,
        stage: &mut S,
        state: Option<&State>,
    ) -> Result<(), Error<S::Error>> {
        let mine = if self.replicas.rank() == 0 { self.shapes.clone() } else { Vec::new() };
        let shapes = self.comm.gather_object(&mine, 0)?.map(|all| all.concat());
        let optimizer = self.settings.optimizer;
        let mut mismatch = match (state, shapes) {
            (Some(state), Some(shapes)) => state.mismatch(optimizer, &shapes).unwrap_or_default(),
            _ => "rank 0 has passed none".into(),
        };
        self.comm.broadcast_object(&mut mismatch, 0)?;
        if !mismatch.is_empty() {
            return Err(Error::State(mismatch));
        }
        let mut all = state.filter(|_| self.comm.rank() == 0).cloned();
        self.comm.broadcast_object(&mut all, 0)?;
        // Rank 0 has a state, or there was a mismatch.
        let Some(State { steps, parameters, .. }) = all else { return Ok(()) };
        for ParameterState { name, values, moments } in parameters {
            if let Some(at) = self.shapes.iter().position(|(other, _)| *other == name) {
                stage.write(at, &values).map_err(Error::Model)?;
                self.updater.set_moments(at, moments);
            }
        }
        self.updater.set_steps(steps);
        Ok(())
    }
}
