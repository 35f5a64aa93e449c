//! A network of two layers with a rectifier between them, in plain loops.

use std::convert::Infallible;
use std::ops::Range;

use strategy::{Model, Parameters, Part, Sink};

const INPUTS: usize = 5;
const HIDDEN: usize = 7;
const SHAPES: [(&str, usize); 4] = [
    ("first.weight", INPUTS * HIDDEN),
    ("first.bias", HIDDEN),
    ("second.weight", HIDDEN),
    ("second.bias", 1),
];

/// Inputs and the wanted output of each sample.
pub(crate) type Samples = Vec<([f32; INPUTS], f32)>;

/// A network with one output.
pub(crate) struct Network {
    parameters: [Vec<f32>; 4],
    /// Whether the gradients of the second layer are not finite.
    pub(crate) is_damaged: bool,
    /// After so many gradients given and parameters taken, this process kills itself.
    pub(crate) dies_after: Option<usize>,
}

/// A number from -1 to 1 that depends on another one.
fn noise(of: usize) -> f32 {
    ((of as f32 * 12.9898).sin() * 437.585).fract()
}

/// A part of a batch of `total` samples.
pub(crate) fn part(samples: Range<usize>, total: usize) -> Part<Samples> {
    let sample = |at: usize| {
        let inputs: [f32; INPUTS] = std::array::from_fn(|i| noise(at * INPUTS + i));
        (inputs, inputs.iter().sum::<f32>().abs())
    };
    let batch: Samples = samples.map(sample).collect();
    Part { batch: (!batch.is_empty()).then_some(batch), total }
}

impl Network {
    pub(crate) fn new(offset: f32) -> Self {
        let mut at = 0;
        let parameters = SHAPES.map(|(_, count)| {
            let values = (0..count).map(|i| noise(1000 + at + i) * 0.5 + offset).collect();
            at += count;
            values
        });
        Self { parameters, is_damaged: false, dies_after: None }
    }

    /// Counts a call, before it is made.
    fn count(&mut self) {
        if let Some(left) = &mut self.dies_after {
            if *left == 0 {
                let me = std::process::id().to_string();
                let _ = std::process::Command::new("kill").args(["-KILL", &me]).status();
            }
            *left = left.saturating_sub(1);
        }
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        self.parameters.concat()
    }
}

impl Parameters for Network {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        SHAPES.map(|(name, count)| (name.into(), count)).into()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.parameters[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.count();
        self.parameters[parameter].copy_from_slice(from);
        Ok(())
    }
}

impl Model for Network {
    type Batch = Samples;

    fn gradients(&mut self, part: &Part<Samples>, sink: &Sink) -> Result<f32, Infallible> {
        let [first, bias, second, last] = &self.parameters;
        let mut gradients = SHAPES.map(|(_, count)| vec![0.0_f32; count]);
        let mut loss = 0.0;
        for (inputs, wanted) in part.batch.iter().flatten() {
            let dot = |h: usize| -> f32 {
                inputs.iter().zip(&first[h * INPUTS..]).map(|(x, w)| x * w).sum()
            };
            let hidden: Vec<f32> = (0..HIDDEN).map(|h| (dot(h) + bias[h]).max(0.0)).collect();
            let output: f32 = hidden.iter().zip(second).map(|(x, w)| x * w).sum::<f32>() + last[0];
            let error = output - wanted;
            loss += error * error / part.total as f32;
            let error = 2.0 * error / part.total as f32;
            gradients[3][0] += error;
            for h in 0..HIDDEN {
                gradients[2][h] += error * hidden[h];
                if hidden[h] > 0.0 {
                    gradients[1][h] += error * second[h];
                    for (i, x) in inputs.iter().enumerate() {
                        gradients[0][h * INPUTS + i] += error * second[h] * x;
                    }
                }
            }
        }
        if self.is_damaged {
            gradients[2][3] = f32::NAN;
        }
        for parameter in (0..4).rev() {
            self.count();
            sink(parameter, &gradients[parameter]);
        }
        Ok(loss)
    }
}
