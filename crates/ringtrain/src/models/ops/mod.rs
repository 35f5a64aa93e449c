//! The operations of the layers, with their backward passes, on f32 tensors in memory without gaps.
//! Those of candle take several passes over the memory where one is enough, and their convolutions
//! with groups go one channel at a time.

mod activation;
mod add_bias;
mod conv;
mod depthwise;
mod gemm;
mod linear;
mod norm;
mod patches;
mod pool;
#[cfg(test)]
mod tests;

use candle_core::{
    CpuStorage, CustomOp3, DType, Device, Error, Layout, Result, Shape, Storage, Tensor,
};

pub(crate) use activation::Activation;
pub(super) use add_bias::AddBias;
pub(super) use conv::Conv;
pub(super) use depthwise::Depthwise;
pub(super) use linear::Linear;
pub(super) use norm::{Norm, sums};
pub(super) use pool::MaxPool;

/// The elements that a layout shows.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(all), Some((start, end))) => Ok(&all[start..end]),
        _ => Err(Error::Msg("an operation needs f32 in memory without gaps".into()).bt()),
    }
}

/// Calls `work` with the storage of each tensor, and where the tensor starts in it.
fn with_storage<const N: usize, R>(
    tensors: [&Tensor; N],
    work: impl FnOnce([(&CpuStorage, usize); N]) -> Result<R>,
) -> Result<R> {
    let opened = tensors.map(Tensor::storage_and_layout);
    let empty = CpuStorage::F32(Vec::new());
    let mut all = [(&empty, 0); N];
    for (place, (storage, layout)) in all.iter_mut().zip(&opened) {
        match &**storage {
            Storage::Cpu(storage) if layout.is_contiguous() => {
                *place = (storage, layout.start_offset());
            }
            _ => return Err(Error::Msg("an operation needs memory without gaps".into()).bt()),
        }
    }
    work(all)
}

/// Calls `work` with the elements of each tensor.
fn with_elements<const N: usize, R>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    let opened = tensors.map(Tensor::storage_and_layout);
    let mut all: [&[f32]; N] = [&[]; N];
    for (slice, (storage, layout)) in all.iter_mut().zip(&opened) {
        match &**storage {
            Storage::Cpu(storage) => *slice = elements(storage, layout)?,
            _ => return Err(Error::Msg("a tensor is not on the CPU".into()).bt()),
        }
    }
    work(all)
}

/// Does `work` compiled for the wider lanes of this processor (AVX2), if it has them.
#[inline(always)]
fn with_lanes<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = pulp::x86::V3::try_new() {
        return lanes.vectorize(work);
    }
    work()
}

/// The result of an operation on inputs, weights and a bias, which is empty where there is none.
pub(super) fn biased(
    inputs: &Tensor,
    weight: &Tensor,
    bias: Option<Tensor>,
    operation: impl CustomOp3 + Send + Sync + 'static,
) -> Result<Tensor> {
    let bias = bias.map_or_else(|| Tensor::zeros(0, DType::F32, &Device::Cpu), Ok)?;
    inputs.contiguous()?.apply_op3(weight, &bias, operation)
}

/// A tensor of these values.
fn tensor(values: Vec<f32>, shape: &Shape) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}
