//! Every algorithm x every collective that it makes x every world of up to 64 ranks, and samples up
//! to 1,024, obeys the laws: over links with just the slots that it asks for, in natural and in
//! other orders of the ranks. (All capacities, roots and seeds of smaller worlds: `schedules`,
//! `algorithms`, `trees_and_rings`.)

use std::collections::BTreeSet;

use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::sim::{Random, Shape, check};

/// Messages of the longest walk. Longer ones: the ring to 1,024 ranks in `schedules`, others in
/// `algorithms`.
const LONGEST: u64 = 300_000;

/// Every collective; those with a root with these.
fn collectives(size: u32, roots: &[u32]) -> Vec<Collective> {
    let mut all = Collective::all(size);
    all.retain(|collective| collective.root().is_none_or(|root| roots.contains(&root)));
    all
}

/// Numbered by chance, so many to a host.
fn hosts(size: u32, each: u32) -> Ring {
    let mut order: Vec<u32> = (0..size).collect();
    Random::new(u64::from(size)).shuffle(&mut order);
    Ring::through(&order.chunks(each as usize).map(<[u32]>::to_vec).collect::<Vec<_>>()).unwrap()
}

/// The largest divisor but itself: hosts of so many ranks, or of one.
fn divisor(size: u32) -> u32 {
    (1..size).rev().find(|each| size.is_multiple_of(*each)).unwrap_or(1)
}

/// Walks it, where it is not too long; returns what was walked.
fn walk(
    ring: &Ring,
    roots: &[u32],
    shapes: &[(usize, usize)],
) -> BTreeSet<(Algorithm, &'static str)> {
    let size = ring.size();
    let natural = ring.is_natural();
    let mut walked = BTreeSet::new();
    for collective in collectives(size, roots) {
        for algorithm in Algorithm::ALL {
            let Some(volume) = algorithm.volume(collective, ring) else { continue };
            if volume.total > LONGEST {
                continue;
            }
            let Some(schedules) = algorithm.schedules(collective, ring) else { continue };
            for &(rounds, slices) in shapes {
                let capacity = (slices + 1).max(slices * algorithm.window());
                let shape = Shape::uniform(rounds, slices, capacity);
                let report = check(collective, volume, &schedules, &shape, u64::from(size))
                    .unwrap_or_else(|why| panic!("{algorithm} {collective:?} {ring:?}: {why}"));
                // A tree to another root than rank 0 begins with that one.
                let rotated = matches!(collective, Collective::Reduce { .. });
                let promised = natural && !rotated && algorithm.in_rank_order();
                let ordered = report.rank_order || !promised;
                assert!(ordered, "{algorithm} {collective:?} n={size}");
            }
            walked.insert((algorithm, collective.name()));
        }
    }
    walked
}

#[test]
fn in_all_worlds_of_up_to_64() {
    // A share is all small worlds and some of the others.
    for size in (1..=64).filter(|&size| size <= 12 || share::has(size.into(), 8)) {
        let all: Vec<u32> = (0..size).collect();
        let some = [0, 1, size / 2, size - 1];
        let roots = if size <= 16 { &all[..] } else { &some };
        let shape = if size <= 32 { (2, 2) } else { (1, 1) };
        let walked = walk(&Ring::natural(size), roots, &[shape]);
        assert!(walked.len() >= 28, "n={size}: {} ways only", walked.len());
        let each = divisor(size);
        let walked = walk(&hosts(size, each), &[size / 3], &[(1, 1)]);
        assert_eq!(walked.contains(&(Algorithm::Hierarchical, "all_reduce")), each > 1, "{size}");
        let uneven = hosts(size, size - size / 3);
        let walked = walk(&uneven, &[size / 3], &[(1, 1)]);
        assert_eq!(walked.contains(&(Algorithm::Hierarchical, "all_reduce")), size > 2, "{size}");
    }
}

#[test]
fn in_samples_of_up_to_1024() {
    const SIZES: [u32; 12] = [65, 96, 127, 128, 129, 255, 256, 257, 500, 1000, 1023, 1024];
    for (_, size) in (0..).zip(SIZES).filter(|(case, _)| share::has(*case, 4)) {
        let walked = walk(&hosts(size, divisor(size)), &[0, size / 2, size - 1], &[(1, 1)]);
        let all_reduces = walked.iter().filter(|(_, name)| *name == "all_reduce").count();
        assert!(all_reduces >= if size < 300 { 8 } else { 3 }, "n={size}: {walked:?}");
    }
}
