//! Schedules that break one law each, and the violations that the simulator reports.

use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Collective, Op, Order, Place, Ring, Schedule, Step};
use ringreduce::sim::{Blocked, Shape, Violation, Wants, check};

/// The verdict on schedules, by the ring's formula.
fn verdict(collective: Collective, schedules: &[Schedule]) -> Result<(), Violation> {
    let volume = collective.volume(&Ring::natural(schedules.len() as u32));
    check(collective, volume, schedules, &Shape::uniform(1, 2, 4), 3).map(drop)
}

/// A short form of a step from input to output: op, last, chunk, from, to.
type Short = (Op, bool, u32, u32, u32);

fn long((op, last, chunk, from, to): Short) -> Step {
    let (src, dst) = (Place::input(chunk), Place::output(chunk));
    let (src, dst) = match (op.reads(), op.stores()) {
        (true, true) => (src, dst),
        (true, false) => (src, src),
        (false, _) => (dst, dst),
    };
    Step { op, last, order: Order::default(), src, dst, from, to }
}

fn schedules<const N: usize>(chunks: u32, ranks: [&[Short]; N]) -> [Schedule; N] {
    ranks.map(|steps| Schedule {
        steps: steps.iter().map(|&short| long(short)).collect(),
        ..Schedule::new(chunks, chunks)
    })
}

#[test]
fn law_1_sees_what_is_missing() {
    let none = schedules(1, [&[], &[]]);
    let missing = Violation::Incomplete { rank: 0, chunk: 0, step: None };
    assert_eq!(verdict(Collective::AllReduce, &none), Err(missing));
    // The schedules copy where they should reduce.
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
fn law_2_sees_a_contribution_twice_even_if_the_count_is_right() {
    // Rank 0 gets x0 + x1 back, adds x0 again instead of x2, and sends that to all.
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
    let chunk = partial[1].steps[1].src.chunk;
    partial[1].steps[1].dst = Place::output(chunk);
    let violation = Violation::NeedlessStore { rank: 1, chunk, step: 1 };
    assert_eq!(verdict(Collective::AllReduce, &partial), Err(violation));
}

#[test]
fn law_4_sees_a_star() {
    // The root itself sends to all; the result is right.
    let star = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::Send, false, 0, 0, 2), (Op::Copy, false, 0, 0, 0)],
            &[(Op::Recv, false, 0, 0, 1)],
            &[(Op::Recv, false, 0, 0, 2)],
        ],
    );
    let bytes = Violation::Bytes { rank: Some(0), sent: 2, formula: 1 };
    assert_eq!(verdict(Collective::Broadcast { root: 0 }, &star), Err(bytes));
}

#[test]
fn law_4_sees_a_needless_message() {
    // Rank 1 computes the sum, does not store it and gets it back.
    let mut vain = schedules(
        1,
        [
            &[(Op::Send, false, 0, 0, 1), (Op::Recv, false, 0, 1, 0), (Op::Send, false, 0, 0, 1)],
            &[(Op::RecvReduceSend, true, 0, 0, 0), (Op::Recv, false, 0, 0, 1)],
        ],
    );
    (vain[0].steps[2].src, vain[0].steps[2].dst) = (Place::output(0), Place::output(0));
    let bytes = Violation::Bytes { rank: None, sent: 3, formula: 2 };
    assert_eq!(verdict(Collective::Barrier, &vain), Err(bytes));
}

#[test]
fn law_5_sees_a_message_of_another_round() {
    let again = schedules(
        1,
        [&[(Op::Send, false, 0, 0, 1), (Op::Send, false, 0, 0, 1)], &[(Op::Recv, false, 0, 0, 1)]],
    );
    let collective = Collective::Broadcast { root: 0 };
    let shape = Shape::uniform(2, 2, 8);
    let verdict = check(collective, collective.volume(&Ring::natural(2)), &again, &shape, 0);
    let violation = Violation::Order { rank: 1, step: 0, chunk: 0, from: 0, got: 0 };
    assert_eq!(verdict, Err(violation));
}

/// Messages show the length of their chunk, and so a wrong chunk of another length.
#[test]
fn law_5_sees_both_ends_of_a_link() {
    let mut order = Collective::AllGather.schedules(&Ring::natural(3));
    let slots = SlotShape { bytes: 64, capacity: 4 };
    let gathered = [0..40, 40..88, 88..144];
    let own = [0..40, 0..48, 0..56];
    let cut = |rank: usize| Partition::table(&own[rank..=rank], &gathered, slots);
    let cuts = [0, 1, 2].map(cut);
    let volume = Collective::AllGather.volume(&Ring::natural(3));
    let verdict = |schedules: &[Schedule]| {
        check(Collective::AllGather, volume, schedules, &Shape::of(&cuts, 4), 0).map(drop)
    };
    assert_eq!(verdict(&order), Ok(()));
    for (step, chunk) in [(2, 2), (3, 0)] {
        let place = Place::output(chunk);
        (order[1].steps[step].src, order[1].steps[step].dst) = (place, place);
    }
    let violation = Violation::Order { rank: 1, step: 2, chunk: 2, from: 0, got: 0 };
    assert_eq!(verdict(&order), Err(violation));
    let equal = Violation::Incomplete { rank: 1, chunk: 0, step: Some(3) };
    assert_eq!(
        check(Collective::AllGather, volume, &order, &Shape::uniform(1, 2, 4), 0).map(drop),
        Err(equal)
    );
}

#[test]
fn law_5_sees_a_message_without_a_receiver() {
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
    // Both ranks exchange and fold both chunks: as x1 + x0 at one, as x0 + x1 at the other.
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

/// An all-gather of two ranks through a scratch place, which is filled as `first` and read as
/// `second`.
fn through_scratch(first: u32, second: u32) -> Result<(), Violation> {
    let rank = |me: u32| {
        let (mine, scratch) = (Place::input(0), Place::scratch(first));
        let steps = vec![
            Step::new(Op::Send, me, mine).to(1 - me),
            Step::new(Op::Copy, me, mine).into(Place::output(me)),
            Step::new(Op::Recv, me, scratch).from(1 - me),
            Step::new(Op::Copy, me, Place::scratch(second)).into(Place::output(1 - me)),
        ];
        Schedule { scratch: vec![mine; 2], steps, ..Schedule::new(1, 2) }
    };
    let volume = Collective::AllGather.volume(&Ring::natural(2));
    // In several rounds the scratch of one round is of no use to the next.
    check(Collective::AllGather, volume, &[rank(0), rank(1)], &Shape::uniform(3, 2, 4), 1).map(drop)
}

#[test]
fn law_3_sees_a_scratch_place_that_is_never_read() {
    assert_eq!(through_scratch(1, 1), Ok(()));
    assert!(matches!(through_scratch(0, 1), Err(Violation::NeedlessStore { step: 2, .. })));
    let mut left = Collective::AllGather.schedules(&Ring::natural(1));
    left[0].steps.push(Step::new(Op::Copy, 0, Place::input(0)).into(Place::scratch(0)));
    left[0].scratch.push(Place::input(0));
    let violation = Violation::NeedlessStore { rank: 0, chunk: 0, step: 1 };
    assert_eq!(verdict(Collective::AllGather, &left), Err(violation));
}
