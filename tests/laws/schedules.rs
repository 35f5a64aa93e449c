//! The ring's schedules obey the laws with every capacity that the capacity law allows and in any
//! order of execution; with one slot less the fused ring is stuck.

use std::ops::Range;

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{ALL_PAIRS, Algorithm, Collective, Op, Ring, Schedule, Step};
use ringreduce::sim::{Random, Report, Shape, Violation, check};

use super::work::works;

const SLICES: [usize; 5] = [1, 2, 3, 4, 8];

fn rings(size: u32, shuffles: u64) -> Vec<Ring> {
    let mut orders: Vec<Vec<u32>> = vec![(0..size).collect(), (0..size).rev().collect()];
    for seed in 0..shuffles {
        let mut order: Vec<u32> = (0..size).collect();
        Random::new(seed).shuffle(&mut order);
        orders.push(order);
    }
    orders.into_iter().map(|order| Ring::new(order).unwrap()).collect()
}

/// Every collective; those with a root with all roots in small worlds, and some in larger ones.
fn collectives(size: u32) -> Vec<Collective> {
    let roots = if size <= 6 { (0..size).collect() } else { vec![0, size / 2, size - 1] };
    super::work::collectives(size, &roots)
}

/// The slices, sends and stores of a walk with one slice in each chunk.
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

fn laws(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape<'_>,
    seed: u64,
) -> Result<Report, Violation> {
    let ring = Ring::natural(schedules.len() as u32);
    check(collective, collective.volume(&ring), schedules, shape, seed)
}

fn holds(collective: Collective, ring: &Ring, rounds: usize, slices: usize, cap: usize, seed: u64) {
    let schedules = collective.schedules(ring);
    let shape = Shape::uniform(rounds, slices, cap);
    let verdict = check(collective, collective.volume(ring), &schedules, &shape, seed);
    let report = verdict.unwrap_or_else(|violation| {
        panic!("{collective:?} {ring:?} {slices} slices, capacity {cap}, seed {seed}: {violation}")
    });
    let times = (rounds * slices) as u64;
    let all = amount(collective, ring).map(|count| count * times);
    assert_eq!([report.slices, report.sent, report.stored], all);
}

#[test]
fn the_laws_hold_in_all_small_worlds() {
    for size in 2..=16 {
        for ring in rings(size, 2) {
            for collective in collectives(size) {
                for slices in SLICES {
                    for capacity in slices + 1..=(2 * slices).max(slices + 1) {
                        for seed in 0..3 {
                            holds(collective, &ring, 1, slices, capacity, seed);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_laws_hold_without_links_between_all_pairs() {
    for size in 3..=16 {
        for ring in rings(size, 1) {
            let ring = ring.with_all_pairs(2);
            let away = |it: &Collective| !it.keeps_to(&Ring::natural(size));
            for collective in collectives(size).into_iter().filter(away) {
                assert!(collective.keeps_to(&ring));
                for (slices, capacity) in [(1, 2), (2, 3), (3, 4), (3, 6)] {
                    holds(collective, &ring, 2, slices, capacity, 9);
                }
            }
        }
    }
}

/// Ranks may be rounds apart, and must not confuse the messages of different rounds.
#[test]
fn the_laws_hold_over_several_rounds() {
    for size in 2..=16 {
        for ring in rings(size, 1) {
            for collective in collectives(size) {
                for slices in [1, 3] {
                    holds(collective, &ring, 4, slices, slices + 1, 7);
                    holds(collective, &ring, 4, slices, 2 * slices, 8);
                }
            }
        }
    }
}

#[test]
fn the_laws_hold_in_samples_of_large_worlds() {
    for size in [17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 500, 1000, 1024] {
        for ring in rings(size, 1).drain(2..) {
            let roots = [0, size / 2, size - 1].map(|root| Collective::Broadcast { root });
            let halves = [Collective::ReduceScatter, Collective::AllGather];
            for collective in [Collective::AllReduce, Collective::Barrier].into_iter().chain(roots)
            {
                holds(collective, &ring, 1, 1, 2, 1);
            }
            for collective in halves {
                holds(collective, &ring, 1, 1, 2, 2);
            }
            if size < 130 {
                holds(Collective::AllReduce, &ring, 2, 3, 4, 3);
                let root = size / 3;
                for collective in [
                    Collective::Reduce { root },
                    Collective::Gather { root },
                    Collective::Scatter { root },
                    Collective::Scan,
                    Collective::Exscan,
                ] {
                    holds(collective, &ring, 2, 2, 3, 4);
                }
            }
            if size < 70 {
                holds(Collective::AllToAll, &ring, 2, 2, 3, 5);
            }
        }
    }
}

#[test]
fn a_world_of_one_copies_its_input() {
    let ring = Ring::natural(1);
    for collective in Collective::all(1) {
        let schedules = collective.schedules(&ring);
        // One copy; an exscan has no contribution.
        let slices = if collective == Collective::Exscan { 0 } else { 8 };
        let report = laws(collective, &schedules, &Shape::uniform(2, 4, 1), 0).unwrap();
        assert_eq!(
            report,
            Report { slices, sent: 0, stored: slices, exact: true, rank_order: true }
        );
    }
}

#[test]
fn the_laws_hold_for_real_partitions() {
    for size in 2..=9 {
        let roots: Vec<u32> = (0..size).collect();
        for ring in rings(size, 1) {
            for work in works(&[Algorithm::Ring], &ring, &roots) {
                work.partitions(&[2, 3, 4, 9], &[0, 1, 15, 16, 17, 100, 333, 1000, 2500]);
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
        for collective in collectives(size).into_iter().filter(|it| it.has_blocks()) {
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
            let schedules = collective.schedules(&Ring::natural(size));
            laws(collective, &schedules, &Shape::of(&partitions, 4), 1).unwrap();
        }
    }
}

/// The capacity law: one slot more than slices where steps receive and send.
#[test]
fn fused_rings_need_one_slot_more_than_slices() {
    for size in 2..=16 {
        for ring in rings(size, 1) {
            for slices in SLICES {
                for seed in 0..4 {
                    let stuck = |collective: Collective, capacity| {
                        let schedules = collective.schedules(&ring);
                        let shape = Shape::uniform(1, slices, capacity);
                        matches!(
                            laws(collective, &schedules, &shape, seed),
                            Err(Violation::Stuck(blocked)) if blocked.len() == size as usize
                        )
                    };
                    assert!(stuck(Collective::AllReduce, slices));
                    assert!(!stuck(Collective::AllReduce, slices + 1));
                    // Between two ranks the halves first send, then receive.
                    for half in [Collective::ReduceScatter, Collective::AllGather] {
                        assert_eq!(stuck(half, slices), size > 2);
                        assert!(stuck(half, slices - 1));
                    }
                    // No circle, hence no need.
                    assert!(!stuck(Collective::Broadcast { root: 0 }, 1));
                }
            }
        }
    }
}

/// Each chunk is received, then sent: the ring's all-gather without `RecvCopySend`.
fn staged(ring: &Ring) -> Vec<Schedule> {
    let mut schedules = Collective::AllGather.schedules(ring);
    for (me, schedule) in (0..).zip(&mut schedules) {
        let split = |step: &Step| match step.op {
            Op::RecvCopySend => vec![
                Step { op: Op::Recv, to: me, ..*step },
                Step { op: Op::Send, from: me, ..*step },
            ],
            _ => vec![*step],
        };
        schedule.steps = schedule.steps.iter().flat_map(split).collect();
    }
    schedules
}

#[test]
fn staged_rings_need_as_many_slots_as_slices() {
    for size in 2..=16 {
        let schedules = staged(&Ring::natural(size));
        for slices in SLICES {
            for seed in 0..4 {
                let verdict = |capacity| {
                    let shape = Shape::uniform(2, slices, capacity);
                    laws(Collective::AllGather, &schedules, &shape, seed)
                };
                assert!(verdict(slices).is_ok());
                assert!(matches!(verdict(slices - 1), Err(Violation::Stuck(_))));
            }
        }
    }
}

#[test]
fn the_report_of_a_deadlock_names_ranks_steps_and_links() {
    let schedules = Collective::AllReduce.schedules(&Ring::natural(3));
    let shape = Shape::uniform(1, 1, 1);
    let violation = laws(Collective::AllReduce, &schedules, &shape, 5).unwrap_err();
    let text = violation.to_string();
    for (me, next) in [(0, 1), (1, 2), (2, 0)] {
        let rank = format!("rank {me} at round 0, step 1, slice 0");
        let line = format!("{rank} waits for an empty slot on the link {me} -> {next}");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_entered() {
    for size in 2..=16 {
        for ring in rings(size, 1) {
            for late in 0..size {
                let mut schedules = Collective::Barrier.schedules(&ring);
                schedules[late as usize].steps.clear();
                let shape = Shape::uniform(1, 1, 2);
                for seed in 0..4 {
                    let others: Vec<u32> = (0..size).filter(|&rank| rank != late).collect();
                    match laws(Collective::Barrier, &schedules, &shape, seed) {
                        Err(Violation::Stuck(blocked)) => {
                            let waiting: Vec<u32> = blocked.iter().map(|it| it.rank).collect();
                            assert_eq!(waiting, others);
                        }
                        other => panic!("{late} of {size}: {other:?}"),
                    }
                }
            }
        }
    }
}
