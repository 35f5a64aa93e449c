//! Candle's tensors as bytes.

use bytemuck::{AnyBitPattern, NoUninit, cast_slice};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, Error as ModelError, Layout, Storage, Tensor, Var};
use gradients::Gradients;
use ringreduce::DataType;

use crate::{Error, Result};

/// The type of a variable.
pub(crate) fn dtype(name: &str, var: &Var) -> Result<DataType> {
    let wrong = |given: String, expected: &str| {
        let given = format!("{name}, {given}");
        Err(ringreduce::Error::argument("DataParallel::new", "vars", given, expected).into())
    };
    if !var.device().is_cpu() {
        return wrong(format!("on {:?}", var.device().location()), "variables on the CPU");
    }
    match var.dtype() {
        DType::F32 => Ok(DataType::F32),
        DType::F64 => Ok(DataType::F64),
        DType::F16 => Ok(DataType::F16),
        DType::BF16 => Ok(DataType::BF16),
        other => wrong(format!("of {other:?}"), "f16, bf16, f32 or f64"),
    }
}

/// Calls `$work` with the elements of a storage on the CPU.
macro_rules! with_elements {
    ($storage:expr, |$elements:ident| $work:expr) => {
        match $storage {
            CpuStorage::F32($elements) => Ok($work),
            CpuStorage::F64($elements) => Ok($work),
            CpuStorage::F16($elements) => Ok($work),
            CpuStorage::BF16($elements) => Ok($work),
            _ => Err(ModelError::Msg("a gradient is no float of 16, 32 or 64 bits".into())),
        }
    };
}

/// A copy of what a layout shows, without gaps.
pub(crate) fn copied(storage: &CpuStorage, layout: &Layout) -> candle_core::Result<CpuStorage> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(ModelError::Msg("a variable is not contiguous".into()));
    };
    with_elements!(storage, |all| candle_core::WithDType::to_cpu_storage_owned(
        all[start..end].to_vec()
    ))
}

/// Copies the elements of a tensor.
pub(crate) fn read(tensor: &Tensor, to: &mut [u8]) -> Result<()> {
    fn bytes<T: NoUninit + AnyBitPattern>(all: &[T], range: (usize, usize)) -> &[u8] {
        cast_slice(&all[range.0..range.1])
    }
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.contiguous_offsets().unwrap_or_default();
    let Storage::Cpu(storage) = &*storage else {
        return Err(ModelError::Msg("a gradient is not on the CPU".into()).into());
    };
    let from = with_elements!(storage, |all| bytes(all, range))?;
    if from.len() != to.len() {
        let text = format!("a gradient has {} bytes, its variable {}", from.len(), to.len());
        return Err(ModelError::Msg(text).into());
    }
    to.copy_from_slice(from);
    Ok(())
}

/// A tensor like `var` of these bytes.
fn made(var: &Var, from: &[u8]) -> Result<Tensor> {
    Ok(Tensor::from_raw_buffer(from, var.dtype(), var.dims(), var.device())?)
}

/// The values of variables.
pub(crate) struct Values<'a>(pub(crate) &'a [(String, Var)]);

impl Gradients for Values<'_> {
    type Error = Error;

    fn read(&mut self, parameter: usize, to: &mut [u8]) -> Result<bool> {
        read(&self.0[parameter].1, to).map(|()| true)
    }

    fn write(&mut self, parameter: usize, from: &[u8]) -> Result<()> {
        let var = &self.0[parameter].1;
        Ok(var.set(&made(var, from)?)?)
    }
}

/// The gradients of variables.
pub(crate) struct Store<'a> {
    pub(crate) grads: &'a mut GradStore,
    pub(crate) vars: &'a [(String, Var)],
}

impl Gradients for Store<'_> {
    type Error = Error;

    fn read(&mut self, parameter: usize, to: &mut [u8]) -> Result<bool> {
        let gradient = self.grads.get(&self.vars[parameter].1);
        gradient.map(|gradient| read(gradient, to)).transpose().map(|read| read.is_some())
    }

    fn write(&mut self, parameter: usize, from: &[u8]) -> Result<()> {
        let var = &self.vars[parameter].1;
        self.grads.insert(var, made(var, from)?);
        Ok(())
    }
}
