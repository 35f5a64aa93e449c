//! Rectifiers, done in the operation whose output they change. Law: a value that is not a number
//! stays one, so that the loss shows it.

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
    pub(super) fn backward(self, outputs: &[f32], gradient: &[f32]) -> Vec<f32> {
        let both = outputs.iter().zip(gradient);
        match self {
            Self::Identity => gradient.to_vec(),
            Self::Relu => both.map(|(&output, &it)| if output > 0.0 { it } else { 0.0 }).collect(),
            Self::Relu6 => both
                .map(|(&output, &it)| if output > 0.0 && output < 6.0 { it } else { 0.0 })
                .collect(),
        }
    }
}
