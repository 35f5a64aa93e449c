//! Calls over stages obey their law in random orders of the ranks, with and without a death, in all
//! pairs of collectives; and the simulator notices stages with fewer slots than ranks count on.

use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::sim::{StageViolation, Stages};

/// Collectives that go over stages, with some roots.
fn collectives(size: usize) -> Vec<Collective> {
    let ring = Ring::natural(size as u32);
    let root =
        |it: &Collective| it.root().is_none_or(|root| root == 0 || root as usize + 1 == size);
    let made = |it: &Collective| Algorithm::Staged.makes(*it, &ring);
    Collective::all(size as u32).into_iter().filter(root).filter(made).collect()
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
                    for dies in [None, Some((0, 3)), Some((1, 8)), Some((size - 1, 15))] {
                        let stages = Stages::new(size, depth, &calls, seed != 2);
                        let done = stages.walk(walks * 4 + seed, dies);
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
    for collective in collectives(3) {
        let noticed = (0..200).any(|seed| {
            let stages = Stages::new(3, 3, &[(collective, 12)], true).with_slots(2);
            let done = stages.walk(seed, None);
            matches!(
                done,
                Err(StageViolation::WrongBlock { .. } | StageViolation::Overwritten { .. })
            )
        });
        assert!(noticed, "{collective:?}");
    }
}
