//! A trained variable, and the way of its gradient out of the backward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{Device, Result, Tensor, Var};
use strategy::Sink;

use super::batch_norm::BatchMoments;

/// How layers run: for training or not, and what happens to gradients.
#[derive(Clone, Default)]
pub struct Pass {
    /// True if batch norm uses, and records, the moments of the batch.
    pub is_training: bool,
    /// Takes each parameter's gradient, with its number, as soon as the backward pass has it, in
    /// place of candle's `GradStore`.
    pub sink: Option<Sink>,
    /// Adds up the moments of batch norm over the ranks.
    pub moments: Option<Arc<dyn BatchMoments>>,
}

impl Pass {
    /// A pass for training whose gradients come in candle's `GradStore`.
    #[must_use]
    pub fn training() -> Self {
        Self { is_training: true, ..Self::default() }
    }
}

/// A variable of a layer.
#[derive(Debug)]
pub struct Parameter {
    name: String,
    number: usize,
    var: Var,
    is_frozen: AtomicBool,
}

impl Parameter {
    /// The parameter `number` of a network, counted in the order of the forward pass.
    pub(super) fn new(name: String, number: usize, var: Var) -> Arc<Self> {
        Arc::new(Self { name, number, var, is_frozen: AtomicBool::new(false) })
    }

    /// The same parameter with other values, such as a part of them.
    pub(crate) fn with_values(&self, var: Var) -> Arc<Self> {
        let parameter = Self::new(self.name.clone(), self.number, var);
        parameter.is_frozen.store(self.is_frozen(), Ordering::Relaxed);
        parameter
    }

    /// The name of the layer and of the parameter in it, as `conv1.weight`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number in the order of the forward pass.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The variable.
    #[must_use]
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// True if no gradient is computed.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::Relaxed)
    }

    pub(super) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    /// The values for a forward pass: without a graph if the parameter is frozen.
    pub(super) fn tensor(&self) -> Tensor {
        match self.is_frozen() {
            true => self.var.as_detached_tensor(),
            false => self.var.as_tensor().clone(),
        }
    }

    /// Where this parameter's gradient goes in a pass.
    pub(super) fn target(&self, pass: &Pass) -> Target {
        Target { number: self.number, is_frozen: self.is_frozen(), sink: pass.sink.clone() }
    }
}

/// Takes the gradient of one parameter from the backward pass of an operation.
#[derive(Clone)]
pub(super) struct Target {
    number: usize,
    is_frozen: bool,
    sink: Option<Sink>,
}

impl Target {
    /// Takes the gradient of `parameter`, which is computed only if somebody wants it. Gives it to
    /// candle if there is no sink.
    pub(super) fn take(
        &self,
        parameter: &Tensor,
        gradient: impl FnOnce() -> Result<Vec<f32>>,
    ) -> Result<Option<Tensor>> {
        if self.is_frozen {
            return Ok(None);
        }
        let gradient = gradient()?;
        match &self.sink {
            Some(sink) => {
                sink(self.number, &gradient);
                Ok(None)
            }
            None => Tensor::from_vec(gradient, parameter.shape(), &Device::Cpu).map(Some),
        }
    }
}
