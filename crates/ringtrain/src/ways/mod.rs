//! The ways of training, each one a file with all that differs: `data_parallel` ranks with the
//! whole model · `servers` parameter servers and workers · `pipeline` layers by rank · `tensor`
//! parts of layers. `flow` are the pictures of what goes from rank to rank.

pub(crate) mod data_parallel;
pub(crate) mod flow;
mod pipeline;
mod servers;
mod tensor;

use std::ops::RangeInclusive;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use ringreduce::Communicator;
use serde::Serialize;
use strategy::{JobConfig, Strategy};

use crate::error::Result;
use crate::run::{Extras, Job, Outcome};
use flow::Flow;

/// A way of training.
pub(crate) struct Way {
    /// The name on the command line, and what it does.
    pub(crate) name: &'static str,
    help: &'static str,
    /// The strategy of its trainers, if each rank has the whole model and a part of each batch.
    trainer: Option<Strategy>,
    /// The options that it has and others do not.
    pub(crate) options: &'static [&'static str],
    /// Whether ranks have parts of parameters, which some optimizers need whole.
    pub(crate) splits_parameters: bool,
    /// Refuses settings that do not fit so many ranks.
    pub(crate) check: fn(&Job, usize) -> Result<()>,
    /// The numbers of ranks that all have something to do.
    pub(crate) ranks: fn(&Job) -> Result<RangeInclusive<usize>>,
    pub(crate) flow: Flow,
    /// The bytes that each rank sends in a step, by formula.
    pub(crate) bytes: fn(&Job, &Sizes<'_>) -> Result<Vec<u64>>,
    /// Trains as one rank.
    pub(crate) start: fn(Communicator, &Job, JobConfig, &Extras<'_>) -> Result<Outcome>,
}

/// The sizes on which the bytes of a step depend, besides the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes<'a> {
    /// The bytes of all gradients.
    pub(crate) gradients: u64,
    pub(crate) ranks: usize,
    /// The layers of each rank of a pipeline.
    pub(crate) stages: &'a [usize],
}

/// How ranks share a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrategyName {
    Mirrored,
    MirroredHierarchicalCopy,
    MirroredOneDevice,
    CentralStorage,
    Naive,
    ShardedOptimizer,
    ShardedGradients,
    ParameterServer,
    Pipeline,
    ModelParallel,
    TensorParallel,
}

impl StrategyName {
    pub(crate) const fn way(self) -> &'static Way {
        match self {
            Self::Mirrored => &data_parallel::MIRRORED,
            Self::MirroredHierarchicalCopy => &data_parallel::HIERARCHICAL_COPY,
            Self::MirroredOneDevice => &data_parallel::ONE_DEVICE,
            Self::CentralStorage => &data_parallel::CENTRAL_STORAGE,
            Self::Naive => &data_parallel::NAIVE,
            Self::ShardedOptimizer => &data_parallel::SHARDED_OPTIMIZER,
            Self::ShardedGradients => &data_parallel::SHARDED_GRADIENTS,
            Self::ParameterServer => &servers::PARAMETER_SERVER,
            Self::Pipeline => &pipeline::PIPELINE,
            Self::ModelParallel => &pipeline::MODEL_PARALLEL,
            Self::TensorParallel => &tensor::TENSOR_PARALLEL,
        }
    }

    /// Whether it has this option, which not all have.
    pub(crate) fn has(self, option: &str) -> bool {
        self.way().options.contains(&option)
    }
}

impl ValueEnum for StrategyName {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Mirrored,
            Self::MirroredHierarchicalCopy,
            Self::MirroredOneDevice,
            Self::CentralStorage,
            Self::Naive,
            Self::ShardedOptimizer,
            Self::ShardedGradients,
            Self::ParameterServer,
            Self::Pipeline,
            Self::ModelParallel,
            Self::TensorParallel,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let Way { name, help, .. } = self.way();
        Some(PossibleValue::new(*name).help(*help))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use clap::ValueEnum;

    use super::flow::Arrow;
    use super::{Sizes, StrategyName};
    use crate::cli::{Settings, WorkerGroups, name};
    use crate::data::{Dataset, Generated, Source};
    use crate::run::Job;

    fn bytes(settings: Settings, ranks: usize) -> Vec<u64> {
        let source = Source::Generated(Generated { train: 8, test: 1, is_colour: false });
        let job = Job::new(Dataset::load(&source, None).unwrap(), settings);
        let sizes = Sizes { gradients: 1200, ranks, stages: &[] };
        (job.settings.strategy.way().bytes)(&job, &sizes).unwrap()
    }

    #[test]
    fn a_ring_sends_as_much_at_each_rank_and_a_root_or_server_all() {
        let of = |strategy, ranks| bytes(Settings { strategy, ..Settings::default() }, ranks);
        assert_eq!(of(StrategyName::Mirrored, 1), [0]);
        assert_eq!(of(StrategyName::Mirrored, 4), [1800; 4]);
        assert_eq!(of(StrategyName::Naive, 4), [3600, 1200, 1200, 1200]);
        assert_eq!(of(StrategyName::ParameterServer, 4), [3600, 1200, 1200, 1200]);
    }

    #[test]
    fn one_worker_of_a_group_sends() {
        let of = |groups| {
            let strategy = StrategyName::ParameterServer;
            bytes(Settings { strategy, groups, ..Settings::default() }, 5)
        };
        assert_eq!(of(WorkerGroups::Number(2)), [2400, 1200, 1200, 0, 0]);
        assert_eq!(of(WorkerGroups::Host), [1200, 1200, 0, 0, 0]);
    }

    /// The name in files is that of the command line.
    #[test]
    fn a_way_has_one_name() {
        for strategy in StrategyName::value_variants() {
            let saved = serde_json::to_value(strategy).unwrap();
            assert_eq!(saved.as_str().unwrap(), name(strategy));
        }
    }

    #[test]
    fn arrows_of_every_strategy_go_from_box_to_box_inside_the_picture() {
        for strategy in StrategyName::value_variants() {
            let flow = &strategy.way().flow;
            for (x, y) in &flow.places {
                assert!((20..=180).contains(x) && (20..=180).contains(y), "{strategy:?}");
            }
            for Arrow { from, to, .. } in flow.arrows() {
                assert!(from != to && from < 4 && to < 4, "{strategy:?}");
            }
        }
    }
}
