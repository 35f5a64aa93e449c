//! Members whose programs are busy outside calls, where nothing is answered: they are not
//! suspected, and no member gives up for lack of what they know.

use ringreduce::recovery::membership::{
    AgreementKind, Body, Entry, Evidence, Input, LastVotes, Member, Message, Outputs, Ranks,
    Recovery, Value, Verdict,
};

use super::{SETTINGS, change, deliver, deliver_within, members};

const DEADLINE: u64 = 100;

fn call(all: &mut [Member], rank: u32, time: u64, input: Input<'_>) -> Vec<(u32, Outputs)> {
    vec![(rank, all[rank as usize].step(time, input))]
}

/// Each of these ranks, and no other, goes on with all of them.
fn all_go_on(verdicts: &[(u32, Verdict)], ranks: &Ranks) {
    let goes_on =
        |it: &Verdict| matches!(it, Verdict::Membership { members, .. } if members == ranks);
    let ones: Ranks =
        verdicts.iter().filter(|(_, it)| goes_on(it)).map(|(rank, _)| *rank).collect();
    assert_eq!(ones, *ranks, "{verdicts:?}");
}

fn is_lost(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::QuorumLost { .. })
}

/// The ballot of the leader, rank 0, comes after the deadline of rank `busy`, 0 or 1, whose program
/// calls again much later. `gives_up` ends the wait of that rank.
fn a_late_ballot(busy: u32, gives_up: impl Fn(&mut Member) -> Outputs) {
    let mut all = members(3);
    let limited = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    for (rank, input) in [(busy, limited), (2, change())] {
        let calls = call(&mut all, rank, 0, input);
        assert_eq!(deliver(&mut all, &[], calls), []);
    }
    let end = gives_up(&mut all[busy as usize]);
    deliver_within(&mut all, DEADLINE, vec![(busy, end)], |_, _, _| false);
    let waiting = [1 - busy, 2];
    let calls = call(&mut all, waiting[0], DEADLINE, change());
    // The messages wait for the next call of the busy rank.
    let mut unread = Vec::new();
    let verdicts = deliver_within(&mut all, DEADLINE, calls, |from, to, message| {
        if to == busy {
            unread.push((from, message.clone()));
        }
        to == busy
    });
    assert_eq!(verdicts, []);
    let mut time = DEADLINE;
    for _ in 0..8 {
        time += SETTINGS.answer_timeout;
        let ticks = waiting.map(|rank| (rank, all[rank as usize].step(time, Input::Tick))).to_vec();
        let is_unread = |_, to, _: &_| to == busy;
        assert_eq!(deliver_within(&mut all, time, ticks, is_unread), [], "nobody is suspected");
    }
    let mut steps = call(&mut all, busy, time, change());
    for (from, message) in unread {
        steps.push((busy, all[busy as usize].step(time, Input::Message(from, &message))));
    }
    let verdicts = deliver_within(&mut all, time, steps, |_, _, _| false);
    all_go_on(&verdicts, &Ranks::first(3).unwrap());
}

#[test]
fn a_member_whose_deadline_has_passed_is_not_suspected() {
    for rank in [0, 1] {
        a_late_ballot(rank, |member| {
            let outputs = member.step(DEADLINE, Input::Tick);
            assert!(matches!(outputs.verdicts[..], [Verdict::TimedOut { .. }]), "{outputs:?}");
            outputs
        });
    }
}

#[test]
fn a_member_whose_call_was_aborted_is_not_suspected() {
    for rank in [0, 1] {
        a_late_ballot(rank, |member| member.step(DEADLINE, Input::Withdraw));
    }
}

/// Rank 1 of five knows that the last three have certainly ended, but is busy while rank 0 asks.
#[test]
fn a_member_waits_for_what_a_busy_one_knows() {
    let mut all = members(5);
    let lost = [2, 3, 4];
    let found = |evidence, votes: Option<LastVotes>| lost.map(|of| (of, evidence, votes.clone()));
    let certain = found(Evidence::Certain, Some(LastVotes::default()));
    let suspected = found(Evidence::Strong, None);
    let unread = |from, to, _: &_| to == 1 || lost.contains(&from) || lost.contains(&to);
    let mut steps = call(&mut all, 0, 0, Input::Evidence(&suspected));
    steps.extend(call(&mut all, 0, 0, change()));
    assert_eq!(deliver_within(&mut all, 0, steps, unread), []);
    let mut time = 0;
    for _ in 0..8 {
        time += SETTINGS.answer_timeout;
        let tick = call(&mut all, 0, time, Input::Tick);
        let verdicts = deliver_within(&mut all, time, tick, unread);
        assert!(!verdicts.iter().any(|(_, it)| is_lost(it)), "{verdicts:?}");
    }
    let mut steps = call(&mut all, 1, time, Input::Evidence(&certain));
    steps.extend(call(&mut all, 1, time, change()));
    let ask = Message { epoch: 0, slot: 0, body: Body::Ask };
    steps.extend(call(&mut all, 1, time, Input::Message(0, &ask)));
    let verdicts =
        deliver_within(&mut all, time, steps, |from, to, _| lost.contains(&to.max(from)));
    all_go_on(&verdicts, &Ranks::first(2).unwrap());
}

/// Without an answer from ranks that wait too, the wait ends.
#[test]
fn a_member_gives_up_once_the_others_wait_too() {
    let mut all = members(5);
    let suspected = [2, 3, 4].map(|of| (of, Evidence::Strong, None));
    for rank in [0, 1] {
        let mut steps = call(&mut all, rank, 0, Input::Evidence(&suspected));
        steps.extend(call(&mut all, rank, 0, change()));
        assert_eq!(deliver(&mut all, &[2, 3, 4], steps).iter().find(|(_, it)| is_lost(it)), None);
    }
    let tick = call(&mut all, 0, SETTINGS.answer_timeout, Input::Tick);
    assert!(tick[0].1.verdicts.iter().any(is_lost), "{tick:?}");
}

/// An eviction treats a rank that gave up its call, and stays away, as one that never called.
#[test]
fn a_member_that_does_not_come_back_is_evicted() {
    for gone in [0, 1] {
        let mut all = members(3);
        let limited = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
        let steps = call(&mut all, gone, 0, limited);
        assert_eq!(deliver(&mut all, &[], steps), []);
        let steps = call(&mut all, gone, DEADLINE, Input::Tick);
        deliver_within(&mut all, DEADLINE, steps, |_, _, _| false);
        let busy = |_, to, _: &_| to == gone;
        let rest: Vec<_> = (0..3).filter(|&rank| rank != gone).collect();
        let evicts = Input::Change { deadline: Some(2 * DEADLINE), evict_missing: true };
        let mut verdicts = Vec::new();
        for rank in rest.clone() {
            let steps = call(&mut all, rank, DEADLINE, evicts);
            verdicts.extend(deliver_within(&mut all, DEADLINE, steps, busy));
        }
        for rank in rest.clone() {
            let steps = call(&mut all, rank, 2 * DEADLINE, Input::Tick);
            verdicts.extend(deliver_within(&mut all, 2 * DEADLINE, steps, busy));
        }
        all_go_on(&verdicts, &rest.into_iter().collect());
    }
}

/// An idle machine that gets messages does not say that its program calls.
#[test]
fn a_member_that_gave_up_does_not_call_again_by_itself() {
    let mut all = members(3);
    let limited = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    for rank in [0, 1] {
        all[rank].step(0, limited);
        all[rank].step(DEADLINE, Input::Tick);
        let asks = Body::Enter(Entry { kind: AgreementKind::Change, asks: true });
        let ask = Message { epoch: 0, slot: 1, body: asks };
        let is_call = |(_, it): &(u32, Message)| matches!(it.body, Body::Enter(_));
        for input in [Input::Message(2, &ask), Input::Revoke, Input::Tick] {
            let sends = all[rank].step(10 * SETTINGS.answer_timeout, input).sends;
            assert!(!sends.iter().any(is_call), "{input:?}: {sends:?}");
        }
    }
}

/// Rank 0 never calls. The deadlines of the others pass one after the other, and each learns first
/// that those before it wait no longer.
#[test]
fn ranks_whose_deadlines_pass_together_name_the_one_that_is_missing() {
    let mut all = members(4);
    for rank in 1..4 {
        let limited = Input::Change { deadline: Some(DEADLINE + rank), evict_missing: false };
        let steps = call(&mut all, rank as u32, 0, limited);
        assert_eq!(deliver(&mut all, &[0], steps), []);
    }
    for rank in 1..4 {
        let tick = call(&mut all, rank as u32, DEADLINE + rank, Input::Tick);
        let verdicts = deliver_within(&mut all, DEADLINE + rank, tick, |_, _, _| false);
        let missing = Ranks::only(0);
        assert_eq!(verdicts, [(rank as u32, Verdict::TimedOut { missing })]);
    }
}

/// Rank 1 aborts its call and calls again, which rank 2 has not asked for: it is not evicted.
#[test]
fn a_member_that_calls_again_is_known_to_wait() {
    let mut all = members(4);
    let evicts = Input::Change { deadline: Some(DEADLINE), evict_missing: true };
    let is_ballot = |_, _, message: &Message| matches!(message.body, Body::Prepare(_));
    for rank in [0, 1, 3, 2] {
        let steps = call(&mut all, rank, 0, evicts);
        assert_eq!(deliver_within(&mut all, 0, steps, is_ballot), []);
    }
    for input in [Input::Withdraw, evicts] {
        let steps = call(&mut all, 1, 1, input);
        assert_eq!(deliver_within(&mut all, 1, steps, is_ballot), []);
    }
    let late = all[2].step(DEADLINE, Input::Tick);
    assert_eq!(late.verdicts, [], "nobody is suspected");
}

/// Rank 3 has asked all for their calls, and goes on with the decision that it learns of.
#[test]
fn all_that_were_asked_learn_of_the_decision() {
    let mut one = members(4).swap_remove(3);
    one.step(0, Input::Agree { flags: 1, deadline: None });
    let ticks = [1, 2].map(|times| one.step(times * SETTINGS.answer_timeout, Input::Tick));
    let asks = |(_, it): &&(u32, Message)| matches!(it.body, Body::Enter(Entry { asks: true, .. }));
    let asked: Ranks =
        ticks.iter().flat_map(|it| &it.sends).filter(asks).map(|(to, _)| *to).collect();
    assert_eq!(asked, Ranks::first(3).unwrap());
    let value = Value {
        kind: AgreementKind::Agree,
        members: Ranks::first(4).unwrap(),
        flags: 1,
        recovery: Recovery::default(),
        cause: None,
    };
    let decide = Message { epoch: 0, slot: 1, body: Body::Decide(value) };
    let sends = one.step(3 * SETTINGS.answer_timeout, Input::Message(0, &decide)).sends;
    let told: Ranks = sends.iter().filter(|(_, it)| *it == decide).map(|(to, _)| *to).collect();
    assert_eq!(told, asked.without(0), "the others may wait for this rank alone");
}

/// Rank 1 has asked all, gives up its call, and makes it again.
#[test]
fn all_that_know_of_a_withdrawal_learn_of_the_next_call() {
    let mut one = members(4).swap_remove(1);
    let limited = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    let to = |outputs: &Outputs, is_wanted: fn(&Body) -> bool| -> Ranks {
        outputs.sends.iter().filter(|(_, it)| is_wanted(&it.body)).map(|(to, _)| *to).collect()
    };
    one.step(0, limited);
    let ends = one.step(DEADLINE, Input::Tick);
    let others = Ranks::first(4).unwrap().without(1);
    assert_eq!(to(&ends, |it| *it == Body::Withdraw), others);
    let again = one.step(DEADLINE, change());
    assert_eq!(to(&again, |it| matches!(it, Body::Enter(_))), others);
}
