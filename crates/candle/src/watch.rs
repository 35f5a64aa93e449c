//! The operation that sees a gradient in the middle of the backward pass.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};

use crate::tensors::{copied, read};
use crate::{Error as Failure, Shared};

/// Passes a variable on as it is, and its gradient to the reducer.
pub(crate) struct Watch {
    pub(crate) parameter: usize,
    pub(crate) shared: Arc<Mutex<Shared>>,
}

impl CustomOp1 for Watch {
    fn name(&self) -> &'static str {
        "ringreduce-watch"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((copied(storage, layout)?, layout.shape().clone()))
    }

    /// Candle calls this once for each watched tensor, with the sum of the gradients of its uses.
    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = shared.reducer.fill(self.parameter, |to| read(gradient, to).map(|()| true));
        match filled {
            Ok(()) => Ok(Some(gradient.clone())),
            Err(Failure::Model(error)) => Err(error),
            Err(Failure::Ranks(error)) => {
                let text = error.to_string();
                shared.failed.get_or_insert(error);
                Err(Error::Msg(text))
            }
        }
    }
}
