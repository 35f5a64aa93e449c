//! The figures of one strategy on some ranks, which are threads: their times are those of a
//! training of all epochs; their bytes those of a few steps over links, where each collective is a
//! ring.

use super::{Row, formula};
use crate::cli::{Settings, StrategyName};
use crate::error::Result;
use crate::models::ModelKind;
use crate::run::data_parallel::network;
use crate::run::{Job, Links, in_threads};

/// Steps whose bytes are counted.
const COUNTED_STEPS: usize = 4;

/// The figures, and the bytes of all gradients; none if the strategy can't go on so few ranks.
pub(super) fn row(job: &Job, strategy: StrategyName, ranks: usize) -> Result<Option<(Row, u64)>> {
    let settings = Settings { strategy, ..job.settings.clone() };
    let mut job = Job { data: job.data.clone(), settings };
    if !can_share(&job, ranks)? {
        return Ok(None);
    }
    let outcomes = in_threads(&job, ranks, Links::Fastest)?;
    // The first rank with epochs has tested.
    let timed = outcomes.iter().find(|outcome| !outcome.epochs.is_empty());
    let Some(timed) = timed.cloned() else { return Ok(None) };
    job.settings.epochs = 1;
    job.data.limit(COUNTED_STEPS * job.settings.batch);
    let counted = in_threads(&job, ranks, Links::CountedRings)?;
    // A server counts updates, which an asynchronous one makes for each worker's step.
    let trained = counted.iter().filter(|outcome| !outcome.epochs.is_empty());
    let steps = trained.map(|outcome| outcome.steps).max().unwrap_or(1).max(1);
    let sent = counted.iter().map(|outcome| outcome.sent_bytes.unwrap_or_default() / steps);
    // Only a split model has fewer elements at a rank than there are.
    let bytes = 4 * outcomes.iter().map(|outcome| outcome.parameters as u64).max().unwrap_or(0);
    let milliseconds = |of: fn(&crate::run::EpochReport) -> f64| {
        timed.epochs.iter().map(of).sum::<f64>() * 1e3 / timed.steps.max(1) as f64
    };
    let images: usize = timed.epochs.iter().map(|epoch| epoch.images).sum();
    let step = milliseconds(|epoch| epoch.seconds);
    let row = Row {
        strategy,
        ranks,
        step,
        exposed: milliseconds(|epoch| epoch.exposed),
        hidden: milliseconds(|epoch| epoch.hidden),
        images_per_second: images as f64 / (step / 1e3 * timed.steps.max(1) as f64).max(1e-9),
        accuracy: timed.epochs.last().map_or(0.0, |epoch| epoch.accuracy),
        sent: sent.collect(),
        formula: formula::sent(&job.settings, bytes, ranks),
    };
    Ok(Some((row, bytes)))
}

/// Whether the ranks of a strategy all have something to do.
fn can_share(job: &Job, ranks: usize) -> Result<bool> {
    let settings = &job.settings;
    Ok(match settings.strategy {
        StrategyName::ParameterServer => ranks > settings.servers,
        StrategyName::TensorParallel => {
            settings.model == ModelKind::Dense && ranks <= job.data.classes.len()
        }
        StrategyName::Pipeline | StrategyName::ModelParallel => {
            ranks <= network(job)?.layers().len()
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::row;
    use crate::cli::{PolicyName, Settings, StrategyName, WorkerGroups};
    use crate::data::{Dataset, Generated, Source};
    use crate::models::ModelKind;
    use crate::run::Job;

    fn job(settings: Settings) -> Job {
        let source = Source::Generated(Generated { train: 48, test: 10, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        Job { data, settings: Settings { epochs: 1, batch: 12, ..settings } }
    }

    #[test]
    fn a_strategy_whose_ranks_would_have_no_layer_has_no_row() {
        let job = job(Settings { model: ModelKind::Dense, ..Settings::default() });
        for (strategy, has_row) in [
            (StrategyName::Pipeline, false),
            (StrategyName::ModelParallel, false),
            (StrategyName::TensorParallel, true),
        ] {
            assert_eq!(row(&job, strategy, 4).unwrap().is_some(), has_row, "{strategy:?}");
        }
        assert!(row(&job, StrategyName::Pipeline, 3).unwrap().is_some());
    }

    #[test]
    fn servers_send_in_a_step_of_the_workers_what_the_formula_says() {
        let asynchronous = (PolicyName::Asynchronous, WorkerGroups::Each);
        let in_groups = (PolicyName::Synchronous, WorkerGroups::Number(2));
        for (policy, groups) in [asynchronous, in_groups] {
            let job = job(Settings { policy, groups, ..Settings::default() });
            let (row, _) = row(&job, StrategyName::ParameterServer, 4).unwrap().unwrap();
            for (sent, formula) in row.sent.iter().zip(row.formula.unwrap()) {
                let (sent, formula) = (*sent as f64, formula as f64);
                // Headers are a few bytes more.
                let difference = (sent - formula).abs();
                assert!(difference < 0.02 * formula + 100.0, "{groups:?}: {sent}, not {formula}");
            }
        }
    }
}
