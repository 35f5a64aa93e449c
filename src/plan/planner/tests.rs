//! Fingerprints of plans, and the cache of plans.

use super::super::{Blocks, Candidate, PeerReads, Planner, Request, Slots, Speeds};
use super::CACHED_PLANS;
use crate::element::{DataType, ReduceOp, Reduction};
use crate::partition::SlotShape;
use crate::schedule::{Algorithm, Collective, Ring};

#[test]
fn the_fingerprint_depends_on_every_argument() {
    let shape = SlotShape { bytes: 64, capacity: 4 };
    let slots = Slots { ring: shape, other: shape };
    let mut planner = Planner::new(Ring::natural(4), 1, slots, 64);
    let base = Request {
        collective: Collective::AllReduce,
        count: 10,
        dtype: DataType::F32,
        op: Some(ReduceOp::Sum.into()),
    };
    let others = [
        base,
        Request { count: 11, ..base },
        Request { dtype: DataType::F64, ..base },
        Request { op: Some(ReduceOp::Max.into()), ..base },
        Request { op: Some(Reduction::premul_sum(2.0_f32)), ..base },
        Request { op: Some(Reduction::premul_sum(3.0_f32)), ..base },
        Request { op: Some(Reduction::user(1, 4)), ..base },
        Request { op: Some(Reduction::user(2, 4)), ..base },
        Request { op: Some(Reduction::user(1, 8)), ..base },
        Request { op: None, ..base },
        Request { collective: Collective::ReduceScatter, ..base },
        Request { collective: Collective::Broadcast { root: 0 }, ..base },
        Request { collective: Collective::Broadcast { root: 2 }, ..base },
        Request { collective: Collective::Reduce { root: 2 }, ..base },
    ];
    let mut prints: Vec<u64> = others.iter().map(|r| planner.plan(r).fingerprint).collect();
    let of_world = |me, ring: &Ring, slots, least_chunk| {
        Planner::new(ring.clone(), me, slots, least_chunk).plan(&base).fingerprint
    };
    let one = Ring::natural(4);
    let over = |hosts: &[&[u32]]| {
        let hosts: Vec<_> = hosts.iter().map(|host| host.to_vec()).collect();
        of_world(1, &Ring::through(&hosts).unwrap(), slots, 64)
    };
    prints.extend([
        of_world(1, &one, Slots { ring: SlotShape { capacity: 8, ..shape }, ..slots }, 64),
        of_world(1, &one, slots, 512),
        of_world(1, &one.clone().with_all_pairs(2), slots, 64),
        over(&[&[0, 2, 1, 3]]),
        over(&[&[0, 1], &[2, 3]]),
        over(&[&[0, 1, 2], &[3]]),
        over(&[&[2, 3], &[0, 1]]),
    ]);
    for counts in [[1, 2, 3, 4], [1, 2, 4, 3]] {
        let blocks = Blocks::new(&counts[1..2], &counts, &counts);
        let request = Request { collective: Collective::AllGather, count: 0, ..base };
        prints.push(planner.uneven(&request, blocks).fingerprint);
    }
    let distinct: std::collections::HashSet<_> = prints.iter().collect();
    assert_eq!(distinct.len(), prints.len());
    // Another rank of the world, and two descriptions of one world, have the same fingerprint.
    assert_eq!(of_world(3, &one, slots, 64), prints[0]);
    assert_eq!(of_world(1, &one.with_all_pairs(4), slots, 64), prints[0]);
    assert_eq!(over(&[&[0, 1, 2, 3]]), prints[0]);
}

#[test]
fn a_cycle_of_more_calls_than_the_cache_has_places_finds_most_of_its_plans() {
    let shape = SlotShape { bytes: 64, capacity: 4 };
    let mut planner = Planner::new(Ring::natural(4), 1, Slots { ring: shape, other: shape }, 64);
    let request = |count| Request {
        collective: Collective::AllReduce,
        count,
        dtype: DataType::F32,
        op: Some(ReduceOp::Sum.into()),
    };
    for (calls, least) in [(CACHED_PLANS, 1.0), (CACHED_PLANS + 1, 0.8), (48, 0.3)] {
        let mut found = 0;
        for at in 0..20 * calls {
            let request = request(1 + at % calls);
            let is_found = planner.calls.iter().any(|it| it.is_for(&request, planner.rules));
            found += usize::from(at >= 10 * calls && is_found);
            planner.plan(&request);
            assert!(planner.calls.len() <= CACHED_PLANS);
        }
        let part = found as f64 / (10 * calls) as f64;
        assert!(part >= least, "{part} of a cycle of {calls}");
    }
}

/// Processes read each other's memory from a length on, and what all of them get only as long as
/// their outputs stay in the caches; threads read it at any length.
#[test]
fn single_copy_is_priced_between_its_limits() {
    let slot = SlotShape { bytes: 64 << 10, capacity: 16 };
    let mut planner = Planner::new(Ring::natural(4), 0, Slots { ring: slot, other: slot }, 256);
    planner.share_host();
    planner.set_speeds(Speeds::assumed());
    let mut is_priced = |reads: &PeerReads, collective: Collective, bytes: usize| {
        planner.set_peer_reads(reads.clone());
        let count = bytes / collective.blocks(4) as usize;
        let op = collective.reduces().then(|| ReduceOp::Sum.into());
        let request = Request { collective, count, dtype: DataType::U8, op };
        let is_it = |it: &Candidate| it.algorithm == Algorithm::SingleCopy;
        planner.candidates(&request).find(is_it).is_some_and(|it| it.seconds.is_some())
    };
    let [processes, threads] = [PeerReads::Possible, PeerReads::OneProcess];
    let broadcast = Collective::Broadcast { root: 0 };
    for collective in
        [Collective::AllGather, Collective::AllToAll, Collective::AllReduce, broadcast]
    {
        let to_all = matches!(collective, Collective::AllGather) || collective == broadcast;
        for (bytes, is_made) in
            [(16 << 10, false), (32 << 10, true), (16 << 20, !to_all), (8 << 20, true)]
        {
            assert_eq!(is_priced(&processes, collective, bytes), is_made, "{collective:?} {bytes}");
            assert!(is_priced(&threads, collective, bytes), "{collective:?} {bytes}");
            assert!(!is_priced(&PeerReads::Untested, collective, bytes));
        }
    }
}
