//! The figures of one strategy on some ranks, which are threads: their times are those of a
//! training of all epochs; their bytes those of a few steps over links, where each collective is a
//! ring.

use super::{Row, row_name};
use crate::cli::{PolicyName, Settings, WorkerGroups, name};
use crate::error::{Error, Result};
use crate::run::{Job, Links, in_threads};
use crate::ways::{Sizes, StrategyName};

/// Steps whose bytes are counted.
const COUNTED_STEPS: usize = 4;

/// The trainings that are compared.
#[derive(Debug)]
pub(super) struct Trainings {
    /// Each strategy on each number of ranks that all have something to do.
    pub(super) all: Vec<(Job, usize)>,
    /// The runs that are left out, each with the reason.
    pub(super) left_out: Vec<String>,
}

/// The trainings to compare.
///
/// # Errors
/// If the settings do not fit one of the strategies or of the numbers, or all are left out.
pub(super) fn trainings(
    job: &Job,
    strategies: &[StrategyName],
    worlds: &[usize],
) -> Result<Trainings> {
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for settings in strategies.iter().flat_map(|strategy| compared(&job.settings, *strategy)) {
        let row = row_name(&settings);
        let mut job = job.clone();
        job.settings = settings;
        if !job.suits_optimizer() {
            let optimizer = name(&job.settings.optimizer);
            left_out.push(format!(
                "{row} splits parameters, which --optimizer {optimizer} needs whole: left out"
            ));
            continue;
        }
        let usable = (job.settings.strategy.way().ranks)(&job)?;
        let (fit, unfit): (Vec<usize>, Vec<usize>) =
            worlds.iter().partition(|it| usable.contains(*it));
        for ranks in fit {
            let mut job = job.clone();
            if let WorkerGroups::Number(groups) = &mut job.settings.groups {
                // A few ranks may have fewer workers than there are groups.
                *groups = (*groups).min(ranks.saturating_sub(job.settings.servers).max(1));
            }
            job.check(ranks)?;
            all.push((job, ranks));
        }
        if !unfit.is_empty() {
            let needs = match (usable.start(), usable.end()) {
                (least, &usize::MAX) => format!("at least {least} ranks"),
                (_, most) => format!("at most {most} ranks"),
            };
            let unfit: Vec<String> = unfit.iter().map(ToString::to_string).collect();
            left_out.push(format!("{row} needs {needs}: left out on {}", unfit.join(", ")));
        }
    }
    if all.is_empty() {
        return Err(Error::Unfit(format!(
            "nothing is left to compare: {}; choose other --worlds or --only other strategies",
            left_out.join("; ")
        )));
    }
    Ok(Trainings { all, left_out })
}

/// The settings of the trainings of a strategy: servers are compared by both policies.
fn compared(settings: &Settings, strategy: StrategyName) -> Vec<Settings> {
    let settings = Settings { strategy, ..settings.clone() };
    if !strategy.has("policy") {
        return vec![settings];
    }
    let asynchronous =
        Settings { policy: PolicyName::Asynchronous, backups: 0, ..settings.clone() };
    vec![Settings { policy: PolicyName::Synchronous, bound: None, ..settings }, asynchronous]
}

/// The figures, and the bytes of all gradients.
pub(super) fn row(mut job: Job, ranks: usize) -> Result<(Row, u64)> {
    let outcomes = in_threads(&job, ranks, Links::Fastest)?;
    // The first rank with epochs has tested: servers have none.
    let timed = outcomes.iter().position(|outcome| !outcome.epochs.is_empty()).unwrap_or(0);
    let timed = outcomes[timed].clone();
    job.settings.epochs = 1;
    // The learning rate plays no part in bytes.
    job.settings.warmup = 0;
    job.data.limit(COUNTED_STEPS * job.settings.batch);
    let counted = in_threads(&job, ranks, Links::CountedRings)?;
    // A server counts updates, which an asynchronous one makes for each worker's step.
    let trained = counted.iter().filter(|outcome| !outcome.epochs.is_empty());
    let steps = trained.map(|outcome| outcome.steps).max().unwrap_or(1).max(1);
    let sent = counted.iter().map(|outcome| outcome.sent_bytes.unwrap_or_default() / steps);
    // Only a split model has fewer elements at a rank than there are.
    let bytes = 4 * outcomes.iter().map(|outcome| outcome.parameters as u64).max().unwrap_or(0);
    let stages = counted[0].pipeline.as_ref().map_or(&[][..], |it| &it.layers);
    let sizes = Sizes { gradients: bytes, ranks, stages };
    let formula = (job.settings.strategy.way().bytes)(&job, &sizes)?;
    let milliseconds = |of: fn(&crate::run::EpochReport) -> f64| {
        timed.epochs.iter().map(of).sum::<f64>() * 1e3 / timed.steps.max(1) as f64
    };
    let images: usize = timed.epochs.iter().map(|epoch| epoch.images).sum();
    let step = milliseconds(|epoch| epoch.seconds);
    let row = Row {
        name: row_name(&job.settings),
        strategy: job.settings.strategy,
        ranks,
        step,
        exposed: milliseconds(|epoch| epoch.exposed),
        hidden: milliseconds(|epoch| epoch.hidden),
        images_per_second: images as f64 / (step / 1e3 * timed.steps.max(1) as f64).max(1e-9),
        accuracy: timed.accuracy(),
        sent: sent.collect(),
        formula,
    };
    Ok((row, bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{Row, Trainings, row, row_name, trainings};
    use crate::cli::{OptimizerName, PolicyName, Settings, WorkerGroups};
    use crate::data::{Dataset, Generated, Source};
    use crate::models::ModelKind;
    use crate::run::Job;
    use crate::ways::StrategyName;

    fn job(settings: Settings) -> Job {
        let source = Source::Generated(Generated { train: 48, test: 10, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        Job::new(data, Settings { epochs: 1, batch: 12, ..settings })
    }

    #[test]
    fn a_strategy_whose_ranks_would_have_no_layer_has_no_row() {
        let job = job(Settings { model: ModelKind::Dense, ..Settings::default() });
        let strategies =
            [StrategyName::Pipeline, StrategyName::ModelParallel, StrategyName::TensorParallel];
        let Trainings { all, left_out } = trainings(&job, &strategies, &[3, 4, 11]).unwrap();
        let rows: Vec<_> = all.iter().map(|(job, ranks)| (job.settings.strategy, *ranks)).collect();
        let [pipeline, model, tensor] = strategies;
        assert_eq!(rows, [(pipeline, 3), (model, 3), (tensor, 3), (tensor, 4)]);
        assert_eq!(
            left_out,
            [
                "pipeline needs at most 3 ranks: left out on 4, 11",
                "model-parallel needs at most 3 ranks: left out on 4, 11",
                "tensor-parallel needs at most 10 ranks: left out on 11",
            ]
        );
        let said = trainings(&job, &strategies, &[12]).unwrap_err().to_string();
        assert!(said.contains("nothing is left to compare: pipeline needs at most 3"), "{said}");
    }

    #[test]
    fn servers_are_compared_by_both_policies_with_the_options_of_each() {
        let settings = Settings { bound: Some(3), backups: 1, ..Settings::default() };
        let servers = [StrategyName::ParameterServer];
        let Trainings { all, left_out } = trainings(&job(settings), &servers, &[1, 3]).unwrap();
        let rows: Vec<_> = all.iter().map(|(job, _)| (row_name(&job.settings), job)).collect();
        let settings: Vec<_> = rows
            .iter()
            .map(|(name, job)| (&**name, job.settings.bound, job.settings.backups))
            .collect();
        assert_eq!(
            settings,
            [("parameter-server", None, 1), ("parameter-server-asynchronous", Some(3), 0)]
        );
        assert_eq!(left_out[0], "parameter-server needs at least 2 ranks: left out on 1");
    }

    #[test]
    fn settings_that_do_not_fit_one_training_are_refused_before_the_first_one() {
        let strategies = [StrategyName::Mirrored, StrategyName::ShardedOptimizer];
        let lamb = Settings { optimizer: OptimizerName::Lamb, ..Settings::default() };
        let Trainings { all, left_out } = trainings(&job(lamb), &strategies, &[1]).unwrap();
        assert_eq!(all.len(), 1);
        let expected =
            "sharded-optimizer splits parameters, which --optimizer lamb needs whole: left out";
        assert_eq!(left_out, [expected]);
        let mut small = job(Settings::default());
        small.settings.batch = 3;
        let said = trainings(&small, &strategies, &[1, 4]).unwrap_err().to_string();
        assert!(said.contains("--batch 3 is less than the 4 ranks"), "{said}");
    }

    /// The row with the mean of the ranks' bytes at each rank of split layers: a ring cuts a short
    /// sum into fewer chunks than there are ranks, so that some ranks send more than others.
    fn evened(mut row: Row) -> Row {
        if row.strategy == StrategyName::TensorParallel {
            let mean = row.sent.iter().sum::<u64>() / row.ranks as u64;
            row.sent.fill(mean);
        }
        row
    }

    #[track_caller]
    fn assert_sent(row: &Row, what: &str) {
        assert_eq!(row.sent.len(), row.formula.len(), "{what}");
        for (sent, formula) in row.sent.iter().zip(&row.formula) {
            let (sent, formula) = (*sent as f64, *formula as f64);
            // Headers are a few bytes more.
            let difference = (sent - formula).abs();
            assert!(difference < 0.02 * formula + 100.0, "{what}: {sent}, not {formula}");
        }
    }

    /// 48 images in batches of 20 leave a last batch of 8.
    #[test]
    fn parts_of_a_model_send_in_a_step_what_the_formula_says() {
        use StrategyName::{ModelParallel, Pipeline, TensorParallel};
        let frozen = vec!["conv".to_owned()];
        for (strategy, model, freeze, ranks, most) in [
            (TensorParallel, ModelKind::LeNet, vec![], 2, 20 * 4 * 500),
            (TensorParallel, ModelKind::LeNet, vec![], 4, 20 * 4 * 800),
            (TensorParallel, ModelKind::LeNet, frozen.clone(), 3, 20 * 4 * 300),
            (TensorParallel, ModelKind::Dense, vec![], 3, 20 * 4 * 700),
            (TensorParallel, ModelKind::Vgg, vec![], 2, 20 * 4 * 300),
            (Pipeline, ModelKind::LeNet, vec![], 2, 20 * 4 * 4000),
            (Pipeline, ModelKind::LeNet, frozen, 3, 20 * 4 * 4500),
            (ModelParallel, ModelKind::Dense, vec![], 3, 20 * 4 * 800),
        ] {
            let mut job = job(Settings { strategy, model, freeze, ..Settings::default() });
            job.settings.batch = 20;
            let (row, _) = row(job, ranks).unwrap();
            let what = format!("{strategy:?}, {model:?}, {ranks} ranks");
            assert_sent(&evened(row.clone()), &what);
            let sent = row.sent.iter().copied().max().unwrap();
            assert!(sent > 20 * 4 * 10 && sent < most, "{what}: {sent} of {most}");
        }
    }

    #[test]
    fn servers_send_in_a_step_of_the_workers_what_the_formula_says() {
        let asynchronous = (PolicyName::Asynchronous, WorkerGroups::Each);
        let in_groups = (PolicyName::Synchronous, WorkerGroups::Number(2));
        for (policy, groups) in [asynchronous, in_groups] {
            let strategy = StrategyName::ParameterServer;
            let job = job(Settings { strategy, policy, groups, ..Settings::default() });
            let (row, _) = row(job, 4).unwrap();
            assert_sent(&row, &format!("{groups:?}"));
        }
    }
}
