//! The laws see: schedules made to break one law each, and every mutant of one step of one rank.

use std::collections::BTreeMap;

use ringreduce::schedule::{Collective, Op, Ring, Schedule, Step};
use ringreduce::sim::{Blocked, Shape, Violation, Wants, check};

fn verdict(collective: Collective, schedules: &[Schedule]) -> Result<(), Violation> {
    let shape = Shape::uniform(1, schedules[0].chunks, 2, 4);
    check(collective, schedules, &shape, 3).map(drop)
}

fn law(violation: &Violation) -> &'static str {
    match violation {
        Violation::Malformed { .. } => "malformed",
        Violation::Incomplete { .. } => "1 complete",
        Violation::Twice { .. } => "2 once",
        Violation::NeedlessStore { .. } => "3 no needless store",
        Violation::Bytes { .. } => "4 bytes",
        Violation::Order { .. } | Violation::Unreceived { .. } => "5 order",
        Violation::Stuck(_) => "6 live",
        Violation::Differs { .. } => "7 one expression",
        Violation::Last { .. } => "last",
    }
}

/// All schedules that differ from `schedule` (of rank `me` of `size`) in one step.
fn mutants(schedule: &Schedule, ring: &Ring, me: u32) -> Vec<Schedule> {
    let mut all = Vec::new();
    let mut add = |steps: Vec<Step>| {
        if steps != schedule.steps {
            all.push(Schedule { chunks: schedule.chunks, steps });
        }
    };
    let steps = &schedule.steps;
    for (number, &step) in steps.iter().enumerate() {
        let mut with = |other: Step| {
            let mut steps = steps.clone();
            steps[number] = other;
            add(steps);
        };
        for op in Op::ALL {
            // Once with the peers as they are, and once as the ring would have them.
            let from = if op.receives() { ring.after(me, -1) } else { me };
            let to = if op.sends() { ring.after(me, 1) } else { me };
            with(Step { op, ..step });
            for last in [false, true] {
                with(Step { op, from, to, last, ..step });
            }
        }
        for chunk in 0..=schedule.chunks {
            with(Step { chunk, ..step });
        }
        for peer in 0..=ring.size() {
            with(Step { from: peer, ..step });
            with(Step { to: peer, ..step });
        }
        with(Step { last: !step.last, ..step });
        let mut dropped = steps.clone();
        dropped.remove(number);
        add(dropped);
        let mut doubled = steps.clone();
        doubled.insert(number, step);
        add(doubled);
        if number > 0 {
            let mut swapped = steps.clone();
            swapped.swap(number - 1, number);
            add(swapped);
        }
    }
    all
}

/// The one change that no law can see, since it changes nothing: of two ranks, one receives before
/// it sends. The two slices are of different chunks and links, and the other rank sends first, so
/// that the circle is broken. (From three ranks on the order on a link would change.)
fn is_equivalent(size: u32, original: &Schedule, mutant: &Schedule) -> bool {
    let [first, second] = original.steps[..] else { return false };
    size == 2
        && first.op == Op::Send
        && matches!(second.op, Op::Recv | Op::RecvReduceCopy)
        && first.chunk != second.chunk
        && mutant.steps == [second, first]
}

#[test]
fn every_mutant_of_one_step_is_caught() {
    let (mut caught, mut survivors) = (BTreeMap::<_, u32>::new(), 0);
    for size in 2..=5 {
        let mut collectives = vec![
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Barrier,
        ];
        collectives.extend((0..size).map(|root| Collective::Broadcast { root }));
        let reversed = (0..size).rev().collect();
        for ring in [Some(Ring::natural(size)), Ring::new(reversed)].into_iter().flatten() {
            for &collective in &collectives {
                let original = collective.schedules(&ring);
                assert_eq!(verdict(collective, &original), Ok(()));
                for me in 0..size {
                    let own = &original[me as usize];
                    for mutant in mutants(own, &ring, me) {
                        let mut schedules = original.clone();
                        schedules[me as usize] = mutant.clone();
                        match verdict(collective, &schedules) {
                            Err(violation) => *caught.entry(law(&violation)).or_default() += 1,
                            Ok(()) => {
                                assert!(
                                    is_equivalent(size, own, &mutant),
                                    "{collective:?} of {size}, rank {me}: {own:?} as {mutant:?}"
                                );
                                survivors += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    // Two collectives, two ranks, two orders of the ring.
    assert_eq!(survivors, 8, "{caught:?}");
    let seen = ["1 complete", "2 once", "3 no needless store", "5 order", "6 live", "last"];
    for law in seen {
        assert!(caught[law] > 20, "{law}: {caught:?}");
    }
}

/// A step in short: op, last, chunk, from, to.
type Short = (Op, bool, u32, u32, u32);

fn schedules<const N: usize>(chunks: u32, ranks: [&[Short]; N]) -> [Schedule; N] {
    ranks.map(|steps| Schedule {
        chunks,
        steps: steps
            .iter()
            .map(|&(op, last, chunk, from, to)| Step { op, last, chunk, from, to })
            .collect(),
    })
}

#[test]
fn law_1_sees_what_is_missing() {
    let none = schedules(1, [&[], &[]]);
    let missing = Violation::Incomplete { rank: 0, chunk: 0, step: None };
    assert_eq!(verdict(Collective::AllReduce, &none), Err(missing));
    // A copy where a sum was meant.
    let copied = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::Recv, false, 0, 1, 0)],
            &[(Op::Send, false, 0, 1, 0), (Op::Recv, false, 0, 0, 1)],
        ],
    );
    let missing = Violation::Incomplete { rank: 0, chunk: 0, step: Some(1) };
    assert_eq!(verdict(Collective::AllReduce, &copied), Err(missing));
}

#[test]
fn law_2_sees_what_comes_twice_even_if_the_count_is_right() {
    // Rank 0 gets x0 + x1 back, adds x0 again instead of x2, and gives that to all.
    let twice = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::RecvReduceCopySend, true, 0, 1, 1)],
            &[(Op::RecvReduceSend, false, 0, 0, 0), (Op::RecvCopySend, false, 0, 0, 2)],
            &[(Op::Recv, false, 0, 1, 2)],
        ],
    );
    let violation = Violation::Twice { rank: 0, chunk: 0, step: Some(1) };
    assert_eq!(verdict(Collective::AllReduce, &twice), Err(violation));
}

#[test]
fn law_3_sees_a_partial_sum_stored() {
    let mut partial = Collective::AllReduce.schedules(&Ring::natural(3));
    partial[1].steps[1].op = Op::RecvReduceCopySend;
    let chunk = partial[1].steps[1].chunk;
    let violation = Violation::NeedlessStore { rank: 1, chunk, step: 1 };
    assert_eq!(verdict(Collective::AllReduce, &partial), Err(violation));
}

#[test]
fn law_4_sees_a_star() {
    // Right in all else: the root sends to everybody itself.
    let star = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::Send, false, 0, 0, 2)],
            &[(Op::Recv, false, 0, 0, 1)],
            &[(Op::Recv, false, 0, 0, 2)],
        ],
    );
    let bytes = Violation::Bytes { rank: Some(0), sent: 2, formula: 1 };
    assert_eq!(verdict(Collective::Broadcast { root: 0 }, &star), Err(bytes));
}

#[test]
fn law_4_sees_what_is_sent_in_vain() {
    // The sum is made by rank 1, which does not keep it and gets it back.
    let vain = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::Recv, false, 0, 1, 0), (Op::Send, false, 0, 0, 1)],
            &[(Op::RecvReduceSend, true, 0, 0, 0), (Op::Recv, false, 0, 0, 1)],
        ],
    );
    let bytes = Violation::Bytes { rank: None, sent: 3, formula: 2 };
    assert_eq!(verdict(Collective::Barrier, &vain), Err(bytes));
}

#[test]
fn law_5_sees_the_round() {
    let again = schedules(
        1,
        [&[(Op::Send, false, 0, 0, 1), (Op::Send, false, 0, 0, 1)], &[(Op::Recv, false, 0, 0, 1)]],
    );
    let verdict = check(Collective::Broadcast { root: 0 }, &again, &Shape::uniform(2, 1, 2, 8), 0);
    let violation = Violation::Order { rank: 1, step: 0, chunk: 0, from: 0, got: 0 };
    assert_eq!(verdict, Err(violation));
}

#[test]
fn law_5_sees_both_ends_of_a_link() {
    let mut order = Collective::AllGather.schedules(&Ring::natural(3));
    order[1].steps[1].chunk = 2;
    order[1].steps[2].chunk = 0;
    let violation = Violation::Order { rank: 1, step: 1, chunk: 2, from: 0, got: 0 };
    assert_eq!(verdict(Collective::AllGather, &order), Err(violation));
    let left = schedules(1, [&[(Op::Send, false, 0, 0, 1)], &[]]);
    let violation = Violation::Unreceived { from: 0, to: 1, left: 2 };
    assert_eq!(verdict(Collective::Broadcast { root: 0 }, &left), Err(violation));
}

#[test]
fn law_6_names_the_link() {
    let waiting = schedules(1, [&[], &[(Op::Recv, false, 0, 0, 1)]]);
    let wants = Wants::Slice;
    let blocked = Blocked { rank: 1, round: 0, step: 0, slice: 0, from: 0, to: 1, wants };
    let violation = Violation::Stuck(vec![blocked]);
    assert_eq!(verdict(Collective::Broadcast { root: 0 }, &waiting), Err(violation));
}

#[test]
fn law_7_sees_two_orders_of_one_sum() {
    // Both chunks are exchanged and folded by both: x1 + x0 here, x0 + x1 there.
    let exchange = |me, peer| {
        [
            (Op::Send, false, 0, me, peer),
            (Op::Send, false, 1, me, peer),
            (Op::RecvReduceCopy, true, 0, peer, me),
            (Op::RecvReduceCopy, true, 1, peer, me),
        ]
    };
    let both = schedules(2, [&exchange(0, 1), &exchange(1, 0)]);
    let violation = Violation::Differs { rank: 1, other: 0, chunk: 0 };
    assert_eq!(verdict(Collective::AllReduce, &both), Err(violation));
}
