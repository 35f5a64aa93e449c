//! Two rings, trees, Bruck's and dissemination's schedules obey the laws for every collective that
//! they do, with the capacities that they ask for, and in any order of the ranks. (Those over
//! hosts: `hosts`.)

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Algorithm, Collective, Ring, Schedule, Volume};
use ringreduce::sim::{Random, Report, Shape, Violation, check};

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::TwoRings,
    Algorithm::Binomial,
    Algorithm::DoubleTree,
    Algorithm::Bruck,
    Algorithm::Dissemination,
];

/// What one of them does, by all ranks.
struct Work {
    algorithm: Algorithm,
    collective: Collective,
    volume: Volume,
    schedules: Vec<Schedule>,
}

/// All that they do over a ring.
fn works(order: &Ring) -> Vec<Work> {
    let size = order.size();
    let mut collectives = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
    ];
    let roots = if size <= 16 { (0..size).collect() } else { vec![0, size / 2, size - 1] };
    let rooted = |root| [Collective::Broadcast { root }, Collective::Reduce { root }];
    collectives.extend(roots.into_iter().flat_map(rooted));
    let all = ALGORITHMS.into_iter().flat_map(|a| collectives.iter().map(move |&c| (a, c)));
    all.filter_map(|(algorithm, collective)| {
        let schedules = algorithm.schedules(collective, order)?;
        let volume = algorithm.volume(collective, order).unwrap();
        Some(Work { algorithm, collective, volume, schedules })
    })
    .collect()
}

fn shuffled(size: u32) -> Ring {
    let mut order: Vec<u32> = (0..size).collect();
    Random::new(u64::from(size)).shuffle(&mut order);
    Ring::new(order).unwrap()
}

impl Work {
    fn holds(&self, shape: &Shape<'_>, seed: u64) -> Report {
        let Self { algorithm, collective, volume, ref schedules } = *self;
        let size = schedules.len();
        check(collective, volume, schedules, shape, seed)
            .unwrap_or_else(|why| panic!("{algorithm} {collective:?} n={size} {shape:?}: {why}"))
    }

    /// Every chunk in so many slices, over links with the slots that it needs and `more`.
    fn uniform(&self, rounds: usize, slices: usize, more: usize, seed: u64) -> Report {
        let needed = (slices + 1).max(slices * self.algorithm.window());
        self.holds(&Shape::uniform(rounds, slices, needed + more), seed)
    }

    /// No rank sends more than the formula says, and one sends as much.
    fn most(&self) -> bool {
        let sends = |s: &Schedule| s.steps.iter().filter(|step| step.op.sends()).count() as u64;
        self.schedules.iter().map(sends).max() == Some(self.volume.most)
    }
}

#[test]
fn the_laws_hold_in_all_small_worlds() {
    for size in 1..=16 {
        for order in [Ring::natural(size), shuffled(size)] {
            for work in works(&order) {
                for (rounds, slices, more) in [(1, 1, 0), (3, 1, 0), (2, 3, 0), (1, 8, 7)] {
                    let report = work.uniform(rounds, slices, more, more as u64);
                    let tree =
                        matches!(work.algorithm, Algorithm::Binomial | Algorithm::DoubleTree);
                    let rotated = matches!(work.collective, Collective::Reduce { .. });
                    assert!(report.rank_order || rotated || !tree);
                }
                assert!(work.most(), "{} {:?} n={size}", work.algorithm, work.collective);
            }
        }
    }
}

#[test]
fn the_laws_hold_in_samples_of_large_worlds() {
    for size in [17, 31, 32, 33, 48, 63, 64, 129, 500, 1023, 1024] {
        for work in works(&Ring::natural(size)) {
            // A chunk per rank makes n^2 messages.
            if size < 130 || work.schedules[0].input < size && work.schedules[0].output < size {
                work.uniform(1, 1, 0, 1);
            }
            if size < 49 {
                work.uniform(2, 3, 0, 2);
            }
        }
    }
}

/// Chunks as `Partition` cuts them: short ones, empty ones, and a last round that is not full.
#[test]
fn the_laws_hold_for_real_partitions() {
    for size in 1..=9 {
        for work in works(&shuffled(size)) {
            for capacity in [2, 3, 4, 8, 9, 16, 33] {
                let links = SlotShape { bytes: 64, capacity };
                let Some(slots) = links.shared(work.algorithm.window()) else { continue };
                for count in [0, 1, 17, 333, 1000] {
                    let cut = |schedule: &Schedule| {
                        let even = Partition::even(count, 4, schedule.output as usize, 64, slots);
                        let exact = Partition::exact(count, 4, slots);
                        if schedule.input == schedule.output { even } else { exact }
                    };
                    let partitions: Vec<_> = work
                        .schedules
                        .iter()
                        .map(|schedule| cut(schedule).with_scratch(&schedule.scratch))
                        .collect();
                    work.holds(&Shape::of(&partitions, capacity), 1);
                }
            }
        }
    }
}

#[test]
fn a_world_of_one_copies_what_it_has() {
    for Work { algorithm, collective, schedules, .. } in works(&Ring::natural(1)) {
        let copies = schedules[0].output as usize;
        assert_eq!(schedules[0].steps.len(), copies, "{algorithm} {collective:?}");
    }
}

/// The window is what links must hold, not one slot less.
#[test]
fn a_window_needs_its_slots() {
    let window = Algorithm::Bruck.window();
    for work in works(&Ring::natural(2 * window as u32)) {
        let Work { algorithm, collective, volume, ref schedules } = work;
        for slices in [1, 3] {
            let shape = Shape::uniform(1, slices, slices * window - 1);
            let verdict = check(collective, volume, schedules, &shape, 1);
            let stuck = matches!(verdict, Err(Violation::Stuck(_)));
            let other = algorithm.window() < window;
            assert!(stuck || algorithm != Algorithm::Bruck, "{algorithm} {collective:?}");
            assert!(!stuck || !other, "{algorithm} {collective:?}");
        }
    }
}
