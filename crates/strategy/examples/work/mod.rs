//! A model whose layers take as long as it is told.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use strategy::{Model, Parameters, Part, Sink};

/// Layers that all have the same number of parameters.
pub(crate) struct Work {
    pub(crate) layers: Vec<Vec<f32>>,
    /// The passes over a layer's parameters in a step.
    pub(crate) passes: usize,
    gradient: Vec<f32>,
}

impl Work {
    pub(crate) fn new(layers: usize, count: usize, passes: usize) -> Self {
        Self { layers: vec![vec![0.0; count]; layers], passes, gradient: vec![0.0; count] }
    }

    /// Sets the passes so that a step takes as long, if nobody disturbs it.
    #[allow(dead_code, reason = "one of the two programs counts passes itself")]
    pub(crate) fn calibrate(&mut self, wanted: Duration) {
        // The first pass has the memory made, and others may be disturbed.
        let times = (0..6).map(|_| {
            let start = Instant::now();
            self.backward(&mut |_, _| {});
            start.elapsed()
        });
        let ratio = wanted.as_secs_f64() / times.min().unwrap_or_default().as_secs_f64();
        self.passes = ((self.passes as f64 * ratio) as usize).max(1);
    }

    /// Passes each layer's gradient to `sink`, the last layer's first.
    pub(crate) fn backward(&mut self, sink: &mut dyn FnMut(usize, &[f32])) {
        for (at, layer) in self.layers.iter().enumerate().rev() {
            self.gradient.fill(0.0);
            for pass in 0..self.passes {
                let input = (pass as f32 * 0.37).sin();
                let state = self.gradient.iter_mut().zip(layer);
                state.for_each(|(gradient, value)| *gradient += input * (value - input));
            }
            sink(at, &self.gradient);
        }
    }
}

impl Parameters for Work {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        let layers = self.layers.iter().enumerate();
        layers.map(|(at, layer)| (format!("layer {at}"), layer.len())).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.layers[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.layers[parameter].copy_from_slice(from);
        Ok(())
    }
}

impl Model for Work {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Infallible> {
        self.backward(&mut |parameter, gradient| sink(parameter, gradient));
        Ok(0.0)
    }
}
