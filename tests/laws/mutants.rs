//! The laws detect every mutant of one step of one rank, unless the mutant does the same.

use std::collections::BTreeMap;

use ringreduce::schedule::{
    Algorithm, Collective, Op, Order, Place, Ring, Schedule, Step, Volume, relay,
};
use ringreduce::sim::{Report, Shape, Violation, check};

use super::work::works;

fn laws(
    collective: Collective,
    volume: Volume,
    schedules: &[Schedule],
) -> Result<Report, Violation> {
    check(collective, volume, schedules, &Shape::uniform(2, 2, 4), 3)
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
        Violation::Disordered { .. } => "8 rank order",
        Violation::Last { .. } => "last",
        other => panic!("a law without a name: {other}"),
    }
}

/// All steps that differ from `step` (of rank `me` of `size`) in one thing.
fn other_steps(schedule: &Schedule, step: Step, size: u32, me: u32) -> Vec<Step> {
    let mut all = Vec::new();
    for op in Op::ALL {
        all.push(Step { op, ..step });
        // Add the operation with the fields that it requires.
        let order = if op.reduces() { step.order } else { Order::default() };
        let from = if op.receives() { (me + size - 1) % size } else { me };
        let to = if op.sends() { (me + 1) % size } else { me };
        for place in [step.src, step.dst] {
            for last in [false, true] {
                let one = Step { op, order, from, to, last, src: place, dst: place };
                all.extend([one, Step { src: step.src, dst: step.dst, ..one }]);
            }
        }
    }
    let inputs = (0..=schedule.input).map(Place::input);
    let outputs = (0..=schedule.output).map(Place::output);
    let scratch = (0..=schedule.scratch.len() as u32).map(Place::scratch);
    for place in inputs.chain(outputs).chain(scratch) {
        all.push(Step { src: place, ..step });
        all.push(Step { dst: place, ..step });
        all.push(Step { src: place, dst: place, ..step });
    }
    for peer in 0..=size {
        all.push(Step { from: peer, ..step });
        all.push(Step { to: peer, ..step });
    }
    all.push(Step { last: !step.last, ..step });
    all.extend([Order::IncomingFirst, Order::LocalFirst].map(|order| Step { order, ..step }));
    all.retain(|other| *other != step);
    all
}

/// All schedules that differ from `schedule` (of rank `me` of `size`) in one step.
fn mutants(schedule: &Schedule, size: u32, me: u32) -> Vec<Schedule> {
    let mut all = Vec::new();
    let mut add = |steps: Vec<Step>| all.push(Schedule { steps, ..schedule.clone() });
    let steps = &schedule.steps;
    for (number, &step) in steps.iter().enumerate() {
        for other in other_steps(schedule, step, size, me) {
            let mut steps = steps.clone();
            steps[number] = other;
            add(steps);
        }
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

/// The reason why a mutant is equivalent to the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// Two steps changed places that use different links or directions, and neither stores where
    /// the other reads or stores. (Law 6 reports a deadlock.)
    Reordered,
    /// The step reads a copy of the original place, or the original of a copy.
    ReadsTheSame,
    /// The operands of one fold are exchanged. The result, which only this rank computes, is still
    /// one expression, and the ring promises no order of ranks.
    Commutes,
    /// A barrier is received twice, and once is enough.
    HeardTwice,
}

/// True if one step stores where the other reads or stores.
fn conflict(a: &Step, b: &Step) -> bool {
    let stores = |step: &Step, place| step.op.stores() && step.dst == place;
    let uses = |step: &Step, place| {
        let reads = (step.op.reads() && step.src == place)
            || (step.op == Op::ReduceCopy && step.dst == place);
        reads || stores(step, place)
    };
    (a.op.stores() && uses(b, a.dst)) || (b.op.stores() && uses(a, b.dst))
}

/// True if `one` and `other` hold the same after `steps`: the last store to either is a copy.
fn same(steps: &[Step], one: Place, other: Place) -> bool {
    let pair = |step: &&Step| step.op.stores() && (step.dst == one || step.dst == other);
    steps.iter().rev().find(pair).is_some_and(|step| {
        step.op == Op::Copy && [(one, other), (other, one)].contains(&(step.src, step.dst))
    })
}

fn equivalent(original: &Schedule, mutant: &Schedule) -> Option<Reason> {
    if original.steps.len() != mutant.steps.len() {
        return None;
    }
    let pairs = original.steps.iter().zip(&mutant.steps).enumerate();
    let changed: Vec<_> = pairs.filter(|(_, (a, b))| a != b).collect();
    match changed[..] {
        [(_, (a, b))] if (Step { order: a.order, ..*b }) == *a => Some(Reason::Commutes),
        [(at, (a, b))] if (Step { src: a.src, dst: a.dst, ..*b }) == *a => {
            let stored = !a.op.stores() || a.dst == b.dst;
            (stored && same(&original.steps[..at], a.src, b.src)).then_some(Reason::ReadsTheSame)
        }
        [(_, (a, b)), (_, (c, d))] if (a, b) == (d, c) && !conflict(a, b) => {
            let link = (a.op.sends() && b.op.sends() && a.to == b.to)
                || (a.op.receives() && b.op.receives() && a.from == b.from);
            (!link).then_some(Reason::Reordered)
        }
        _ => None,
    }
}

/// Counts of mutants by the law that detects them, and of equivalent ones by the reason.
struct Hunt {
    caught: BTreeMap<&'static str, u32>,
    alive: BTreeMap<Reason, u32>,
}

impl Hunt {
    fn new() -> Self {
        Self { caught: BTreeMap::new(), alive: BTreeMap::new() }
    }

    fn all(
        &mut self,
        original: &[Schedule],
        reasons: &[Reason],
        laws: impl Fn(&[Schedule]) -> Result<Report, Violation>,
    ) {
        let size = original.len() as u32;
        let report = laws(original).unwrap();
        for (me, own) in original.iter().enumerate() {
            // Long schedules repeat similar steps.
            let some = if own.steps.len() > 30 { 17 } else { 1 };
            for mutant in mutants(own, size, me as u32).into_iter().step_by(some) {
                let mut schedules = original.to_vec();
                schedules[me] = mutant.clone();
                let verdict = laws(&schedules);
                match verdict {
                    Err(violation) => *self.caught.entry(law(&violation)).or_default() += 1,
                    // Without repeated contributions in the original, law 2 detects the mutant.
                    Ok(now) if now.exact != report.exact => {
                        *self.caught.entry("2 once").or_default() += 1;
                    }
                    // With an order of ranks in the original, law 8 does.
                    Ok(now) if now.rank_order != report.rank_order => {
                        *self.caught.entry("8 rank order").or_default() += 1;
                    }
                    Ok(_) => {
                        let twice = (!report.exact).then_some(Reason::HeardTwice);
                        let reason = equivalent(own, &mutant).or(twice);
                        assert!(
                            reason.is_some_and(|reason| reasons.contains(&reason)),
                            "{reason:?}: rank {me} of {size}: {own:?} as {mutant:?}"
                        );
                        *self.alive.entry(reason.unwrap()).or_default() += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn every_mutant_of_every_algorithm_is_caught() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| !it.is_in_shared_memory()) {
        let mut hunt = Hunt::new();
        for size in 2..=5 {
            // Hierarchical algorithms need two hosts.
            let hosts = Ring::through(&[(0..size / 2).collect(), (size / 2..size).collect()]);
            let reversed = Ring::new((0..size).rev().collect());
            let reversed = reversed.filter(|_| algorithm == Algorithm::Ring);
            for ring in [hosts, reversed].into_iter().flatten() {
                for work in works(&[algorithm], &ring, &[0, size / 2]) {
                    let collective = work.collective;
                    let mut reasons = vec![Reason::Reordered, Reason::ReadsTheSame];
                    // A prefix promises the order of ranks.
                    let is_prefix = matches!(collective, Collective::Scan | Collective::Exscan);
                    let is_rotated = matches!(collective, Collective::Reduce { .. })
                        && algorithm != Algorithm::TwoShot;
                    let is_ordered = is_prefix || (algorithm.in_rank_order() && !is_rotated);
                    reasons.extend((!is_ordered).then_some(Reason::Commutes));
                    let repeats = algorithm == Algorithm::Dissemination;
                    reasons.extend(repeats.then_some(Reason::HeardTwice));
                    let shape = Shape::uniform(2, 2, 2 * algorithm.window().max(2));
                    hunt.all(&work.schedules, &reasons, |schedules| {
                        check(collective, work.volume, schedules, &shape, 3)
                    });
                }
            }
        }
        let twice = hunt.alive.get(&Reason::HeardTwice).copied().unwrap_or(0);
        assert!(twice < 30, "{twice} beside {:?}", hunt.caught);
        let prefixes = (algorithm == Algorithm::Ring).then_some("8 rank order");
        let laws = ["1 complete", "3 no needless store", "5 order", "6 live", "last"];
        for law in laws.into_iter().chain(prefixes) {
            let times = hunt.caught.get(law).copied().unwrap_or(0);
            assert!(times > 0, "{algorithm} {law}: {:?}", hunt.caught);
        }
    }
}

/// Large worlds use relays; the test has small ones.
#[test]
fn every_mutant_of_a_relay_is_caught() {
    let mut hunt = Hunt::new();
    for size in 2..=5_u32 {
        let ring = Ring::natural(size);
        let hops = u64::from(size * (size - 1) / 2);
        let ranks = |schedule: &dyn Fn(u32) -> Schedule| (0..size).map(schedule).collect();
        let mut all: Vec<(Collective, Volume, Vec<Schedule>)> = Vec::new();
        let exchanged = Volume { most: hops, total: hops * u64::from(size) };
        let exchange = ranks(&|me| relay::all_to_all(&ring, me));
        all.push((Collective::AllToAll, exchanged, exchange));
        for root in 0..size {
            let passed = Volume { most: u64::from(size - 1), total: hops };
            let gather = ranks(&|me| relay::gather(&ring, me, root));
            all.push((Collective::Gather { root }, passed, gather));
            let scatter = ranks(&|me| relay::scatter(&ring, me, root));
            all.push((Collective::Scatter { root }, passed, scatter));
        }
        for (collective, volume, original) in all {
            let reasons = [Reason::Reordered, Reason::ReadsTheSame];
            hunt.all(&original, &reasons, |schedules| laws(collective, volume, schedules));
        }
    }
    assert!(hunt.caught.values().sum::<u32>() > 10_000, "{:?}", hunt.caught);
}

/// An all-reduce with features that the ring does not use: all ranks compute every fold, in the
/// order of ranks, from the scratch.
fn doubling(rounds: u32) -> (Volume, Vec<Schedule>) {
    let size = 1 << rounds;
    let (mine, sum, other) = (Place::input(0), Place::output(0), Place::scratch(0));
    let rank = |me: u32| {
        let mut steps = vec![Step::new(Op::Copy, me, mine).into(sum)];
        for round in 0..rounds {
            let peer = me ^ 1 << round;
            let order = if peer < me { Order::IncomingFirst } else { Order::LocalFirst };
            let fold = Step::new(Op::ReduceCopy, me, other).into(sum).order(order);
            steps.extend([
                Step::new(Op::Send, me, sum).to(peer),
                Step::new(Op::Recv, me, other).from(peer),
                fold.last(round + 1 == rounds),
            ]);
        }
        Schedule { scratch: vec![sum], steps, ..Schedule::new(1, 1) }
    };
    let most = u64::from(rounds);
    (Volume { most, total: most << rounds }, (0..size).map(rank).collect())
}

#[test]
fn every_mutant_is_caught_where_all_ranks_compute() {
    let mut hunt = Hunt::new();
    for rounds in 1..=3 {
        let (volume, original) = doubling(rounds);
        assert!(laws(Collective::AllReduce, volume, &original).unwrap().rank_order);
        // Exchanged operands are detected: the ranks' expressions would differ.
        let reasons = [Reason::Reordered, Reason::ReadsTheSame];
        hunt.all(&original, &reasons, |schedules| laws(Collective::AllReduce, volume, schedules));
    }
    let seen = ["1 complete", "3 no needless store", "6 live", "7 one expression", "last"];
    for law in seen {
        assert!(hunt.caught.get(law).is_some_and(|&times| times > 5), "{law}: {:?}", hunt.caught);
    }
    // Equivalent are the exchanges of every rank and the reads between first copy and first fold.
    let alive = [(Reason::Reordered, 34), (Reason::ReadsTheSame, 14)];
    assert_eq!(hunt.alive, alive.into(), "{:?}", hunt.caught);
}
