//! The names of optimizers and policies.

use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use strategy::{Optimizer, PipelineSchedule};

use super::values::positive;

/// How parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerName {
    Sgd,
    Adam,
    Lars,
    Lamb,
}

impl OptimizerName {
    /// The learning rate if none is given.
    #[must_use]
    pub const fn usual_rate(self) -> f32 {
        match self {
            Self::Sgd => 0.02,
            Self::Adam => 0.001,
            Self::Lars => 2.0,
            Self::Lamb => 0.005,
        }
    }

    /// The optimizer, with the numbers of its paper for what is not given.
    #[must_use]
    pub const fn optimizer(self, momentum: f32, weight_decay: f32) -> Optimizer {
        let betas = (0.9, 0.999);
        match self {
            Self::Sgd => Optimizer::Sgd { momentum, weight_decay },
            Self::Adam => Optimizer::Adam { betas, epsilon: 1e-8, weight_decay },
            Self::Lars => Optimizer::Lars { momentum, weight_decay, trust: 0.001 },
            Self::Lamb => Optimizer::Lamb { betas, epsilon: 1e-6, weight_decay },
        }
    }
}

/// When parameter servers update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    Synchronous,
    Asynchronous,
}

/// Which workers of parameter servers add up their gradients, so that one of them pushes the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum WorkerGroups {
    /// None: each worker pushes its own.
    Each,
    /// The workers of one host.
    Host,
    /// The workers of one of so many groups.
    Number(usize),
}

impl FromStr for WorkerGroups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "each" => Ok(Self::Each),
            "host" => Ok(Self::Host),
            number => positive(number)
                .map(Self::Number)
                .map_err(|_| "expected each, host or a number of groups, at least 1".into()),
        }
    }
}

impl From<WorkerGroups> for String {
    fn from(groups: WorkerGroups) -> Self {
        match groups {
            WorkerGroups::Each => "each".into(),
            WorkerGroups::Host => "host".into(),
            WorkerGroups::Number(number) => number.to_string(),
        }
    }
}

/// In which order the stages of a pipeline compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineOrder {
    /// All forward passes, then all backward passes
    Gpipe,
    /// One forward pass, one backward pass
    #[value(name = "1f1b")]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
}

impl PipelineOrder {
    #[must_use]
    pub const fn schedule(self) -> PipelineSchedule {
        match self {
            Self::Gpipe => PipelineSchedule::FillDrain,
            Self::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
        }
    }
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// By the same amount each step, to 0 at the end
    Linear,
    /// Not at all
    Constant,
}

/// The name on the command line.
#[must_use]
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
