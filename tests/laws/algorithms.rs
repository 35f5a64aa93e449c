//! Every algorithm's schedules obey the laws for every collective that it does, with every capacity
//! that the capacity law allows, and read the ranks in order where that is claimed.

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Algorithm, Collective, Op, Ring, Schedule};
use ringreduce::sim::{Report, Shape, Violation, check};

/// Every collective, with these roots.
fn collectives(roots: impl IntoIterator<Item = u32>) -> Vec<Collective> {
    let mut all = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
    ];
    all.extend(roots.into_iter().map(|root| Collective::Broadcast { root }));
    all
}

/// All that algorithms other than the ring do among `size` ranks.
fn works(size: u32, roots: &[u32]) -> Vec<(Algorithm, Collective, Vec<Schedule>)> {
    let order = Ring::natural(size);
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().skip(1) {
        for collective in collectives(roots.iter().copied()) {
            let schedules = algorithm.schedules(collective, &order);
            all.extend(schedules.map(|schedules| (algorithm, collective, schedules)));
        }
    }
    all
}

fn holds(
    (algorithm, collective, schedules): &(Algorithm, Collective, Vec<Schedule>),
    shape: &Shape<'_>,
    seed: u64,
) -> Report {
    let size = schedules.len() as u32;
    let volume = algorithm.volume(*collective, &Ring::natural(size)).unwrap();
    let report = check(*collective, volume, schedules, shape, seed).unwrap_or_else(|violation| {
        panic!("{algorithm} {collective:?} n={size} {shape:?}: {violation}")
    });
    assert!(report.rank_order || !algorithm.in_rank_order(), "{algorithm} {collective:?} n={size}");
    report
}

/// Chunks sent by the rank that sends most.
fn busiest(schedules: &[Schedule]) -> u64 {
    let sends = |schedule: &Schedule| schedule.steps.iter().filter(|it| it.op.sends()).count();
    schedules.iter().map(sends).max().unwrap() as u64
}

#[test]
fn the_laws_hold_in_all_small_worlds() {
    for size in 1..=16 {
        let roots: Vec<u32> = (0..size).collect();
        for work in works(size, &roots) {
            for slices in [1, 2, 3, 4, 8] {
                let least = (slices + 1).max(work.0.window() * slices);
                for capacity in least..=(2 * slices).max(least) {
                    let sent = |rounds, seed| {
                        let report = holds(&work, &Shape::uniform(rounds, slices, capacity), seed);
                        report.sent / (rounds * slices) as u64
                    };
                    let volume = work.0.volume(work.1, &Ring::natural(size)).unwrap();
                    assert_eq!(sent(1, 0), volume.total);
                    assert_eq!(busiest(&work.2), volume.most);
                    // Ranks may be rounds apart.
                    assert_eq!(sent(3, 1), volume.total);
                }
            }
        }
    }
}

#[test]
fn the_laws_hold_in_samples_of_larger_worlds() {
    for size in [17, 24, 31, 32, 33, 48, 63, 64] {
        for work in works(size, &[0, size / 2, size - 1]) {
            let window = work.0.window();
            holds(&work, &Shape::uniform(1, 1, window.max(2)), 1);
            holds(&work, &Shape::uniform(2, 3, (3 * window).max(4)), 2);
        }
    }
}

/// Where not everybody talks to everybody.
#[test]
fn the_laws_hold_in_samples_of_large_worlds() {
    for size in [100, 127, 128, 129, 256, 257, 511, 1000, 1023, 1024] {
        for algorithm in [Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling] {
            for collective in collectives([]) {
                if let Some(schedules) = algorithm.schedules(collective, &Ring::natural(size)) {
                    let work = (algorithm, collective, schedules);
                    holds(&work, &Shape::uniform(1, 1, 2), 1);
                }
            }
        }
    }
}

/// One slot more than slices, where steps that receive and send go round in a circle; not one less
/// than slices, where ranks exchange.
#[test]
fn no_algorithm_needs_more_slots_than_the_capacity_law_gives() {
    for size in 2..=17 {
        for (algorithm, collective, schedules) in works(size, &[]) {
            let volume = algorithm.volume(collective, &Ring::natural(size)).unwrap();
            for slices in [1, 3] {
                let stuck = |capacity| {
                    let shape = Shape::uniform(2, slices, capacity);
                    let verdict = check(collective, volume, &schedules, &shape, 1);
                    matches!(verdict, Err(Violation::Stuck(_)))
                };
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

/// Chunks as `Partition` cuts them: short ones, empty ones, and a last round that is not full.
#[test]
fn the_laws_hold_for_real_partitions() {
    for size in 1..=9 {
        for work in works(size, &[0, size / 2]) {
            for capacity in 2..=9 {
                let whole = SlotShape { bytes: 64, capacity };
                let Some(slots) = whole.shared(work.0.window()) else { continue };
                for count in [0, 1, 15, 16, 17, 100, 333, 1000] {
                    let Schedule { input, output, ref scratch, .. } = work.2[0];
                    let even = Partition::even(count, 4, output as usize, 64, slots);
                    let exact = Partition::exact(count, 4, slots);
                    let partition = if input == output { even } else { exact };
                    let partition = [partition.with_scratch(scratch)];
                    holds(&work, &Shape::of(&partition, capacity), 1);
                }
            }
        }
    }
}

#[test]
fn a_world_of_one_copies_what_it_has() {
    for (algorithm, collective, schedules) in works(1, &[0]) {
        let copies = schedules[0].steps.iter().all(|step| step.op == Op::Copy);
        assert!(copies, "{algorithm} {collective:?}");
    }
}

#[test]
fn the_order_of_ranks_is_promised_where_it_is_kept() {
    for algorithm in Algorithm::ALL {
        let collective = Collective::AllReduce;
        let Some(schedules) = algorithm.schedules(collective, &Ring::natural(5)) else { continue };
        let volume = algorithm.volume(collective, &Ring::natural(5)).unwrap();
        let shape = Shape::uniform(1, 1, algorithm.window().max(2));
        let report = check(collective, volume, &schedules, &shape, 1).unwrap();
        assert_eq!(report.rank_order, algorithm.in_rank_order(), "{algorithm}");
    }
}
