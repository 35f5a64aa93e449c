//! A bias (columns) that is added to each row of values (count x columns), and a function of the
//! sums.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::{Activation, elements, with_elements};
use crate::models::parameter::Target;

/// The operation, and where the gradient of the bias goes.
pub(crate) struct AddBias {
    pub(crate) activation: Activation,
    pub(crate) bias: Target,
}

/// Adds a bias to each row; none if it is empty.
pub(super) fn add(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len().max(1)) {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
}

/// The gradient of a bias: the sums of the columns.
pub(super) fn sums(gradient: &Tensor, columns: usize) -> Result<Vec<f32>> {
    with_elements([gradient], |[gradient]| {
        let mut sums = vec![0.0; columns];
        for row in gradient.chunks_exact(columns) {
            sums.iter_mut().zip(row).for_each(|(sum, it)| *sum += it);
        }
        Ok(sums)
    })
}

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add-bias"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        input_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let mut outputs = elements(inputs, input_layout)?.to_vec();
        add(&mut outputs, elements(bias, bias_layout)?);
        self.activation.apply(&mut outputs);
        Ok((CpuStorage::F32(outputs), input_layout.shape().clone()))
    }

    fn bwd(
        &self,
        inputs: &Tensor,
        bias: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = self.activation.backward(outputs, gradient)?;
        let of_bias = self.bias.take(bias, || sums(&gradient, bias.elem_count()))?;
        Ok((inputs.track_op().then_some(gradient), of_bias))
    }
}
