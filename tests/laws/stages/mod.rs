//! Calls over stages and of single copy obey their law in random orders of the ranks, with and
//! without a death, in all pairs of collectives; and the simulator notices stages with fewer slots
//! than ranks count on.

mod simulator;

use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};
use simulator::{Death, StageViolation, Stages};

/// Collectives by the algorithms that go over stages, with some roots.
fn collectives(size: usize) -> Vec<(Algorithm, Collective)> {
    [Algorithm::Staged, Algorithm::SingleCopy]
        .into_iter()
        .flat_map(|it| made_by(it, size))
        .collect()
}

fn made_by(algorithm: Algorithm, size: usize) -> Vec<(Algorithm, Collective)> {
    let ring = Ring::natural(size as u32);
    let root =
        |it: &Collective| it.root().is_none_or(|root| root == 0 || root as usize + 1 == size);
    let made = |it: &Collective| algorithm.makes(*it, &ring);
    let all = Collective::all(size as u32).into_iter().filter(root).filter(made);
    all.map(|it| (algorithm, it)).collect()
}

/// A call with this number of blocks; a single copy has one.
fn of(
    ((algorithm, collective), blocks): ((Algorithm, Collective), u64),
) -> (Algorithm, Collective, u64) {
    (algorithm, collective, if algorithm == Algorithm::SingleCopy { 1 } else { blocks })
}

#[test]
fn no_slot_is_read_or_written_at_the_wrong_time() {
    let mut walks = 0_u64;
    for (size, depth) in [(2, 1), (2, 2), (2, 4), (3, 2), (4, 1), (5, 4)] {
        let all = collectives(size);
        for (at, &first) in all.iter().enumerate() {
            if !share::has((at * size) as u64, 4) && size > 2 {
                continue;
            }
            for &second in &all {
                for (seed, blocks) in [(1, [1, 1]), (2, [5, 3]), (3, [2, 9])] {
                    let calls = [(first, blocks[0]), (second, blocks[1]), (first, 2)];
                    let calls = calls.map(of);
                    let deaths = [(0, 3), (1, 8), (size - 1, 15)];
                    let deaths = deaths.map(|(rank, events)| Some(Death { rank, events }));
                    for death in deaths.into_iter().chain([None]) {
                        let stages = Stages::new(size, depth, &calls, seed != 2);
                        let done = stages.walk(walks * 4 + seed, death);
                        assert_eq!(done, Ok(()), "{size} ranks, {depth} slots, {calls:?}");
                        walks += 1;
                    }
                }
            }
        }
    }
    assert!(walks > 1000, "{walks} walks only");
}

#[test]
fn a_slot_too_few_is_noticed() {
    for (algorithm, collective) in made_by(Algorithm::Staged, 3) {
        let noticed = (0..200).any(|seed| {
            let stages = Stages::new(3, 3, &[(algorithm, collective, 12)], true).with_slots(2);
            let done = stages.walk(seed, None);
            matches!(
                done,
                Err(StageViolation::WrongBlock { .. } | StageViolation::Overwritten { .. })
            )
        });
        assert!(noticed, "{collective:?}");
    }
}

#[test]
fn a_rank_that_leaves_its_memory_to_its_user_too_soon_is_noticed() {
    for (algorithm, collective) in made_by(Algorithm::SingleCopy, 3) {
        let noticed = (0..200).any(|seed| {
            let stages = Stages::new(3, 4, &[(algorithm, collective, 1)], true).leaving_early();
            let done = stages.walk(seed, None);
            matches!(
                done,
                Err(StageViolation::WrongBlock { .. } | StageViolation::Overwritten { .. })
            )
        });
        assert!(noticed, "{collective:?}");
    }
}
