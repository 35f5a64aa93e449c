//! The schedules of every algorithm obey the laws for every collective that the algorithm makes,
//! with every capacity that the capacity law allows, and read the ranks in order where that is
//! promised. (`every_schedule` has larger worlds, `hierarchical` algorithms over hosts.)

use std::ops::Range;

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{ALL_PAIRS, Algorithm, Collective, Op, Ring};
use ringreduce::sim::{Random, Shape, Violation, check};

use super::work::{shuffled, works};

const TREES_AND_RINGS: [Algorithm; 7] = [
    Algorithm::Ring,
    Algorithm::TwoRings,
    Algorithm::Binomial,
    Algorithm::DoubleTree,
    Algorithm::Bruck,
    Algorithm::Circulant,
    Algorithm::Dissemination,
];

#[test]
fn the_laws_hold_in_all_small_worlds_in_any_order_of_ranks() {
    for size in 2..=16 {
        let roots: Vec<u32> = (0..size).collect();
        for ring in [Ring::natural(size), Ring::new(shuffled(size)).unwrap()] {
            for work in works(&TREES_AND_RINGS, &ring, &roots) {
                for (rounds, slices, more) in [(1, 1, 0), (3, 1, 0), (2, 3, 0), (1, 8, 7)] {
                    work.uniform(rounds, slices, more, more as u64);
                }
                work.sends_the_volume();
            }
        }
    }
}

#[test]
fn the_laws_hold_with_every_useful_capacity() {
    for size in 2..=16 {
        let ring = Ring::natural(size);
        for work in works(&Algorithm::ALL, &ring, &(0..size).collect::<Vec<_>>()) {
            work.sends_the_volume();
            for slices in [1, 2, 3, 4, 8] {
                let least = (slices + 1).max(work.algorithm.window() * slices);
                for capacity in least..=(2 * slices).max(least) {
                    // In three rounds ranks may be rounds apart.
                    for (rounds, seed) in [(1, 0), (3, 1)] {
                        let report = work.holds(&Shape::uniform(rounds, slices, capacity), seed);
                        assert_eq!(report.sent / (rounds * slices) as u64, work.volume.total);
                    }
                }
            }
        }
    }
}

/// One slot more than slices, where steps that receive and send form a cycle; not one less than
/// slices, where ranks exchange.
#[test]
fn no_algorithm_needs_more_slots_than_the_capacity_law_gives() {
    for size in 2..=17 {
        for work in works(&Algorithm::ALL, &Ring::natural(size), &[]) {
            let (algorithm, collective) = (work.algorithm, work.collective);
            for slices in [1, 3] {
                let stuck = |capacity| work.is_stuck(&Shape::uniform(2, slices, capacity));
                let fused = match (algorithm, collective) {
                    (Algorithm::HalvingDoubling, Collective::AllReduce) => true,
                    (Algorithm::TwoShot, _) => size == 2,
                    (Algorithm::Ring, Collective::AllReduce) => true,
                    // Between two ranks the halves first send, then receive.
                    (Algorithm::Ring, Collective::ReduceScatter | Collective::AllGather) => {
                        size > 2
                    }
                    (Algorithm::AllPairs | Algorithm::RecursiveDoubling, _) => false,
                    (Algorithm::HalvingDoubling, _) => false,
                    _ => continue,
                };
                assert_eq!(stuck(slices), fused, "{algorithm} {collective:?} n={size}");
                assert!(stuck(slices - 1), "{algorithm} {collective:?} n={size}");
            }
        }
    }
}

#[test]
fn the_laws_hold_for_real_partitions() {
    let capacities = [2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
    for size in 1..=9 {
        for work in works(&Algorithm::ALL, &Ring::natural(size), &[0, size / 2]) {
            work.partitions(&capacities[..8], &[0, 1, 15, 16, 17, 100, 333, 1000]);
        }
        let ring = Ring::new(shuffled(size)).unwrap();
        for work in works(&TREES_AND_RINGS, &ring, &(0..size).collect::<Vec<_>>()) {
            work.partitions(&capacities, &[0, 1, 17, 333, 1000]);
        }
    }
}

#[test]
fn a_world_of_one_copies_its_input() {
    for work in works(&Algorithm::ALL, &Ring::natural(1), &[0]) {
        let own = &work.schedules[0];
        let copies = own.steps.iter().all(|step| step.op == Op::Copy);
        // An exscan has no contribution.
        let all = own.steps.len() == own.output as usize || work.collective == Collective::Exscan;
        assert!(copies && all, "{} {:?}", work.algorithm, work.collective);
    }
}

#[test]
fn the_order_of_ranks_is_promised_just_where_it_is_kept() {
    for algorithm in Algorithm::ALL {
        let collective = Collective::AllReduce;
        let Some(schedules) = algorithm.schedules(collective, &Ring::natural(5)) else { continue };
        let volume = algorithm.volume(collective, &Ring::natural(5)).unwrap();
        let shape = Shape::uniform(1, 1, algorithm.window().max(2));
        let report = check(collective, volume, &schedules, &shape, 1).unwrap();
        assert_eq!(report.rank_order, algorithm.in_rank_order(), "{algorithm}");
    }
}

/// Bruck's algorithm needs the slots of its window; the others need fewer.
#[test]
fn a_window_needs_its_slots() {
    let window = Algorithm::Bruck.window();
    for work in works(&TREES_AND_RINGS, &Ring::natural(2 * window as u32), &[0]) {
        let (algorithm, collective) = (work.algorithm, work.collective);
        for slices in [1, 3] {
            let stuck = work.is_stuck(&Shape::uniform(1, slices, slices * window - 1));
            let other = algorithm.window() < window;
            assert!(stuck || algorithm != Algorithm::Bruck, "{algorithm} {collective:?}");
            assert!(!stuck || !other, "{algorithm} {collective:?}");
        }
    }
}

/// The slices, sends and stores of the ring's walk with one slice in each chunk.
fn amount(collective: Collective, ring: &Ring) -> [u64; 3] {
    let (n, direct) = (u64::from(ring.size()), ring.all_pairs());
    match collective {
        Collective::AllReduce => [n * (2 * n - 1), 2 * n * (n - 1), n * n],
        Collective::ReduceScatter => [n * n, n * (n - 1), n],
        Collective::AllGather => [n * (n + 1), n * (n - 1), n * n],
        Collective::Broadcast { .. } => [n + 1, n - 1, n],
        Collective::Reduce { .. } => [n, n - 1, 1],
        Collective::Gather { .. } | Collective::Scatter { .. } if direct => [2 * n - 1, n - 1, n],
        // A relayed block is stored on its way.
        Collective::Gather { .. } | Collective::Scatter { .. } => {
            let passed = (n - 1) * (n - 2) / 2;
            [2 * n - 1 + 2 * passed, n - 1 + passed, n + passed]
        }
        Collective::AllToAll if direct => [n * (2 * n - 1), n * (n - 1), n * n],
        Collective::AllToAll => {
            let (sent, copied) = (n * n * (n - 1) / 2, n * n.div_ceil(2));
            [2 * sent + copied, sent, sent + copied]
        }
        Collective::Scan => [n + 1, n - 1, n],
        Collective::Exscan => [2 + 5 * (n - 2), n - 1, 1 + 4 * (n - 2)],
        Collective::Barrier => [2 * n - 1, 2 * (n - 1), n],
        other => panic!("no formula for {other:?}"),
    }
}

#[test]
fn the_ring_walks_sends_and_stores_no_more_than_it_must_with_and_without_relays() {
    for size in 2..=16 {
        let orders = [(0..size).collect(), (0..size).rev().collect(), shuffled(size)];
        let rings = orders.map(|order| Ring::new(order).unwrap()).into_iter();
        for ring in rings.flat_map(|ring| [ring.clone(), ring.with_all_pairs(2)]) {
            for work in works(&[Algorithm::Ring], &ring, &[0, size / 2, size - 1]) {
                for (rounds, slices) in [(1, 1), (2, 3), (4, 3)] {
                    let report = work.uniform(rounds, slices, 0, 9);
                    let times = (rounds * slices) as u64;
                    let all = amount(work.collective, &ring).map(|count| count * times);
                    assert_eq!([report.slices, report.sent, report.stored], all);
                }
            }
        }
    }
}

/// Blocks of any length, some empty, some of several rounds: ranks cut their buffers differently,
/// but agree on the messages between them.
#[test]
fn the_laws_hold_for_uneven_blocks() {
    let chunks = |lengths: Vec<usize>| -> Vec<Range<usize>> {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len..*end)
        });
        ends.collect()
    };
    let mut random = Random::new(11);
    for size in (2..=9).chain([17, 20]) {
        let mut length = || random.below(5) * random.below(200);
        let between: Vec<Vec<usize>> =
            (0..size).map(|_| (0..size).map(|_| length()).collect()).collect();
        let counts = between[0].clone();
        let ring = Ring::natural(size);
        let works = works(&[Algorithm::Ring], &ring, &[0, size / 2, size - 1]);
        for work in works.iter().filter(|work| work.collective.has_blocks()) {
            let collective = work.collective;
            let halves = [Collective::ReduceScatter, Collective::AllGather];
            if size > ALL_PAIRS && !halves.contains(&collective) {
                continue; // Relayed blocks must be equally long.
            }
            let tables: Vec<_> = (0..size as usize)
                .map(|me| {
                    let own = vec![counts[me]];
                    let [input, output] = match collective {
                        Collective::AllGather | Collective::Gather { .. } => [own, counts.clone()],
                        Collective::AllToAll => {
                            [between[me].clone(), between.iter().map(|row| row[me]).collect()]
                        }
                        _ => [counts.clone(), own],
                    };
                    [chunks(input), chunks(output)]
                })
                .collect();
            let slots = SlotShape { bytes: 64, capacity: 4 };
            let partitions: Vec<_> = tables
                .iter()
                .map(|[input, output]| Partition::table(input, output, slots))
                .collect();
            work.holds(&Shape::of(&partitions, 4), 1);
        }
    }
}

#[test]
fn the_report_of_a_deadlock_names_ranks_steps_and_links() {
    let ring = Ring::natural(3);
    let work = works(&[Algorithm::Ring], &ring, &[]).remove(0);
    assert_eq!(work.collective, Collective::AllReduce);
    let text = work.verdict(&Shape::uniform(1, 1, 1), 5).unwrap_err().to_string();
    for (me, next) in [(0, 1), (1, 2), (2, 0)] {
        let rank = format!("rank {me} at round 0, step 1, slice 0");
        let line = format!("{rank} waits for an empty slot on the link {me} -> {next}");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_entered() {
    for size in 2..=16 {
        let ring = Ring::natural(size);
        let works = works(&Algorithm::ALL, &ring, &[]);
        for mut work in works.into_iter().filter(|it| it.collective == Collective::Barrier) {
            for late in 0..size {
                let steps = std::mem::take(&mut work.schedules[late as usize].steps);
                match work.verdict(&Shape::uniform(1, 1, 2), 3) {
                    Err(Violation::Stuck(blocked)) => {
                        let waiting: Vec<u32> = blocked.iter().map(|it| it.rank).collect();
                        let others: Vec<u32> = (0..size).filter(|&rank| rank != late).collect();
                        assert_eq!(waiting, others, "{} n={size}", work.algorithm);
                    }
                    other => panic!("{} {late} of {size}: {other:?}", work.algorithm),
                }
                work.schedules[late as usize].steps = steps;
            }
        }
    }
}
