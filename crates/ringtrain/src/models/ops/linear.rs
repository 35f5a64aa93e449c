//! A dense layer: outputs (count x out) from inputs (count x in, of any shape), weights (out x in)
//! and a bias (out).

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor};

use super::gemm::Matrix;
use super::{Activation, add_bias, elements, tensor, with_storage};
use crate::models::parameter::Target;

/// The operation, and where the gradients of weights and bias go. Without a bias it is a
/// [`CustomOp2`].
pub(crate) struct Linear {
    pub(crate) activation: Activation,
    pub(crate) weight: Target,
    pub(crate) bias: Option<Target>,
}

impl Linear {
    fn forward(
        &self,
        (inputs, input_layout): (&CpuStorage, &Layout),
        (weight, weight_layout): (&CpuStorage, &Layout),
        bias: &[f32],
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
        add_bias::add(&mut outputs, bias);
        self.activation.apply(&mut outputs);
        Ok((CpuStorage::F32(outputs), Shape::from((count, to))))
    }

    /// The gradients of inputs, weights and bias.
    fn backward(
        &self,
        inputs: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (to, from) = weight.dims2()?;
        let count = outputs.dim(0)?;
        let gradient = self.activation.backward(outputs, gradient)?;
        let of_bias = match (&self.bias, bias) {
            (Some(target), Some(bias)) => target.take(bias, || add_bias::sums(&gradient, to))?,
            _ => None,
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

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        input_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((inputs, input_layout), (weight, weight_layout), &[])
    }

    fn bwd(
        &self,
        inputs: &Tensor,
        weight: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (inputs, weight, _) = self.backward(inputs, weight, None, outputs, gradient)?;
        Ok((inputs, weight))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear-bias"
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
        let bias = elements(bias, bias_layout)?;
        self.forward((inputs, input_layout), (weight, weight_layout), bias)
    }

    fn bwd(
        &self,
        inputs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.backward(inputs, weight, Some(bias), outputs, gradient)
    }
}
