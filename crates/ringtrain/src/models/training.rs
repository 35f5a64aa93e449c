//! A network as the strategies train it. Law: each gradient is passed on once, as soon as the
//! backward pass has it, so the last layer's comes first.

use std::sync::Arc;

use candle_core::{CpuStorage, D, InplaceOp1, Layout, Storage, Tensor, Var};
use candle_nn::ops::log_softmax;
use strategy::{Model, Parameters, Part, Sink};

use super::{Network, Pass};
use crate::data::Batch;
use crate::error::{Error, Result};

impl Network {
    /// The sum of the losses of these images: the cross entropy of each. It is 0 for no images,
    /// whose backward pass still takes part in batch norm over all ranks.
    ///
    /// # Errors
    /// If there are more images than labels, or the reverse.
    pub fn loss(scores: &Tensor, labels: &Tensor) -> Result<Tensor> {
        if labels.elem_count() == 0 {
            return Ok(scores.sum_all()?);
        }
        let chances = log_softmax(scores, D::Minus1)?;
        Ok(chances.gather(&labels.unsqueeze(1)?, 1)?.sum_all()?.neg()?)
    }

    /// The numbers of the trained parameters among those that are trained.
    fn places(&self) -> Vec<usize> {
        let mut next = 0;
        let place = |is_frozen: bool| {
            let place = next;
            next += usize::from(!is_frozen);
            place
        };
        self.parameters.iter().map(|parameter| parameter.is_frozen()).map(place).collect()
    }
}

impl Parameters for Network {
    type Error = Error;

    fn parameters(&self) -> Vec<(String, usize)> {
        self.vars().iter().map(|(name, var)| (name.clone(), var.elem_count())).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<()> {
        read(&self.vars()[parameter].1, to)
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<()> {
        write(&self.vars()[parameter].1, from)
    }
}

impl Model for Network {
    type Batch = Batch;

    fn gradients(&mut self, part: &Part<Batch>, sink: &Sink) -> Result<f32> {
        let Some(batch) = &part.batch else { return Ok(0.0) };
        let (places, sink) = (self.places(), Arc::clone(sink));
        let sink: Sink = Arc::new(move |number, gradient| sink(places[number], gradient));
        let pass = Pass { is_training: true, sink: Some(sink), moments: self.moments.clone() };
        let scores = self.run(&batch.images, &pass)?;
        let loss = (Self::loss(&scores, &batch.labels)? / part.total as f64)?;
        loss.backward()?;
        Ok(loss.to_scalar()?)
    }
}

/// Copies the values of a variable.
pub(super) fn read(var: &Var, to: &mut [f32]) -> Result<()> {
    let (storage, layout) = var.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) if end - start == to.len() => {
            to.copy_from_slice(&storage.as_slice::<f32>()?[start..end]);
            Ok(())
        }
        _ => Err(Error::Unfit(format!("a parameter of {layout:?} has not {} values", to.len()))),
    }
}

/// Sets the values of a variable.
pub(super) fn write(var: &Var, from: &[f32]) -> Result<()> {
    Ok(var.inplace_op1(&Write(from))?)
}

/// The operation that copies to a variable.
struct Write<'a>(&'a [f32]);

impl InplaceOp1 for Write<'_> {
    fn name(&self) -> &'static str {
        "write"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (to, layout.contiguous_offsets()) {
            (CpuStorage::F32(to), Some((start, end))) if end - start == self.0.len() => {
                to[start..end].copy_from_slice(self.0);
                Ok(())
            }
            _ => {
                let text = format!("a parameter of {layout:?} has not {} values", self.0.len());
                Err(candle_core::Error::Msg(text).bt())
            }
        }
    }
}
