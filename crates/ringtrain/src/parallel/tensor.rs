//! A network whose dense layers are split over ranks (Shoeybi et al., Megatron-LM, 2019): those
//! behind all other layers by columns and by rows in turn, so that a layer by rows takes the
//! columns that its rank has computed. Law: all ranks take the same samples, so what they have
//! whole they compute alike, and the sums that pass borders are the same bits at all ranks.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candle_core::{Device, Var};
use strategy::{LinearPart, Mapping, Model, Parameters, Part, Sink, TensorParallel, clip_scale};

use super::border::{Border, BorderLayer};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::models::{Activation, AddBias, Layer, Linear, Network, Parameter};

/// Which values of a parameter a rank has.
#[derive(Clone, Debug)]
enum Held {
    /// All of so many, as all ranks have.
    Whole(usize),
    Weight {
        part: LinearPart,
        whole: usize,
    },
    /// These of so many.
    Bias {
        outputs: Range<usize>,
        whole: usize,
    },
}

impl Held {
    const fn whole_len(&self) -> usize {
        match self {
            Self::Whole(whole) | Self::Weight { whole, .. } | Self::Bias { whole, .. } => *whole,
        }
    }

    fn cut(&self, whole: &[f32]) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Whole(_) => whole.to_vec(),
            Self::Weight { part, .. } => part.cut(whole)?,
            Self::Bias { outputs, .. } => whole[outputs.clone()].to_vec(),
        })
    }
}

/// The ranks of a network and their borders.
type Ranks = Arc<Mutex<TensorParallel>>;

/// A rank's part of a network: its part of each dense layer behind all others, and the layers
/// before these. It is trained by a `Trainer` whose communicator has the ranks with the same part:
/// this rank alone, unless there are replicas. All ranks of the network take the same samples. LARS
/// and LAMB can't be used, for they need the norm of each parameter.
pub struct TensorParallelNetwork {
    ranks: Ranks,
    network: Network,
    /// Of each parameter that is trained.
    held: Vec<Held>,
    clip_norm: Option<f32>,
}

/// How many ranks can have a part of a network: as many as its narrowest layer by columns has
/// outputs.
///
/// # Errors
/// If a weight is no matrix.
pub fn most_ranks(network: &Network) -> Result<usize> {
    let mut most = usize::MAX;
    for layer in network.dense_tail().into_iter().step_by(2) {
        most = most.min(layer.weight.var().dims2()?.0);
    }
    Ok(most)
}

/// The values of one sample that pass each border of a network whose dense layers are split, by the
/// mapping that communicates: forward, or backward if there is something to train before the
/// layer.
///
/// # Errors
/// If a weight is no matrix.
pub(crate) fn borders(network: &Network) -> Result<Vec<(Mapping, usize)>> {
    let dense = network.dense_tail();
    let mut borders = Vec::new();
    for (at, layer) in dense.iter().enumerate() {
        let (outputs, inputs) = layer.weight.var().dims2()?;
        let number = layer.weight.number();
        let is_trained_before = || network.trained_numbers().any(|other| other < number);
        match at % 2 {
            0 if is_trained_before() => borders.push((Mapping::Copy.conjugate(), inputs)),
            0 => {}
            _ => borders.push((Mapping::Reduce, outputs)),
        }
        if at % 2 == 0 && at + 1 == dense.len() {
            borders.push((Mapping::Gather { columns: outputs }, outputs));
        }
    }
    Ok(borders)
}

impl TensorParallelNetwork {
    /// This rank's part of a network, which has the same values at all ranks.
    ///
    /// # Errors
    /// If a layer has fewer units than there are ranks.
    pub fn new(ranks: TensorParallel, mut network: Network) -> Result<Self> {
        let (size, most) = (ranks.size(), most_ranks(&network)?);
        if most < size {
            return Err(Error::Unfit(format!(
                "{size} ranks can't share a layer of {most} units: use fewer ranks"
            )));
        }
        let of_rank = (ranks.rank(), size);
        let ranks = Arc::new(Mutex::new(ranks));
        let mut tail = Tail { ranks: &ranks, of_rank, layers: Vec::new(), parameters: Vec::new() };
        let dense = network.dense_tail();
        for (at, layer) in dense.iter().enumerate() {
            match at % 2 {
                0 => tail.by_columns(layer, at + 1 == dense.len())?,
                _ => tail.by_rows(layer)?,
            }
        }
        let Tail { layers, parameters: split, .. } = tail;
        let parameters = split.iter().map(|(parameter, _)| Arc::clone(parameter)).collect();
        network.replace_dense_tail(layers, parameters);
        let held = |(name, var): &(String, Var)| {
            let found = split.iter().find(|(parameter, _)| parameter.name() == name);
            found.map_or_else(|| Held::Whole(var.elem_count()), |(_, held)| held.clone())
        };
        let held = network.vars().iter().map(held).collect();
        Ok(Self { ranks, network, held, clip_norm: None })
    }

    /// Scales the gradients of a step down to this norm of those of all ranks.
    pub fn set_clip_norm(&mut self, limit: Option<f32>) {
        self.clip_norm = limit;
    }

    /// The layers of this rank.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Whether ranks have parts of this parameter. The others all ranks have whole.
    #[must_use]
    pub fn is_split(&self, parameter: usize) -> bool {
        !matches!(self.held[parameter], Held::Whole(_))
    }

    /// Cuts what this rank has out of the values of a whole parameter.
    ///
    /// # Errors
    /// If they are not as many as the parameter has.
    pub fn cut(&self, parameter: usize, whole: &[f32]) -> Result<Vec<f32>> {
        let held = &self.held[parameter];
        let (expected, given) = (held.whole_len(), whole.len());
        if given != expected {
            let (name, _) = &self.network.vars()[parameter];
            return Err(Error::State(format!("{name} has {given} values, and {expected} here")));
        }
        held.cut(whole)
    }

    /// The values of a whole parameter that ranks have parts of, 0 where other ranks have them: the
    /// sum of what all ranks give is the parameter.
    ///
    /// # Errors
    /// If they are not as many as this rank has.
    pub fn spread(&self, parameter: usize, values: &[f32]) -> Result<Vec<f32>> {
        let held = &self.held[parameter];
        let mut whole = vec![0.0; held.whole_len()];
        match held {
            Held::Weight { part, .. } => part.put(values, &mut whole)?,
            Held::Bias { outputs, .. } => whole[outputs.clone()].copy_from_slice(values),
            Held::Whole(_) => whole.copy_from_slice(values),
        }
        Ok(whole)
    }

    /// The time that activations and gradients have spent at borders so far.
    #[must_use]
    pub fn communication(&self) -> Duration {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).communication()
    }

    /// Scales all gradients of this rank down if the norm of those of all ranks is above `limit`.
    /// Gradients that all ranks have are counted once.
    fn clip(&self, gradients: &mut [(usize, Vec<f32>)], limit: f32) -> Result<()> {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_counted = |parameter: usize| ranks.rank() == 0 || self.is_split(parameter);
        let counted = gradients.iter().filter(|(parameter, _)| is_counted(*parameter));
        let squares = counted.flat_map(|(_, it)| it).map(|it| f64::from(*it).powi(2));
        let mut sum = [squares.sum::<f64>()];
        ranks.add_up(&mut sum)?;
        let scale = clip_scale(Some(limit), sum[0].sqrt());
        if scale < 1.0 {
            gradients.iter_mut().flat_map(|(_, it)| it).for_each(|it| *it *= scale);
        }
        Ok(())
    }
}

/// The layers that replace dense ones.
struct Tail<'a> {
    ranks: &'a Ranks,
    of_rank: (usize, usize),
    layers: Vec<Box<dyn Layer>>,
    /// The parameters of these layers, in order.
    parameters: Vec<(Arc<Parameter>, Held)>,
}

impl Tail<'_> {
    /// Adds a layer that computes some of the outputs. All ranks get all of them if it is the last
    /// one.
    fn by_columns(&mut self, layer: &Linear, is_last: bool) -> Result<()> {
        let (columns, inputs) = layer.weight.var().dims2()?;
        let (rank, size) = self.of_rank;
        let part = LinearPart::by_columns(inputs, columns, rank, size);
        let outputs = part.outputs.clone();
        self.border(&layer.name, Mapping::Copy);
        let weight = self.weight(layer, part)?;
        let bias = match &layer.bias {
            Some(bias) => {
                let held = Held::Bias { outputs: outputs.clone(), whole: columns };
                Some(self.parameter(bias, held, vec![outputs.len()])?)
            }
            None => None,
        };
        let (name, activation) = (layer.name.clone(), layer.activation);
        self.layers.push(Box::new(Linear { name, weight, bias, activation }));
        if is_last {
            self.border(&layer.name, Mapping::Gather { columns });
        }
        Ok(())
    }

    /// Adds a layer that takes some of the inputs. Its bias is added to the sum over the ranks.
    fn by_rows(&mut self, layer: &Linear) -> Result<()> {
        let (outputs, inputs) = layer.weight.var().dims2()?;
        let (rank, size) = self.of_rank;
        let weight = self.weight(layer, LinearPart::by_rows(inputs, outputs, rank, size))?;
        let name = || layer.name.clone();
        let activation = Activation::Identity;
        self.layers.push(Box::new(Linear { name: name(), weight, bias: None, activation }));
        self.border(&layer.name, Mapping::Reduce);
        if let Some(bias) = &layer.bias {
            let bias = self.parameter(bias, Held::Whole(outputs), vec![outputs])?;
            let activation = layer.activation;
            self.layers.push(Box::new(AddBias { name: name(), bias, activation }));
        }
        Ok(())
    }

    fn border(&mut self, layer: &str, mapping: Mapping) {
        let (name, ranks) = (format!("{layer}.border"), Arc::clone(self.ranks));
        self.layers.push(Box::new(BorderLayer { name, border: Border { ranks, mapping } }));
    }

    fn weight(&mut self, layer: &Linear, part: LinearPart) -> Result<Arc<Parameter>> {
        let shape = vec![part.outputs.len(), part.inputs.len()];
        let whole = layer.weight.var().elem_count();
        self.parameter(&layer.weight, Held::Weight { part, whole }, shape)
    }

    /// The part of a whole parameter that this rank has.
    fn parameter(
        &mut self,
        whole: &Parameter,
        held: Held,
        shape: Vec<usize>,
    ) -> Result<Arc<Parameter>> {
        let values = held.cut(&whole.var().flatten_all()?.to_vec1::<f32>()?)?;
        let parameter = whole.with_values(Var::from_vec(values, shape, &Device::Cpu)?);
        self.parameters.push((Arc::clone(&parameter), held));
        Ok(parameter)
    }
}

impl Parameters for TensorParallelNetwork {
    type Error = Error;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.network.parameters()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<()> {
        self.network.read(parameter, to)
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<()> {
        self.network.write(parameter, from)
    }
}

impl Model for TensorParallelNetwork {
    type Batch = Batch;

    fn gradients(&mut self, part: &Part<Batch>, sink: &Sink) -> Result<f32> {
        let Some(limit) = self.clip_norm else { return self.network.gradients(part, sink) };
        let held = Arc::new(Mutex::new(Vec::new()));
        let hold = Arc::clone(&held);
        let hold: Sink = Arc::new(move |parameter, gradient| {
            let gradient = (parameter, gradient.to_vec());
            hold.lock().unwrap_or_else(PoisonError::into_inner).push(gradient);
        });
        let loss = self.network.gradients(part, &hold)?;
        let mut gradients = held.lock().unwrap_or_else(PoisonError::into_inner);
        self.clip(&mut gradients, limit)?;
        gradients.drain(..).for_each(|(parameter, gradient)| sink(parameter, &gradient));
        Ok(loss)
    }
}

impl std::fmt::Debug for TensorParallelNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TensorParallelNetwork").field("held", &self.held).finish_non_exhaustive()
    }
}
