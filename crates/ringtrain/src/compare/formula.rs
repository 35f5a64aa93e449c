//! The bytes that each rank sends in a step, by formula: pure functions. S are the bytes of all
//! gradients, n the ranks.

use strategy::{sent_bytes, server_bytes};

use crate::cli::{Settings, StrategyName};
use crate::error::Result;
use crate::models::Network;
use crate::parallel::{borders, input_shapes};
use crate::run::Job;

/// By rank, where ranks or servers have the whole model. The formulas of data-parallel strategies
/// are `strategy::sent_bytes`: a ring's all-reduce sends 2(n-1)/n S per rank, the naive one (n-1) S
/// at rank 0 and S elsewhere. k servers send mS/k each to m workers that push, which send S each;
/// others add theirs to these in the memory of the host. For a split model there is
/// [`of_activations`].
pub(super) fn of_gradients(settings: &Settings, bytes: u64, ranks: usize) -> Option<Vec<u64>> {
    let strategy = settings.strategy;
    if let Some(strategy) = strategy.data_parallel() {
        return Some((0..ranks).map(|rank| sent_bytes(strategy, bytes, rank, ranks)).collect());
    }
    if strategy != StrategyName::ParameterServer {
        return None;
    }
    let (servers, workers) = (settings.servers, ranks.checked_sub(settings.servers)?);
    let pushers = settings.pushers(workers, 1);
    let of_server = server_bytes(bytes, servers as u64, pushers as u64);
    let of_worker = |worker| if worker < pushers { bytes } else { 0 };
    let by = |rank: usize| rank.checked_sub(servers).map_or(of_server, of_worker);
    Some((0..ranks).map(by).collect())
}

/// By rank, where each has a part of the model: the activations of all samples of a step.
///
/// `stages` are the layers of each rank of a pipeline. A stage sends its outputs forward and the
/// gradient of its inputs back, 2mA in m micro-batches if both have A bytes in each. There is one
/// pipeline, so no gradients are added up over replicas.
///
/// At the borders of split layers go 2(n-1)/n of the bytes that are summed, and (n-1)/n of those
/// that are gathered: at each rank, or in the mean over the ranks if the activations are so few
/// that a ring has no chunk for each rank.
///
/// # Errors
/// If the network does not fit the images.
pub(super) fn of_activations(
    job: &Job,
    network: &Network,
    ranks: usize,
    stages: &[usize],
) -> Result<Vec<u64>> {
    // The last batch may be smaller.
    let (images, steps) = (job.data.train.len() as u64, job.steps_per_epoch() as u64);
    let bytes = |values: usize| 4 * images * values as u64;
    if job.settings.strategy == StrategyName::TensorParallel {
        let borders = borders(network)?.into_iter();
        let sent = borders.map(|(mapping, values)| mapping.sent_bytes(bytes(values), ranks));
        return Ok(vec![sent.sum::<u64>() / steps; ranks]);
    }
    let shapes = input_shapes(network, job.data.shape)?;
    let start = |stage: usize| stages[..stage].iter().sum::<usize>();
    let before = |stage: usize| bytes(shapes[start(stage)].iter().product());
    let by = |stage: usize| {
        let forward = if stage + 1 < stages.len() { before(stage + 1) } else { 0 };
        let back = if stage > 0 { before(stage) } else { 0 };
        (forward + back) / steps
    };
    Ok((0..stages.len()).map(by).collect())
}

#[cfg(test)]
mod tests {
    use super::of_gradients;
    use crate::cli::{Settings, StrategyName, WorkerGroups};

    #[test]
    fn a_ring_sends_as_much_at_each_rank_and_a_root_or_server_all() {
        let of = |strategy, ranks| {
            of_gradients(&Settings { strategy, ..Settings::default() }, 1200, ranks).unwrap()
        };
        assert_eq!(of(StrategyName::Mirrored, 1), [0]);
        assert_eq!(of(StrategyName::Mirrored, 4), [1800; 4]);
        assert_eq!(of(StrategyName::Naive, 4), [3600, 1200, 1200, 1200]);
        assert_eq!(of(StrategyName::ParameterServer, 4), [3600, 1200, 1200, 1200]);
    }

    #[test]
    fn one_worker_of_a_group_sends() {
        let of = |groups| {
            let strategy = StrategyName::ParameterServer;
            of_gradients(&Settings { strategy, groups, ..Settings::default() }, 1200, 5).unwrap()
        };
        assert_eq!(of(WorkerGroups::Number(2)), [2400, 1200, 1200, 0, 0]);
        assert_eq!(of(WorkerGroups::Host), [1200, 1200, 0, 0, 0]);
    }
}
