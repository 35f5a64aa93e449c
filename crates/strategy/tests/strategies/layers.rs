//! Layers in plain loops, of which a stage of a pipeline has some.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;

use strategy::{Parameters, Stage};

pub(crate) const WIDTH: usize = 40;
pub(crate) const LAYERS: usize = 6;
/// The samples of a batch.
pub(crate) const SAMPLES: usize = 7;

/// Layers whose outputs are `tanh(weight * input)`, element by element, with a neighbor mixed in.
pub(crate) struct Layers {
    first: usize,
    is_last: bool,
    pub(crate) weights: Vec<Vec<f32>>,
    /// The samples of each micro-batch.
    pub(crate) micro_batches: Vec<Range<usize>>,
    /// The inputs of all layers and the output, by micro-batch and sample.
    pub(crate) held: HashMap<usize, Vec<Vec<Vec<f32>>>>,
    /// A layer with an output that is no number.
    pub(crate) damaged_output: Option<usize>,
    /// A layer with a gradient that is no number.
    pub(crate) damaged_gradient: Option<usize>,
    /// A layer with a gradient that has an element too many.
    pub(crate) long_gradient: Option<usize>,
}

impl Layers {
    pub(crate) fn new(stage: usize, stages: usize, offset: f32) -> Self {
        let place = |stage: usize| LAYERS * stage / stages;
        let weight = |layer: usize| {
            (0..WIDTH).map(|i| ((layer * WIDTH + i) as f32).sin() + offset).collect::<Vec<f32>>()
        };
        let weights: Vec<_> = (place(stage)..place(stage + 1)).map(weight).collect();
        Self {
            first: place(stage),
            is_last: stage + 1 == stages,
            weights,
            micro_batches: Vec::new(),
            held: HashMap::new(),
            damaged_output: None,
            damaged_gradient: None,
            long_gradient: None,
        }
    }

    fn sample_forward(&self, sample: usize, input: &[f32]) -> Vec<Vec<f32>> {
        let first = |i: usize| ((sample * WIDTH + i) as f32 * 0.7).cos();
        let mut values = vec![match self.first {
            0 => (0..WIDTH).map(first).collect(),
            _ => input.to_vec(),
        }];
        for (layer, weights) in self.weights.iter().enumerate() {
            let input = &values[layer];
            let output = |i: usize| (weights[i] * (input[i] + input[(i + 1) % WIDTH])).tanh();
            let mut output: Vec<f32> = (0..WIDTH).map(output).collect();
            if self.damaged_output == Some(self.first + layer) {
                output[3] = f32::NAN;
            }
            values.push(output);
        }
        values
    }

    fn sample_backward(
        &self,
        values: &[Vec<f32>],
        mut gradient: Vec<f32>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Vec<f32> {
        for (layer, weights) in self.weights.iter().enumerate().rev() {
            let (input, output) = (&values[layer], &values[layer + 1]);
            let (mut below, mut of_weights) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for i in 0..WIDTH {
                let next = (i + 1) % WIDTH;
                let inner = gradient[i] * (1.0 - output[i] * output[i]);
                of_weights[i] = inner * (input[i] + input[next]);
                below[i] += inner * weights[i];
                below[next] += inner * weights[i];
            }
            if self.damaged_gradient == Some(self.first + layer) {
                of_weights[5] = f32::INFINITY;
            }
            if self.long_gradient == Some(self.first + layer) {
                of_weights.push(0.0);
            }
            sink(layer, &of_weights);
            gradient = below;
        }
        gradient
    }
}

impl Parameters for Layers {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        let layers = self.first..self.first + self.weights.len();
        layers.map(|layer| (format!("layer {layer}"), WIDTH)).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.weights[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.weights[parameter].copy_from_slice(from);
        Ok(())
    }
}

impl Stage for Layers {
    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, Infallible> {
        let samples = self.micro_batches[micro_batch].clone().enumerate();
        let row = |at: usize| input.get(at * WIDTH..(at + 1) * WIDTH).unwrap_or_default();
        let values: Vec<_> =
            samples.map(|(at, sample)| self.sample_forward(sample, row(at))).collect();
        let outputs: Vec<f32> = values.iter().flat_map(|it| it[it.len() - 1].clone()).collect();
        self.held.insert(micro_batch, values);
        if self.is_last {
            let total = outputs.iter().map(|it| (it - 0.5).powi(2)).sum::<f32>();
            return Ok(vec![total / SAMPLES as f32]);
        }
        Ok(outputs)
    }

    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, Infallible> {
        let mut below = Vec::new();
        for (at, values) in self.held.remove(&micro_batch).unwrap().into_iter().enumerate() {
            let gradient = match self.is_last {
                true => values[values.len() - 1]
                    .iter()
                    .map(|it| 2.0 * (it - 0.5) / SAMPLES as f32)
                    .collect(),
                false => gradient[at * WIDTH..(at + 1) * WIDTH].to_vec(),
            };
            below.extend(self.sample_backward(&values, gradient, sink));
        }
        Ok(below)
    }
}

/// Cuts a range into parts that differ by one at most.
pub(crate) fn cut(range: &Range<usize>, count: usize) -> Vec<Range<usize>> {
    let place = |at: usize| range.start + range.len() * at / count;
    (0..count).map(|at| place(at)..place(at + 1)).collect()
}
