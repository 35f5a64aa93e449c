//! The simulator walks the plans of one turn of a group, at all ranks, for circles and for random
//! patterns: nobody waits for ever. With what is received before what is sent, a circle does.

use ringreduce::DataType;
use ringreduce::partition::SlotShape;
use ringreduce::plan::{Message, Planner, Slots};
use ringreduce::schedule::{Collective, Op, Ring, Schedule};
use ringreduce::sim::{Random, Shape, Speed, Violation, cost};

const SPEED: Speed = Speed { latency: 1.0, step: 1.0, byte: 1.0, reduce: 1.0 };

/// Walks messages of these lengths, by sender and receiver; `change` may spoil the schedules.
fn walk(
    n: u32,
    capacity: usize,
    lengths: impl Fn(u32, u32) -> usize,
    change: impl Fn(&mut Schedule),
) -> Result<f64, Violation> {
    let shape = SlotShape { bytes: 64, capacity };
    let slots = Slots { ring: shape, other: shape };
    let planner = |me| Planner::new(Ring::natural(n), me, slots, 64);
    let mut planners: Vec<Planner> = (0..n).map(planner).collect();
    let lengths = &lengths;
    let plans: Vec<_> = (0..)
        .zip(&mut planners)
        .map(|(me, planner)| {
            let mut ends = [0, 0];
            let both = (0..n).flat_map(|peer| {
                [(false, peer, lengths(peer, me)), (true, peer, lengths(me, peer))]
            });
            let messages: Vec<Message> = both
                .filter(|(_, _, len)| *len > 0)
                .map(|(outgoing, peer, len)| {
                    let end = &mut ends[usize::from(outgoing)];
                    *end += len;
                    let range = (*end - len, *end);
                    Message { outgoing, peer, turn: 0, range, dtype: DataType::U8 }
                })
                .collect();
            let plan = planner.messages(&messages);
            let mut schedule = plan.schedule.clone();
            change(&mut schedule);
            (schedule, plan.partition)
        })
        .collect();
    let (schedules, partitions): (Vec<_>, Vec<_>) = plans.into_iter().unzip();
    cost(Collective::AllToAll, &schedules, &Shape::of(&partitions, capacity), SPEED)
}

#[test]
fn nobody_waits_for_ever() {
    for capacity in [2, 3, 4, 8] {
        for n in 1..=9 {
            walk(n, capacity, |from, to| if to == (from + 1) % n { 5000 } else { 0 }, |_| ())
                .unwrap();
            for seed in 0..20 {
                let lengths = |from: u32, to: u32| {
                    let mut random =
                        Random::new((seed * 16 + u64::from(from)) * 16 + u64::from(to));
                    [0, 0, 1, 64, 65, 1000, 4000][random.below(7)]
                };
                walk(n, capacity, lengths, |_| ()).unwrap();
            }
        }
    }
}

#[test]
fn what_is_received_before_it_is_sent_is_waited_for() {
    let circle = |from: u32, to: u32| if to == (from + 1) % 4 { 100 } else { 0 };
    let turned = |schedule: &mut Schedule| schedule.steps.reverse();
    let stuck = walk(4, 8, circle, turned).unwrap_err();
    assert!(matches!(&stuck, Violation::Stuck(all) if all.len() == 4), "{stuck}");
    // And without some message the other end is missed.
    let lost = |schedule: &mut Schedule| schedule.steps.retain(|step| step.op != Op::Recv);
    assert!(matches!(walk(4, 8, circle, lost), Err(Violation::Unreceived { .. })));
}
