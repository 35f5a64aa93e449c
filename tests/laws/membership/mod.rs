//! Membership among faults: random histories of the simulator, and some explicit ones. Law: a seed
//! that once failed is always run again.

mod awaited;
mod ballots;
mod busy;
mod choosing;
mod closing;
mod epochs;
mod news;
mod nonsense;
mod quorum;
mod scale;
mod simulator;

use std::collections::VecDeque;

use harness::share;
use ringreduce::recovery::membership::{
    Body, Cause, Evidence, Input, LastVotes, Member, Message, Outputs, Ranks, Settings, Verdict,
};
use simulator::{Tally, run};

/// Seeds that once found a bug in the protocol or in the simulator.
const FAILED_ONCE: &[u64] = &[
    10, 125, 145, 172, 328, 341, 996, 1618, 1756, 2895, 2938, 4714, 5250, 6671, 6719, 7063, 10_884,
    65_684, 65_752, 67_284, 90_931, 1_044_450, 2_014_024, 3_021_697, 5_074_622, 6_029_251,
    11_044_102, 11_095_408, 12_012_818,
];

const SETTINGS: Settings =
    Settings { grace: 20, answer_timeout: 1000, settling: 1000, uniform: false };

fn run_all(seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    let results = seeds.map(|seed| run(seed).map(|history| tally.add(&history)));
    let broken: Vec<String> =
        results.filter_map(Result::err).take(5).map(|violation| violation.to_string()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    tally
}

#[test]
fn seeds_that_once_failed_hold() {
    let later = [301_044_073, 302_043_956, 303_023_097, 304_081_815, 508_065_682];
    let latest = [541_369_909_057_875, 975_741_707_046_541, 46_113_659_559, 70_002_700_963];
    run_all(FAILED_ONCE.iter().copied().chain(later).chain(latest));
}

#[test]
fn the_laws_hold_in_many_histories() {
    let histories = share::count(100_000, 1_000_000);
    let first = share::seed() * 1_000_000;
    let Tally {
        events,
        epochs,
        succeeded,
        failed,
        agreed,
        quorums_lost,
        evicted,
        timed_out,
        joined,
        undone,
    } = run_all(first..first + histories);
    println!("{events} events, {epochs} epochs, {succeeded} operations done and {failed} failed");
    println!("{agreed} agreed, {quorums_lost} lost the quorum, {evicted} evicted");
    println!("{timed_out} timed out, {joined} joined, {undone} undone");
    // Each kind of event must be frequent, or the laws would be hardly tested.
    for count in [epochs, succeeded, failed, agreed] {
        assert!(count > histories / 2, "{count}");
    }
    for count in [quorums_lost, evicted, timed_out, joined, undone] {
        assert!(count > histories / 20, "{count}");
    }
}

/// Members 0 to `size` of epoch 0.
fn members(size: u32) -> Vec<Member> {
    let all = Ranks::first(size).unwrap();
    (0..size).map(|rank| Member::new(rank, all.clone(), SETTINGS).unwrap()).collect()
}

/// Delivers all messages except those to or from `dead`, until none is left; gives all verdicts.
fn deliver(
    members: &mut [Member],
    dead: &[u32],
    first: Vec<(u32, Outputs)>,
) -> Vec<(u32, Verdict)> {
    let mut under_way = VecDeque::new();
    let (mut verdicts, mut steps) = (Vec::new(), first);
    loop {
        for (from, outputs) in steps.drain(..) {
            verdicts.extend(outputs.verdicts.into_iter().map(|verdict| (from, verdict)));
            under_way.extend(outputs.sends.into_iter().map(|(to, message)| (from, to, message)));
        }
        let Some((from, to, message)) = under_way.pop_front() else { return verdicts };
        if dead.contains(&from) || dead.contains(&to) {
            continue;
        }
        let member = &mut members[to as usize];
        let outputs = member.step(0, Input::Message(from, &message));
        let replies =
            outputs.replies.iter().map(|reply| (to, from, reply.clone())).collect::<Vec<_>>();
        under_way.extend(replies);
        steps.push((to, outputs));
    }
}

fn change() -> Input<'static> {
    Input::Change { deadline: None, evict_missing: false }
}

#[test]
fn a_revocation_is_passed_on_once() {
    let mut all = members(4);
    let certain = [(3, Evidence::Certain, Some(LastVotes::default()))];
    let evidence = Input::Evidence(&certain);
    let revoke = all[0].step(0, evidence).sends;
    assert_eq!(revoke.iter().map(|&(to, _)| to).collect::<Vec<_>>(), [1, 2]);
    let (_, message) = revoke[0].clone();
    let passed_on = all[1].step(0, Input::Message(0, &message)).sends;
    assert_eq!(passed_on.iter().map(|&(to, _)| to).collect::<Vec<_>>(), [2]);
    assert_eq!(all[1].step(0, Input::Message(2, &message)), Outputs::default());
}

#[test]
fn a_call_that_a_revocation_failed_stays_failed() {
    let mut one = members(2).swap_remove(0);
    one.step(0, Input::Begin(1));
    let verdicts = one.step(0, Input::Revoke).verdicts;
    assert!(matches!(verdicts[..], [Verdict::Revoked(_), Verdict::Failed(1)]), "{verdicts:?}");
    assert_eq!(one.step(0, Input::Passed(1)), Outputs::default());
}

#[test]
fn the_cause_with_stronger_evidence_is_better() {
    let cause = |rank, evidence, sequence| Cause { rank, evidence, sequence };
    let sure = cause(3, Evidence::Certain, 9);
    for other in [
        cause(0, Evidence::Strong, 1),
        cause(0, Evidence::Suspected, 1),
        cause(3, Evidence::Certain, 10),
        cause(4, Evidence::Certain, 9),
    ] {
        assert_eq!((sure.better(other), other.better(sure)), (sure, sure));
    }
}

/// Members detect a rank that stops in the middle, also if it is the leader.
#[test]
fn a_silent_rank_is_evicted() {
    for silent in [0, 2] {
        let mut all = members(3);
        let calls: Vec<_> =
            (0..3).map(|rank| (rank, all[rank as usize].step(0, change()))).collect();
        // All ranks learn that all have called; from then on one rank is silent.
        let mut heard = Vec::new();
        for (from, outputs) in calls {
            for (to, message) in outputs.sends {
                heard.push((to, all[to as usize].step(0, Input::Message(from, &message))));
            }
        }
        let mut verdicts = deliver(&mut all, &[silent], heard);
        for time in (0..5).map(|times| times * SETTINGS.answer_timeout) {
            let rest = (0..3).filter(|&rank| rank != silent);
            let rung =
                rest.map(|rank| (rank, all[rank as usize].step(time, Input::Tick))).collect();
            verdicts.extend(deliver(&mut all, &[silent], rung));
        }
        let new: Ranks = (0..3).filter(|&rank| rank != silent).collect();
        let epochs = verdicts.iter().filter_map(|(_, verdict)| match verdict {
            Verdict::Membership { epoch, members, .. } => Some((*epoch, members.clone())),
            _ => None,
        });
        assert_eq!(epochs.collect::<Vec<_>>(), [(1, new.clone()), (1, new)], "{verdicts:?}");
    }
}

/// The leader's own message to rank 2 is lost, and nobody is left to ask.
#[test]
fn a_decision_comes_from_every_member() {
    let mut all = members(3);
    let agree = || Input::Agree { flags: 6, deadline: None };
    let mut under_way: VecDeque<_> = VecDeque::new();
    let mut agreed = vec![];
    let mut first: Vec<_> =
        (0..3).map(|rank| (rank, all[rank as usize].step(0, agree()))).collect();
    loop {
        for (from, outputs) in first.drain(..) {
            let is_agreed = |it: &Verdict| matches!(it, Verdict::Agreed { flags: 6, .. });
            agreed.extend(outputs.verdicts.iter().any(is_agreed).then_some(from));
            under_way.extend(outputs.sends.into_iter().map(|(to, message)| (from, to, message)));
        }
        let Some((from, to, message)) = under_way.pop_front() else { break };
        if (from, to) != (0, 2) || !matches!(message.body, Body::Decide(_)) {
            let outputs = all[to as usize].step(0, Input::Message(from, &message));
            first.push((to, outputs));
        }
    }
    assert_eq!(agreed, [0, 1, 2]);
}

/// Rank 2 is silent. After the deadline of an agreement the others leave it behind, whether both
/// have agreed or one alone.
#[test]
fn an_agreement_whose_deadline_has_passed_gives_way_to_a_change() {
    for agreeing in [vec![0, 1], vec![0], vec![1]] {
        let mut all = members(3);
        let calls = |all: &mut Vec<Member>, time, ranks: &[u32], input: Input<'static>| {
            let step = |&rank: &u32| (rank, all[rank as usize].step(time, input));
            let stepped = ranks.iter().map(step).collect();
            deliver(all, &[2], stepped)
        };
        calls(&mut all, 0, &agreeing, Input::Agree { flags: 1, deadline: Some(100) });
        let late = calls(&mut all, 100, &[0, 1], Input::Tick);
        assert_eq!(late.len(), agreeing.len(), "{late:?}");
        let evict = Input::Change { deadline: Some(200), evict_missing: true };
        calls(&mut all, 101, &[0, 1], evict);
        let mut verdicts = calls(&mut all, 200, &[0, 1], Input::Tick);
        let new: Ranks = [0, 1].into_iter().collect();
        verdicts.retain(|(_, verdict)| {
            matches!(verdict, Verdict::Membership { epoch: 1, members, .. } if *members == new)
        });
        assert_eq!(verdicts.len(), 2, "{agreeing:?}: {verdicts:?}");
    }
}

/// Delivers messages within each of two parts of the ranks, but those that `is_lost` drops.
fn deliver_within(
    all: &mut [Member],
    time: u64,
    first: Vec<(u32, Outputs)>,
    mut is_lost: impl FnMut(u32, u32, &Message) -> bool,
) -> Vec<(u32, Verdict)> {
    let (mut under_way, mut verdicts, mut steps) = (VecDeque::new(), vec![], first);
    loop {
        for (from, outputs) in steps.drain(..) {
            verdicts.extend(outputs.verdicts.into_iter().map(|verdict| (from, verdict)));
            under_way.extend(outputs.sends.into_iter().map(|(to, message)| (from, to, message)));
        }
        let Some((from, to, message)) = under_way.pop_front() else { return verdicts };
        if !is_lost(from, to, &message) {
            let outputs = all[to as usize].step(time, Input::Message(from, &message));
            steps.push((to, outputs));
        }
    }
}

/// Rank 1 promises a ballot of rank 0 and dies. Ranks 2 and 3, cut off from them, go on without
/// both; then rank 2 dies, and rank 0 learns of both ends.
#[test]
fn a_promise_of_a_dead_rank_counts() {
    let mut all = members(4);
    let calls = (0..4).map(|rank| (rank, all[rank as usize].step(0, change()))).collect();
    let is_prepare = |message: &Message| matches!(message.body, Body::Prepare(_));
    let part = |rank: u32| rank / 2;
    deliver_within(&mut all, 0, calls, |from, to, message| {
        part(from) != part(to) && !matches!(message.body, Body::Enter(..))
    });
    // Rank 0 suspects the other part, and rank 1 dies with its promise.
    let time = SETTINGS.answer_timeout;
    let late = vec![(0, all[0].step(time, Input::Tick))];
    deliver_within(&mut all, time, late, |from, to, message| {
        part(from) != part(to) || from == 0 && !is_prepare(message)
    });
    let first = all[1].last_votes().clone();
    let mut steps = vec![];
    for (of, evidence, vote) in
        [(0, Evidence::Suspected, None), (1, Evidence::Certain, Some(first.clone()))]
    {
        for at in [2, 3] {
            let found = [(of, evidence, vote.clone())];
            steps.push((at, all[at as usize].step(time, Input::Evidence(&found))));
        }
    }
    let mut verdicts = deliver_within(&mut all, time, steps, |from, to, _| part(from) != part(to));
    let second = all[2].last_votes().clone();
    for (of, vote) in [(1, first), (2, second)] {
        let ends = [(of, Evidence::Certain, Some(vote))];
        let input = Input::Evidence(&ends);
        let step = vec![(0, all[0].step(time + 1, input))];
        verdicts.extend(deliver_within(&mut all, time + 1, step, |_, to, _| to != 0));
    }
    let began: Vec<_> = verdicts
        .iter()
        .filter_map(|(_, verdict)| match verdict {
            Verdict::Membership { epoch: 1, members, .. } => Some(members.clone()),
            _ => None,
        })
        .collect();
    assert!(!began.is_empty(), "{verdicts:?}");
    assert!(began.iter().all(|members| *members == began[0]), "{verdicts:?}");
}

#[test]
fn a_rank_that_missed_an_epoch_is_told_that_it_was_evicted() {
    let mut all = members(3);
    for rank in [0, 1] {
        all[rank].step(0, Input::Evidence(&[(2, Evidence::Suspected, None)]));
    }
    let calls = [0, 1].map(|rank| (rank, all[rank as usize].step(0, change()))).to_vec();
    deliver(&mut all, &[2], calls);
    // Rank 2 was only paused, and does not know of the new epoch.
    let call = all[2].step(0, change());
    let verdicts = deliver(&mut all, &[], vec![(2, call)]);
    assert_eq!(verdicts, [(2, Verdict::Evicted { epoch: 1 })]);
    assert_eq!(all[2].step(1, Input::Revoke), Outputs::default());
}

/// After a revocation the others may have agreed that the call failed.
#[test]
fn a_result_after_a_revocation_does_not_count() {
    let settings = Settings { uniform: true, ..SETTINGS };
    for (full_first, end) in [(false, Verdict::Failed(1)), (true, Verdict::Ok(1))] {
        let mut member = Member::new(0, Ranks::first(2).unwrap(), settings).unwrap();
        member.step(0, Input::Begin(1));
        if full_first {
            member.step(1, Input::Full(1));
        }
        member.step(2, Input::Revoke);
        member.step(3, Input::Full(1));
        let certain = [(1, Evidence::Certain, Some(LastVotes::default()))];
        let evidence = Input::Evidence(&certain);
        let verdicts = member.step(4, evidence).verdicts;
        assert!(verdicts.contains(&end), "{verdicts:?}");
    }
}
