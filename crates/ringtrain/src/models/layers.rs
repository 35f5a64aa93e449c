//! The layers of the networks.

use std::sync::Arc;

use candle_core::Tensor;

use super::ops::{self, Activation};
use super::parameter::{Parameter, Pass};
use crate::error::Result;

/// A part of a network that is computed at once.
pub trait Layer: Send + Sync {
    /// The name, which begins the names of the layer's parameters.
    fn name(&self) -> &str;

    /// The outputs for the outputs of the layer before.
    ///
    /// # Errors
    /// If the input's shape does not fit.
    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor>;

    /// This layer, if it is a dense one.
    fn as_linear(&self) -> Option<&Linear> {
        None
    }
}

/// The outputs of layers one after the other.
pub(crate) fn through(layers: &[Box<dyn Layer>], inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
    layers.iter().try_fold(inputs.clone(), |values, layer| layer.forward(&values, pass))
}

/// A dense layer, which takes inputs of any shape for flat ones; without a bias where it is added
/// later, by [`AddBias`].
pub struct Linear {
    pub(crate) name: String,
    pub(crate) weight: Arc<Parameter>,
    pub(crate) bias: Option<Arc<Parameter>>,
    pub(crate) activation: Activation,
}

impl Layer for Linear {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let operation = ops::Linear {
            activation: self.activation,
            weight: self.weight.target(pass),
            bias: self.bias.as_ref().map(|bias| bias.target(pass)),
        };
        let bias = self.bias.as_ref().map(|bias| bias.tensor());
        Ok(ops::biased(inputs, &self.weight.tensor(), bias, operation)?)
    }

    fn as_linear(&self) -> Option<&Linear> {
        Some(self)
    }
}

/// The bias and the activation of a dense layer whose products are sums over ranks.
pub(crate) struct AddBias {
    pub(crate) name: String,
    pub(crate) bias: Arc<Parameter>,
    pub(crate) activation: Activation,
}

impl Layer for AddBias {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let operation = ops::AddBias { activation: self.activation, bias: self.bias.target(pass) };
        Ok(inputs.contiguous()?.apply_op2(&self.bias.tensor(), operation)?)
    }
}

/// A convolution; with a bias unless batch norm follows, which has one.
pub(super) struct Conv {
    pub(super) name: String,
    pub(super) weight: Arc<Parameter>,
    pub(super) bias: Option<Arc<Parameter>>,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) activation: Activation,
}

impl Layer for Conv {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let operation = ops::Conv {
            stride: self.stride,
            padding: self.padding,
            activation: self.activation,
            weight: self.weight.target(pass),
            bias: self.bias.as_ref().map(|bias| bias.target(pass)),
        };
        let bias = self.bias.as_ref().map(|bias| bias.tensor());
        Ok(ops::biased(inputs, &self.weight.tensor(), bias, operation)?)
    }
}

/// A convolution of each channel with a kernel of 3x3 values of its own.
pub(super) struct Depthwise {
    pub(super) name: String,
    pub(super) weight: Arc<Parameter>,
    pub(super) stride: usize,
}

impl Layer for Depthwise {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let operation = ops::Depthwise { stride: self.stride, weight: self.weight.target(pass) };
        Ok(inputs.contiguous()?.apply_op2(&self.weight.tensor(), operation)?)
    }
}

/// A layer without parameters.
pub(super) struct Plain {
    pub(super) name: String,
    pub(super) forward: fn(&Tensor) -> candle_core::Result<Tensor>,
}

impl Layer for Plain {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, _: &Pass) -> Result<Tensor> {
        Ok((self.forward)(inputs)?)
    }
}

/// Layers one after the other, whose inputs may be added to their outputs (He et al. 2016).
pub(super) struct Block {
    pub(super) name: String,
    pub(super) layers: Vec<Box<dyn Layer>>,
    pub(super) is_residual: bool,
}

impl Layer for Block {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let values = through(&self.layers, inputs, pass)?;
        Ok(if self.is_residual { (values + inputs)? } else { values })
    }
}
