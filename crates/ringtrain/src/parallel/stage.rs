//! A stage of a pipeline: some consecutive layers of a network. Every rank makes the whole network
//! from one seed, and trains the layers of its stage.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use candle_core::{DType, Device, Tensor, Var};
use strategy::{Parameters, Stage};

use crate::data::{Batch, Shape};
use crate::error::{Error, Result};
use crate::models::{Network, Pass, through};

/// A stage. Batch norm uses the moments of a micro-batch, as in `GPipe`.
pub struct NetworkStage {
    network: Network,
    layers: Range<usize>,
    /// The numbers of the stage's parameters in the network.
    parameters: Vec<usize>,
    /// The shape of one sample's activations before the first layer.
    input: Vec<usize>,
    micro_batches: Vec<Batch>,
    /// The samples of the whole batch.
    total: usize,
    /// The input and the output of each micro-batch on its way.
    held: HashMap<usize, (Tensor, Tensor)>,
    most_held: usize,
}

impl NetworkStage {
    /// These layers of a network for images of this shape.
    ///
    /// # Errors
    /// If the network has not these layers, or does not fit the images.
    pub fn new(network: Network, shape: Shape, layers: Range<usize>) -> Result<Self> {
        let count = network.layers().len();
        if layers.is_empty() || layers.end > count {
            return Err(Error::Unfit(format!(
                "a stage can't have layers {layers:?} of {count}: use at most {count} stages"
            )));
        }
        let input = input_shapes(&network, shape)?.swap_remove(layers.start);
        let is_ours =
            |parameter: &str| layer_of(&network, parameter).is_some_and(|at| layers.contains(&at));
        let vars = network.vars().iter().enumerate();
        let parameters = vars.filter(|(_, (name, _))| is_ours(name)).map(|(at, _)| at).collect();
        let (micro_batches, held) = (Vec::new(), HashMap::new());
        let (total, most_held) = (0, 0);
        Ok(Self { network, layers, parameters, input, micro_batches, total, held, most_held })
    }

    /// Sets the samples of the next step: the micro-batches of this pipeline, and the number of
    /// samples of all replicas. The first stage uses the images, the last one the labels.
    pub fn set_batch(&mut self, micro_batches: Vec<Batch>, total: usize) {
        self.micro_batches = micro_batches;
        self.total = total;
    }

    /// The network, of which this stage has trained its own layers.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The numbers of the stage's parameters among those of the network.
    #[must_use]
    pub fn parameters_in_network(&self) -> &[usize] {
        &self.parameters
    }

    /// The most micro-batches whose activations were held at a time.
    #[must_use]
    pub fn most_held(&self) -> usize {
        self.most_held
    }

    fn batch(&self, at: usize) -> Result<&Batch> {
        let missing = || Error::Unfit(format!("the step has no micro-batch {at}: set its batch"));
        self.micro_batches.get(at).ok_or_else(missing)
    }
}

impl Parameters for NetworkStage {
    type Error = Error;

    fn parameters(&self) -> Vec<(String, usize)> {
        let vars = self.parameters.iter().map(|at| &self.network.vars()[*at]);
        vars.map(|(name, var)| (name.clone(), var.elem_count())).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<()> {
        self.network.read(self.parameters[parameter], to)
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<()> {
        self.network.write(self.parameters[parameter], from)
    }
}

impl Stage for NetworkStage {
    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>> {
        let input = match self.layers.start {
            0 => self.batch(micro_batch)?.images.clone(),
            _ => {
                let count = input.len() / self.input.iter().product::<usize>().max(1);
                let shape = [&[count], &self.input[..]].concat();
                // A variable, so that the backward pass gives its gradient.
                Var::from_slice(input, shape, &Device::Cpu)?.into_inner()
            }
        };
        let layers = &self.network.layers()[self.layers.clone()];
        let mut values = through(layers, &input, &Pass::training())?;
        if self.layers.end == self.network.layers().len() {
            let labels = &self.batch(micro_batch)?.labels;
            values = (Network::loss(&values, labels)? / self.total as f64)?;
        }
        let output = values.flatten_all()?.to_vec1()?;
        self.held.insert(micro_batch, (input, values));
        self.most_held = self.most_held.max(self.held.len());
        Ok(output)
    }

    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>> {
        let missing = || Error::Unfit(format!("micro-batch {micro_batch} has no forward pass"));
        let (input, output) = self.held.remove(&micro_batch).ok_or_else(missing)?;
        let loss = match gradient {
            [] => output,
            // The gradient of this sum by the output is the gradient that came.
            _ => {
                let gradient = Tensor::from_slice(gradient, output.shape(), &Device::Cpu)?;
                (output * gradient)?.sum_all()?
            }
        };
        let gradients = loss.backward()?;
        for (at, parameter) in self.parameters.iter().enumerate().rev() {
            if let Some(gradient) = gradients.get(&self.network.vars()[*parameter].1) {
                sink(at, &gradient.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        match gradients.get(&input) {
            Some(gradient) if self.layers.start > 0 => Ok(gradient.flatten_all()?.to_vec1()?),
            _ => Ok(Vec::new()),
        }
    }
}

impl std::fmt::Debug for NetworkStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.network.layers()[self.layers.clone()].iter().map(|layer| layer.name());
        f.debug_struct("NetworkStage").field("layers", &names.collect::<Vec<_>>()).finish()
    }
}

/// The seconds that each layer's forward pass takes for `count` images, the least of three: the
/// costs by which `strategy::balanced_stages` splits a network. The machine's figures differ from
/// rank to rank and from run to run, so one rank measures for all.
///
/// # Errors
/// If the network does not fit the images.
pub fn layer_seconds(network: &Network, shape: Shape, count: usize) -> Result<Vec<f64>> {
    let mut seconds = vec![f64::INFINITY; network.layers().len()];
    for _ in 0..3 {
        let mut values = image(shape, count)?;
        for (layer, least) in network.layers().iter().zip(&mut seconds) {
            let start = Instant::now();
            values = layer.forward(&values, &Pass::default())?;
            *least = least.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// Black images.
fn image(shape: Shape, count: usize) -> Result<Tensor> {
    let Shape { channels, rows, columns } = shape;
    Ok(Tensor::zeros((count, channels, rows, columns), DType::F32, &Device::Cpu)?)
}

/// The shape of one sample's activations before each layer.
///
/// # Errors
/// If the network does not fit the images.
pub(crate) fn input_shapes(network: &Network, shape: Shape) -> Result<Vec<Vec<usize>>> {
    let mut values = image(shape, 1)?;
    let mut shapes = Vec::new();
    for layer in network.layers() {
        shapes.push(values.dims()[1..].to_vec());
        values = layer.forward(&values, &Pass::default())?;
    }
    Ok(shapes)
}

/// The layer of a parameter or buffer of a network.
#[must_use]
pub fn layer_of(network: &Network, parameter: &str) -> Option<usize> {
    let names: Vec<&str> = network.layers().iter().map(|layer| layer.name()).collect();
    owner(&names, parameter)
}

/// The layer of a parameter: the one with the longest name that begins the parameter's.
fn owner(layers: &[&str], parameter: &str) -> Option<usize> {
    let begins = |layer: &str| parameter.strip_prefix(layer).is_some_and(|it| it.starts_with('.'));
    let found = layers.iter().enumerate().filter(|(_, layer)| begins(layer));
    found.max_by_key(|(_, layer)| layer.len()).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn a_parameter_belongs_to_the_layer_with_the_longest_name() {
        let layers = ["stem", "stem.norm", "block1", "block10", "pool"];
        let cases = [
            ("stem.weight", Some(0)),
            ("stem.norm.weight", Some(1)),
            ("block1.expand.norm.bias", Some(2)),
            ("block10.expand.weight", Some(3)),
            ("head.weight", None),
        ];
        for (parameter, layer) in cases {
            assert_eq!(owner(&layers, parameter), layer, "{parameter}");
        }
    }
}
