//! A dense layer: outputs (count x out) from inputs (count x in, of any shape), weights (out x in)
//! and a bias (out).

use candle_core::{CpuStorage, CustomOp3, Error, Layout, Result, Shape, Tensor};

use super::gemm::Matrix;
use super::{Activation, add_bias, elements, tensor, with_storage};
use crate::models::parameter::Target;

/// The operation, and where the gradients of weights and bias go. A bias without
/// elements is none.
pub(crate) struct Linear {
    pub(crate) activation: Activation,
    pub(crate) weight: Target,
    pub(crate) bias: Option<Target>,
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        input_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (to, from) = weight_layout.shape().dims2()?;
        let count = input_layout.dims().first().copied().unwrap_or_default();
        if input_layout.shape().elem_count() != count * from {
            let text = format!("inputs of {:?} are not {from} values each", input_layout.shape());
            return Err(Error::Msg(text).bt());
        }
        let inputs = Matrix::new(inputs, input_layout.start_offset(), count, from);
        let weight = Matrix::new(weight, weight_layout.start_offset(), to, from);
        let mut outputs = inputs.times(weight.transposed())?;
        add_bias::add(&mut outputs, elements(bias, bias_layout)?);
        self.activation.apply(&mut outputs);
        Ok((CpuStorage::F32(outputs), Shape::from((count, to))))
    }

    fn bwd(
        &self,
        inputs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (to, from) = weight.dims2()?;
        let count = outputs.dim(0)?;
        let gradient = self.activation.backward(outputs, gradient)?;
        let of_bias = match &self.bias {
            Some(target) => target.take(bias, || add_bias::sums(&gradient, to))?,
            None => None,
        };
        let of_weight = self.weight.take(weight, || {
            with_storage([&gradient, inputs], |[gradient, inputs]| {
                let gradient = Matrix::new(gradient.0, gradient.1, count, to).transposed();
                gradient.times(Matrix::new(inputs.0, inputs.1, count, from))
            })
        })?;
        if !inputs.track_op() {
            return Ok((None, of_weight, of_bias));
        }
        let of_inputs = with_storage([&gradient, weight], |[gradient, weight]| {
            let gradient = Matrix::new(gradient.0, gradient.1, count, to);
            gradient.times(Matrix::new(weight.0, weight.1, to, from))
        })?;
        Ok((Some(tensor(of_inputs, inputs.shape())?), of_weight, of_bias))
    }
}
