//! The schedules of every algorithm but the ring obey the laws for every collective that the
//! algorithm makes, with every capacity that the capacity law allows, and read the ranks in order
//! where that is promised. (`schedules` tests the ring, `hierarchical` algorithms over hosts.)

use ringreduce::schedule::{Algorithm, Collective, Op, Ring};
use ringreduce::sim::{Shape, check};

use super::work::{shuffled, works};

const TREES_AND_RINGS: [Algorithm; 5] = [
    Algorithm::TwoRings,
    Algorithm::Binomial,
    Algorithm::DoubleTree,
    Algorithm::Bruck,
    Algorithm::Dissemination,
];

fn algorithms() -> &'static [Algorithm] {
    &Algorithm::ALL[1..]
}

#[test]
fn the_laws_hold_in_all_small_worlds_in_any_order_of_ranks() {
    for size in 1..=16 {
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
    for size in 1..=16 {
        let ring = Ring::natural(size);
        for work in works(algorithms(), &ring, &(0..size).collect::<Vec<_>>()) {
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

#[test]
fn the_laws_hold_in_samples_of_larger_worlds() {
    for size in [17, 24, 31, 32, 33, 48, 63, 64] {
        for work in works(algorithms(), &Ring::natural(size), &[0, size / 2, size - 1]) {
            work.uniform(1, 1, 0, 1);
            work.uniform(2, 3, 0, 2);
        }
    }
}

/// In these worlds not all pairs of ranks exchange messages.
#[test]
fn the_laws_hold_in_samples_of_large_worlds() {
    for size in [100, 127, 128, 129, 256, 257, 511, 1000, 1023, 1024] {
        let ring = Ring::natural(size);
        for work in works(&[Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling], &ring, &[]) {
            work.uniform(1, 1, 0, 1);
        }
    }
    for size in [129, 500, 1023, 1024] {
        for work in works(&TREES_AND_RINGS, &Ring::natural(size), &[0, size / 2, size - 1]) {
            // A chunk for each rank makes n^2 messages.
            if size < 130 || work.schedules[0].input < size && work.schedules[0].output < size {
                work.uniform(1, 1, 0, 1);
            }
        }
    }
}

/// One slot more than slices, where steps that receive and send form a cycle; not one less than
/// slices, where ranks exchange.
#[test]
fn no_algorithm_needs_more_slots_than_the_capacity_law_gives() {
    for size in 2..=17 {
        for work in works(algorithms(), &Ring::natural(size), &[]) {
            let (algorithm, collective) = (work.algorithm, work.collective);
            for slices in [1, 3] {
                let stuck = |capacity| work.is_stuck(&Shape::uniform(2, slices, capacity));
                let fused = match (algorithm, collective) {
                    (Algorithm::HalvingDoubling, Collective::AllReduce) => true,
                    (Algorithm::TwoShot, _) => size == 2,
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
        for work in works(algorithms(), &Ring::natural(size), &[0, size / 2]) {
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
    for work in works(algorithms(), &Ring::natural(1), &[0]) {
        let own = &work.schedules[0];
        let copies = own.steps.iter().all(|step| step.op == Op::Copy);
        let all = own.steps.len() == own.output as usize;
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
