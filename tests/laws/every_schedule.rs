//! Every algorithm x every collective that it makes x every world of up to 64 ranks, and samples up
//! to 1,024, obeys the laws over links with just the necessary slots, in natural and in other
//! orders of the ranks. (`algorithms` has all capacities and roots of smaller worlds.)

use std::collections::BTreeSet;

use super::work::{Work, collectives, through};
use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};

/// Messages of the longest walk, but for the all-reduce by a ring.
const LONGEST: u64 = 300_000;

/// Random ranks on hosts of `each` ranks, the last one with the rest.
fn hosts(size: u32, each: u32) -> Ring {
    let rest = Some(size % each).filter(|&rest| rest > 0);
    through(&(0..size / each).map(|_| each).chain(rest).collect::<Vec<_>>())
}

/// The largest proper divisor: the ranks of each host.
fn divisor(size: u32) -> u32 {
    (1..size).rev().find(|each| size.is_multiple_of(*each)).unwrap_or(1)
}

/// Walks all collectives that are not too long; gives the walked algorithms and collectives.
fn walk(
    ring: &Ring,
    roots: &[u32],
    shapes: &[(usize, usize)],
) -> BTreeSet<(Algorithm, &'static str)> {
    let mut walked = BTreeSet::new();
    for algorithm in Algorithm::ALL {
        for collective in collectives(ring.size(), roots) {
            let is_main = (algorithm, collective) == (Algorithm::Ring, Collective::AllReduce);
            // The volume is asked for first: longer schedules would take gigabytes.
            let volume = algorithm
                .volume(collective, ring)
                .filter(|volume| volume.total <= LONGEST || is_main);
            let Some(work) = volume.and_then(|_| Work::of(algorithm, collective, ring)) else {
                continue;
            };
            for &(rounds, slices) in shapes {
                work.uniform(rounds, slices, 0, u64::from(ring.size()));
            }
            walked.insert((algorithm, collective.name()));
        }
    }
    walked
}

#[test]
fn the_laws_hold_in_all_worlds_of_up_to_64_ranks() {
    // A share has all small worlds and some of the others.
    for size in (1..=64).filter(|&size| size <= 12 || share::has(size.into(), 8)) {
        let all: Vec<u32> = (0..size).collect();
        let some = [0, 1, size / 2, size - 1];
        let roots = if size <= 16 { &all[..] } else { &some };
        let shape = if size <= 32 { (2, 2) } else { (1, 1) };
        let walked = walk(&Ring::natural(size), roots, &[shape]);
        assert!(walked.len() >= 24, "n={size}: {} ways only", walked.len());
        let each = divisor(size);
        let walked = walk(&hosts(size, each), &[size / 3], &[(1, 1)]);
        assert_eq!(walked.contains(&(Algorithm::Hierarchical, "all_reduce")), each > 1, "{size}");
        let uneven = hosts(size, size - size / 3);
        let walked = walk(&uneven, &[size / 3], &[(1, 1)]);
        assert_eq!(walked.contains(&(Algorithm::Hierarchical, "all_reduce")), size > 2, "{size}");
    }
}

#[test]
fn the_laws_hold_in_samples_of_up_to_1024_ranks() {
    const SIZES: [u32; 12] = [65, 96, 127, 128, 129, 255, 256, 257, 500, 1000, 1023, 1024];
    for (_, size) in (0..).zip(SIZES).filter(|(case, _)| share::has(*case, 4)) {
        let walked = walk(&hosts(size, divisor(size)), &[0, size / 2, size - 1], &[(1, 1)]);
        let all_reduces = walked.iter().filter(|(_, name)| *name == "all_reduce").count();
        assert!(all_reduces >= if size < 300 { 8 } else { 3 }, "n={size}: {walked:?}");
    }
}
