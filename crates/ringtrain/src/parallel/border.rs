//! The operation by which activations pass the border of a region whose layers are split over
//! ranks, and gradients pass it back.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Device, Error, Layout, Result, Shape, Tensor};
use strategy::{Mapping, TensorParallel};

use crate::error::in_model;
use crate::models::{Layer, Pass};

/// A border as a layer, which takes activations of any shape for flat ones.
pub(super) struct BorderLayer {
    pub(super) name: String,
    pub(super) border: Border,
}

impl Layer for BorderLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, _: &Pass) -> crate::error::Result<Tensor> {
        Ok(inputs.flatten_from(1)?.contiguous()?.apply_op1(self.border.clone())?)
    }
}

/// A border, for activations of count x columns.
#[derive(Clone)]
pub(super) struct Border {
    pub(super) ranks: Arc<Mutex<TensorParallel>>,
    pub(super) mapping: Mapping,
}

impl CustomOp1 for Border {
    fn name(&self) -> &'static str {
        "border"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (count, columns) = layout.shape().dims2()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(Error::Msg("a border needs memory without gaps".into()).bt());
        };
        let values = storage.as_slice::<f32>()?[start..end].to_vec();
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let columns = match self.mapping {
            Mapping::Gather { columns } => columns,
            Mapping::Scatter { columns } => ranks.part(columns).len(),
            Mapping::Copy | Mapping::Reduce => columns,
        };
        let values = ranks.forward(self.mapping, values).map_err(in_model)?;
        Ok((CpuStorage::F32(values), Shape::from((count, columns))))
    }

    fn bwd(&self, inputs: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let values = ranks.backward(self.mapping, gradient).map_err(in_model)?;
        Tensor::from_vec(values, inputs.shape(), &Device::Cpu).map(Some)
    }
}
