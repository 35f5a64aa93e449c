//! The dense network whose layers are split over ranks (Shoeybi et al., Megatron-LM, 2019): the
//! first by columns, the second by rows, the third by columns, so that two borders of a pass
//! communicate forward and one back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candle_core::{Device, Tensor, Var};
use strategy::{LinearPart, Mapping, Model, Part, Sink, TensorParallel};

use super::border::Border;
use crate::data::{Batch, Shape};
use crate::error::{Error, Result};
use crate::models::{ModelKind, Network};

/// The parameters of [`ModelKind::Dense`].
const NAMES: [&str; 6] = [
    "dense1.weight",
    "dense1.bias",
    "dense2.weight",
    "dense2.bias",
    "dense3.weight",
    "dense3.bias",
];

const fn is_bias(parameter: usize) -> bool {
    parameter % 2 == 1
}

/// A rank's part of a dense network. It is trained by a `Trainer` whose communicator has the ranks
/// with the same part: this rank alone, unless there are replicas. All ranks of the network take
/// the same samples. A norm of gradients would be that of a part, so gradients can't be clipped,
/// and LARS and LAMB can't be used.
pub struct DensePart {
    ranks: Arc<Mutex<TensorParallel>>,
    parts: [LinearPart; 3],
    /// The inputs and outputs of each whole layer.
    sizes: [(usize, usize); 3],
    /// Weight and bias of each layer.
    vars: Vec<(String, Var)>,
}

impl DensePart {
    /// This rank's part of the network that [`Network::new`] makes from the same seed.
    ///
    /// # Errors
    /// If a layer has fewer units than there are ranks.
    pub fn new(ranks: TensorParallel, shape: Shape, classes: usize, seed: u64) -> Result<Self> {
        let whole = Network::new(ModelKind::Dense, shape, classes, seed)?;
        let (rank, size) = (ranks.rank(), ranks.size());
        let var = |name: &str| {
            let found = whole.vars().iter().find(|(other, _)| *other == name);
            let missing = || Error::Unfit(format!("the dense network has no {name}"));
            found.map(|(_, var)| var).ok_or_else(missing)
        };
        let sizes = |layer: &str| Ok::<_, Error>(var(&format!("{layer}.weight"))?.dims2()?);
        let ((first, inputs), (second, _)) = (sizes("dense1")?, sizes("dense2")?);
        let units = first.min(classes);
        if units < size {
            return Err(Error::Unfit(format!(
                "{size} ranks can't share a layer of {units} units: use fewer ranks"
            )));
        }
        let parts = [
            LinearPart::by_columns(inputs, first, rank, size),
            LinearPart::by_rows(first, second, rank, size),
            LinearPart::by_columns(second, classes, rank, size),
        ];
        let sizes = [(inputs, first), (first, second), (second, classes)];
        let (ranks, vars) = (Arc::new(Mutex::new(ranks)), Vec::new());
        let mut network = Self { ranks, parts, sizes, vars };
        for (parameter, name) in NAMES.into_iter().enumerate() {
            let values = var(name)?.flatten_all()?.to_vec1::<f32>()?;
            let part = &network.parts[parameter / 2];
            let mut shape = vec![part.outputs.len()];
            if !is_bias(parameter) {
                shape.push(part.inputs.len());
            }
            let values = Var::from_vec(network.cut(parameter, &values)?, shape, &Device::Cpu)?;
            network.vars.push((name.to_owned(), values));
        }
        Ok(network)
    }

    /// Cuts this rank's part out of the values of a whole parameter.
    ///
    /// # Errors
    /// If they are not as many as the parameter has.
    pub(crate) fn cut(&self, parameter: usize, whole: &[f32]) -> Result<Vec<f32>> {
        let (expected, part) = (self.whole_len(parameter), &self.parts[parameter / 2]);
        if whole.len() != expected {
            let (name, given) = (NAMES[parameter], whole.len());
            return Err(Error::State(format!("{name} has {given} values, and {expected} here")));
        }
        let is_bias = is_bias(parameter);
        Ok(if is_bias { whole[part.outputs.clone()].to_vec() } else { part.cut(whole)? })
    }

    /// The values of a whole parameter, 0 where other ranks have them: the sum of what all ranks
    /// give is the parameter.
    pub(crate) fn spread(&self, parameter: usize, values: &[f32]) -> Result<Vec<f32>> {
        let mut whole = vec![0.0; self.whole_len(parameter)];
        let part = &self.parts[parameter / 2];
        if !is_bias(parameter) {
            part.put(values, &mut whole)?;
        } else if part.inputs.start == 0 {
            // All ranks have the bias of a layer by rows; the one with its first inputs gives it.
            whole[part.outputs.clone()].copy_from_slice(values);
        }
        Ok(whole)
    }

    fn whole_len(&self, parameter: usize) -> usize {
        let (inputs, outputs) = self.sizes[parameter / 2];
        if is_bias(parameter) { outputs } else { inputs * outputs }
    }

    /// The parts of the three layers that this rank has.
    #[must_use]
    pub fn parts(&self) -> &[LinearPart; 3] {
        &self.parts
    }

    /// The time that activations and gradients have spent at borders so far.
    #[must_use]
    pub fn communication(&self) -> Duration {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).communication()
    }

    /// The scores of the classes (count x classes), at all ranks. All ranks call this.
    ///
    /// # Errors
    /// If the images have another shape; and if a peer is lost.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let border = |values: &Tensor, mapping| {
            let ranks = Arc::clone(&self.ranks);
            values.contiguous()?.apply_op1(Border { ranks, mapping })
        };
        let product = |layer: usize, values: &Tensor| values.matmul(&self.vars[2 * layer].1.t()?);
        let bias =
            |layer: usize, values: &Tensor| values.broadcast_add(&self.vars[2 * layer + 1].1);
        let images = border(&images.flatten_from(1)?, Mapping::Copy)?;
        let first = bias(0, &product(0, &images)?)?.relu()?;
        let second = border(&product(1, &first)?, Mapping::Reduce)?;
        let second = border(&bias(1, &second)?.relu()?, Mapping::Copy)?;
        let (_, columns) = self.sizes[2];
        Ok(border(&bias(2, &product(2, &second)?)?, Mapping::Gather { columns })?)
    }
}

impl Model for DensePart {
    type Batch = Batch;
    type Error = Error;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.vars.iter().map(|(name, var)| (name.clone(), var.elem_count())).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<()> {
        to.copy_from_slice(&self.vars[parameter].1.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<()> {
        let var = &self.vars[parameter].1;
        Ok(var.set(&Tensor::from_slice(from, var.shape(), &Device::Cpu)?)?)
    }

    fn gradients(&mut self, part: &Part<Batch>, sink: &Sink) -> Result<f32> {
        let Some(batch) = &part.batch else { return Ok(0.0) };
        let scores = self.forward(&batch.images)?;
        let loss = (Network::loss(&scores, &batch.labels)? / part.total as f64)?;
        let gradients = loss.backward()?;
        for (parameter, (_, var)) in self.vars.iter().enumerate().rev() {
            if let Some(gradient) = gradients.get(var) {
                sink(parameter, &gradient.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(loss.to_scalar()?)
    }
}

impl std::fmt::Debug for DensePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DensePart").field("parts", &self.parts).finish_non_exhaustive()
    }
}
