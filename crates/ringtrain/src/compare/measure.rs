//! The figures of one strategy on some ranks, which are threads: their times are those of a
//! training of all epochs; their bytes those of a few steps over links, where each collective is a
//! ring.

use super::{Row, formula};
use crate::cli::{Settings, StrategyName};
use crate::error::Result;
use crate::models::ModelKind;
use crate::run::{Job, Links, in_threads};

/// Steps whose bytes are counted.
const COUNTED_STEPS: usize = 4;

/// The figures, and the bytes of all gradients; none if the strategy can't go on so few ranks.
pub(super) fn row(job: &Job, strategy: StrategyName, ranks: usize) -> Result<Option<(Row, u64)>> {
    let settings = Settings { strategy, ..job.settings.clone() };
    let lacks_workers = strategy == StrategyName::ParameterServer && ranks <= settings.servers;
    let lacks_layers =
        strategy == StrategyName::TensorParallel && settings.model != ModelKind::Dense;
    if lacks_workers || lacks_layers {
        return Ok(None);
    }
    let mut job = Job { data: job.data.clone(), settings };
    let outcomes = in_threads(&job, ranks, Links::Fastest)?;
    // The first rank with epochs has tested.
    let timed = outcomes.iter().find(|outcome| !outcome.epochs.is_empty());
    let Some(timed) = timed.cloned() else { return Ok(None) };
    job.settings.epochs = 1;
    job.data.limit(COUNTED_STEPS * job.settings.batch);
    let counted = in_threads(&job, ranks, Links::CountedRings)?;
    let steps = counted.iter().map(|outcome| outcome.steps).max().unwrap_or(1).max(1);
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
