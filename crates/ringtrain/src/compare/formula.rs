//! The bytes that each rank sends in a step, by formula: a pure function. S are the bytes of all
//! gradients, n the ranks.

use strategy::{sent_bytes, server_bytes};

use crate::cli::{Settings, StrategyName};

/// By rank. The formulas of data-parallel strategies are `strategy::sent_bytes`: a ring's
/// all-reduce sends 2(n-1)/n S per rank, the naive one (n-1) S at rank 0 and S elsewhere. k servers
/// send mS/k each to m workers that push, which send S each; others add theirs to these in the
/// memory of the host. What a split model sends depends on its layers.
pub(super) fn sent(settings: &Settings, bytes: u64, ranks: usize) -> Option<Vec<u64>> {
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

#[cfg(test)]
mod tests {
    use super::sent;
    use crate::cli::{Settings, StrategyName, WorkerGroups};

    #[test]
    fn a_ring_sends_as_much_at_each_rank_and_a_root_or_server_all() {
        let of = |strategy, ranks| {
            sent(&Settings { strategy, ..Settings::default() }, 1200, ranks).unwrap()
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
            sent(&Settings { strategy, groups, ..Settings::default() }, 1200, 5).unwrap()
        };
        assert_eq!(of(WorkerGroups::Number(2)), [2400, 1200, 1200, 0, 0]);
        assert_eq!(of(WorkerGroups::Host), [1200, 1200, 0, 0, 0]);
    }
}
