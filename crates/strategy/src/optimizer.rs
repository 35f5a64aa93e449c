//! Updates of parameters from gradients, on flat memory.
//! Law: a part of the parameters is updated to the same bits as in an update of all of them.

use std::ops::Range;

use pulp::Arch;

/// How parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent, with momentum as PyTorch and TensorFlow have it (0 for none).
    Sgd {
        /// The share of the last update that stays, 0 to below 1.
        momentum: f32,
        /// The penalty on large weights, added to the gradient.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019).
    Adam {
        /// The decays of the first and second moment: 0.9 and 0.999.
        betas: (f32, f32),
        /// The least root of the second moment: 1e-8.
        epsilon: f32,
        /// The share of each weight that a step of rate 1 removes.
        weight_decay: f32,
    },
    /// SGD whose rate in each parameter follows the ratio of norms (LARS; You et al., 2017), for
    /// large batches.
    Lars {
        /// As in [`Self::Sgd`].
        momentum: f32,
        /// As in [`Self::Sgd`].
        weight_decay: f32,
        /// The ratio that an update has to the weights: 0.001.
        trust: f32,
    },
    /// Adam with the ratio of norms (LAMB; You et al., 2020), for large batches.
    Lamb {
        /// As in [`Self::Adam`].
        betas: (f32, f32),
        /// As in [`Self::Adam`], 1e-6.
        epsilon: f32,
        /// As in [`Self::Adam`].
        weight_decay: f32,
    },
}

impl Optimizer {
    /// SGD without momentum and weight decay.
    pub const SGD: Self = Self::Sgd { momentum: 0.0, weight_decay: 0.0 };
    /// Adam with the numbers of its paper.
    pub const ADAM: Self = Self::Adam { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0 };

    /// The name, whatever the numbers: a state of the one is none of the other.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Adam { .. } => "adam",
            Self::Lars { .. } => "lars",
            Self::Lamb { .. } => "lamb",
        }
    }

    /// The values that it keeps for each element between two steps.
    #[must_use]
    pub fn moments(self) -> usize {
        self.moment_names().len()
    }

    /// The names of these values.
    #[must_use]
    pub fn moment_names(self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum: 0.0, .. } => &[],
            Self::Sgd { .. } | Self::Lars { .. } => &["velocity"],
            Self::Adam { .. } | Self::Lamb { .. } => &["first_moment", "second_moment"],
        }
    }

    /// Whether an update of an element needs all elements of its parameter.
    #[must_use]
    pub fn is_by_parameter(self) -> bool {
        matches!(self, Self::Lars { .. } | Self::Lamb { .. })
    }

    /// Updates values by their gradients in step `step`, counted from 1. `moments` are as long as
    /// the values; `parameters` are the places of whole parameters.
    pub(crate) fn update(
        self,
        (rate, step): (f32, u64),
        moments: &mut [Vec<f32>],
        values: &mut [f32],
        gradients: &[f32],
        parameters: &[Range<usize>],
    ) {
        let work = || self.update_all((rate, step), moments, values, gradients, parameters);
        Arch::new().dispatch(work);
    }

    /// [`Self::update`], compiled for each kind of vectors.
    #[inline(always)]
    fn update_all(
        self,
        (rate, step): (f32, u64),
        moments: &mut [Vec<f32>],
        values: &mut [f32],
        gradients: &[f32],
        parameters: &[Range<usize>],
    ) {
        match (self, moments) {
            (Self::Sgd { weight_decay, .. }, []) => {
                for (value, gradient) in values.iter_mut().zip(gradients) {
                    *value -= rate * (gradient + weight_decay * *value);
                }
            }
            (Self::Sgd { momentum, weight_decay }, [velocity, ..]) => {
                let state = values.iter_mut().zip(velocity).zip(gradients);
                for ((value, velocity), gradient) in state {
                    *velocity = momentum * *velocity + gradient + weight_decay * *value;
                    *value -= rate * *velocity;
                }
            }
            (Self::Adam { betas, epsilon, weight_decay }, [first, second, ..]) => {
                let adam = AdamStep::new(betas, epsilon, step);
                let state = values.iter_mut().zip(first).zip(second).zip(gradients);
                for (((value, first), second), gradient) in state {
                    let update = adam.update(first, second, *gradient);
                    *value -= rate * (update + weight_decay * *value);
                }
            }
            (Self::Lars { momentum, weight_decay, trust }, [velocity, ..]) => {
                for place in parameters {
                    let (values, gradients) =
                        (&mut values[place.clone()], &gradients[place.clone()]);
                    let (weight, gradient) = (norm(values), norm(gradients));
                    let bound = gradient + weight_decay * weight;
                    let local = ratio(trust * weight, bound);
                    let state = values.iter_mut().zip(&mut velocity[place.clone()]).zip(gradients);
                    for ((value, velocity), gradient) in state {
                        let step = gradient + weight_decay * *value;
                        *velocity = momentum * *velocity + rate * local * step;
                        *value -= *velocity;
                    }
                }
            }
            (Self::Lamb { betas, epsilon, weight_decay }, [first, second, ..]) => {
                let adam = AdamStep::new(betas, epsilon, step);
                let mut updates = Vec::new();
                for place in parameters {
                    let values = &mut values[place.clone()];
                    let state = first[place.clone()].iter_mut().zip(&mut second[place.clone()]);
                    updates.clear();
                    updates.extend(state.zip(&gradients[place.clone()]).zip(&*values).map(
                        |(((first, second), gradient), value)| {
                            adam.update(first, second, *gradient) + weight_decay * value
                        },
                    ));
                    let local = rate * ratio(norm(values), norm(&updates));
                    values.iter_mut().zip(&updates).for_each(|(value, it)| *value -= local * it);
                }
            }
            _ => {}
        }
    }
}

/// The numbers of one step of Adam.
struct AdamStep {
    betas: (f32, f32),
    epsilon: f32,
    /// The factors by which the moments of the first steps are too small.
    corrections: (f32, f32),
}

impl AdamStep {
    fn new(betas: (f32, f32), epsilon: f32, step: u64) -> Self {
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(step as f64)) as f32;
        Self { betas, epsilon, corrections: (correction(betas.0), correction(betas.1)) }
    }

    #[inline(always)]
    fn update(&self, first: &mut f32, second: &mut f32, gradient: f32) -> f32 {
        *first += (1.0 - self.betas.0) * (gradient - *first);
        *second += (1.0 - self.betas.1) * (gradient * gradient - *second);
        *first / self.corrections.0 / ((*second / self.corrections.1).sqrt() + self.epsilon)
    }
}

/// The factor that clips gradients whose global norm is `norm` to `limit`: see Pascanu et al., "On
/// the difficulty of training recurrent neural networks", 2013. A norm that is not finite is left
/// for the trainer to find.
#[must_use]
pub fn clip_scale(limit: Option<f32>, norm: f64) -> f32 {
    let limit = limit.map(f64::from).filter(|limit| norm.is_finite() && norm > *limit);
    limit.map_or(1.0, |limit| (limit / norm) as f32)
}

/// The Euclidean norm.
pub(crate) fn norm(values: &[f32]) -> f32 {
    square_sum(values).sqrt() as f32
}

/// The sum of squares, in `f64`.
pub(crate) fn square_sum(values: &[f32]) -> f64 {
    values.iter().map(|it| f64::from(*it).powi(2)).sum()
}

/// The quotient; 1 where a norm is zero, as the papers have it.
fn ratio(norm: f32, of: f32) -> f32 {
    if norm > 0.0 && of > 0.0 { norm / of } else { 1.0 }
}
