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

/// The layers of [`ModelKind::Dense`].
const LAYERS: [&str; 3] = ["dense1", "dense2", "dense3"];

/// A rank's part of a dense network. It is trained by a `Trainer` whose communicator has the ranks
/// with the same part: this rank alone, unless there are replicas. All ranks of the network take
/// the same samples. A norm of gradients would be that of a part, so gradients can't be clipped,
/// and LARS and LAMB can't be used.
pub struct DensePart {
    ranks: Arc<Mutex<TensorParallel>>,
    parts: [LinearPart; 3],
    /// Weight and bias of each layer.
    vars: Vec<(String, Var)>,
    classes: usize,
}

impl DensePart {
    /// This rank's part of the network that [`Network::new`] makes from the same seed.
    ///
    /// # Errors
    /// If a layer has fewer units than there are ranks.
    pub fn new(ranks: TensorParallel, shape: Shape, classes: usize, seed: u64) -> Result<Self> {
        let whole = Network::new(ModelKind::Dense, shape, classes, seed)?;
        let (rank, size) = (ranks.rank(), ranks.size());
        let var = |name: String| {
            let found = whole.vars().iter().find(|(other, _)| *other == name);
            let missing = || Error::Unfit(format!("the dense network has no {name}"));
            found.map(|(_, var)| var).ok_or_else(missing)
        };
        let sizes = |layer: &str| Ok::<_, Error>(var(format!("{layer}.weight"))?.dims2()?);
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
        let mut vars = Vec::new();
        for (layer, part) in LAYERS.iter().zip(&parts) {
            let weight = var(format!("{layer}.weight"))?.flatten_all()?.to_vec1::<f32>()?;
            let shape = (part.outputs.len(), part.inputs.len());
            let weight = Var::from_vec(part.cut(&weight)?, shape, &Device::Cpu)?;
            let bias = var(format!("{layer}.bias"))?;
            let bias = bias.narrow(0, part.outputs.start, part.outputs.len())?.contiguous()?;
            vars.push((format!("{layer}.weight"), weight));
            vars.push((format!("{layer}.bias"), Var::from_tensor(&bias)?));
        }
        Ok(Self { ranks: Arc::new(Mutex::new(ranks)), parts, vars, classes })
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
        let columns = self.classes;
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
