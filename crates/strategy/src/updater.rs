//! Updates of parameters that are wholly at one rank: of a stage, or of a rank's part of a layer.

use ringreduce::Error;

use crate::Optimizer;

/// An optimizer with its state for a list of parameters.
#[derive(Clone, Debug)]
pub struct Updater {
    optimizer: Optimizer,
    /// The optimizer's moments, by parameter.
    moments: Vec<Vec<Vec<f32>>>,
    counts: Vec<usize>,
    steps: u64,
}

impl Updater {
    /// The optimizer's state before the first step, for parameters of these numbers of elements.
    #[must_use]
    pub fn new(optimizer: Optimizer, counts: &[usize]) -> Self {
        let moments = |count: &usize| vec![vec![0.0; *count]; optimizer.moments()];
        let moments = counts.iter().map(moments).collect();
        Self { optimizer, moments, counts: counts.to_vec(), steps: 0 }
    }

    /// Completed steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The optimizer's moments, by parameter.
    pub(crate) fn moments(&self) -> &[Vec<Vec<f32>>] {
        &self.moments
    }

    /// Sets what the optimizer keeps for a parameter.
    pub(crate) fn set_moments(&mut self, parameter: usize, moments: Vec<Vec<f32>>) {
        self.moments[parameter] = moments;
    }

    /// Sets the completed steps.
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Updates all parameters by their gradients, at a learning rate. LARS and LAMB take the norm
    /// of each parameter as it is given, so they need whole parameters.
    ///
    /// # Errors
    /// If the parameters are not those of [`Self::new`]; they are as before then.
    pub fn step(
        &mut self,
        rate: f32,
        parameters: &mut [Vec<f32>],
        gradients: &[Vec<f32>],
    ) -> ringreduce::Result<()> {
        for (argument, given) in [("parameters", &*parameters), ("gradients", gradients)] {
            if !given.iter().map(Vec::len).eq(self.counts.iter().copied()) {
                let given =
                    format!("{:?} elements", given.iter().map(Vec::len).collect::<Vec<_>>());
                let expected = format!("{:?}, as in Updater::new", self.counts);
                return Err(Error::argument("Updater::step", argument, given, expected));
            }
        }
        self.steps += 1;
        let step = (rate, self.steps);
        let state = parameters.iter_mut().zip(gradients).zip(&mut self.moments);
        for ((values, gradients), moments) in state {
            let all = 0..values.len();
            self.optimizer.update(step, moments, values, gradients, &[all]);
        }
        Ok(())
    }
}
