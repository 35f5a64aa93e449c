//! Rectifiers, done in the operation whose output they change. Law: a value that is not a number
//! stays one, so that the loss shows it.

use candle_core::{Result, Tensor};

use super::{tensor, with_elements};

/// The function after a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Activation {
    /// None.
    #[default]
    Identity,
    /// The values above 0.
    Relu,
    /// The values above 0, up to 6 (Krizhevsky 2010).
    Relu6,
}

impl Activation {
    /// Replaces the outputs of a layer.
    pub(crate) fn apply(self, outputs: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Relu => outputs.iter_mut().for_each(|it| *it = if *it < 0.0 { 0.0 } else { *it }),
            Self::Relu6 => outputs.iter_mut().for_each(|it| *it = it.clamp(0.0, 6.0)),
        }
    }

    /// The gradient before the function, from that behind it and the function's outputs.
    pub(super) fn backward(self, outputs: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let gradient = gradient.contiguous()?;
        match self {
            Self::Identity => Ok(gradient),
            Self::Relu => masked(outputs, &gradient, |output| output > 0.0),
            Self::Relu6 => masked(outputs, &gradient, |output| output > 0.0 && output < 6.0),
        }
    }
}

/// The gradient where the output passes it on, 0 elsewhere.
fn masked(outputs: &Tensor, gradient: &Tensor, passes: impl Fn(f32) -> bool) -> Result<Tensor> {
    let values = with_elements([outputs, gradient], |[outputs, gradient]| {
        let both = outputs.iter().zip(gradient);
        Ok(both.map(|(&output, &it)| if passes(output) { it } else { 0.0 }).collect())
    })?;
    tensor(values, outputs.shape())
}
