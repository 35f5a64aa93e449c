//! The members that a call names which times out: the silent ones, not those that wait too.

use ringreduce::recovery::membership::{
    AgreementKind, Body, Entry, Evidence, Input, LastVotes, Message, Ranks, Verdict,
};

use super::{SETTINGS, change, deliver_within, members};

/// All have called, and one rank is silent from then on. A leader that has asked a member does not
/// count as silent there before it is late.
#[test]
fn a_call_that_times_out_names_the_rank_that_is_silent() {
    let late = Input::Change { deadline: Some(100), evict_missing: false };
    for silent in [0, 1, 2] {
        let mut all = members(3);
        let calls = (0..3).map(|rank| (rank, all[rank as usize].step(0, late))).collect();
        let is_lost =
            |from, _, message: &Message| from == silent && !matches!(message.body, Body::Enter(..));
        assert_eq!(deliver_within(&mut all, 0, calls, is_lost), []);
        let missing = Ranks::only(silent);
        for rank in (0..3).filter(|&rank| rank != silent) {
            let verdicts = all[rank as usize].step(100, Input::Tick).verdicts;
            let missing = missing.clone();
            assert_eq!(verdicts, [Verdict::TimedOut { missing }], "rank {rank}");
        }
    }
}

/// The leader is silent after its ballot has begun.
#[test]
fn a_leader_that_is_silent_for_long_is_named() {
    let mut all = members(3);
    let late =
        || Input::Change { deadline: Some(SETTINGS.answer_timeout + 1), evict_missing: false };
    let calls = (0..3).map(|rank| (rank, all[rank as usize].step(0, late()))).collect();
    let is_lost =
        |from, _, message: &Message| from == 0 && matches!(message.body, Body::Propose(..));
    assert_eq!(deliver_within(&mut all, 0, calls, is_lost), []);
    let time = SETTINGS.answer_timeout;
    let asks = [1, 2].map(|rank| (rank, all[rank as usize].step(time, Input::Tick))).to_vec();
    assert_eq!(deliver_within(&mut all, time, asks, |from, _, _| from == 0), []);
    for rank in [1, 2] {
        let verdicts = all[rank].step(SETTINGS.answer_timeout + 1, Input::Tick).verdicts;
        assert_eq!(verdicts, [Verdict::TimedOut { missing: Ranks::only(0) }]);
    }
}

/// One member makes another call than the others, and tells the leader alone.
#[test]
fn a_member_that_made_another_call_is_named_by_all() {
    let mut all = members(5);
    let agree = Input::Agree { flags: 1, deadline: Some(1_000) };
    let shrink = Input::Change { deadline: None, evict_missing: false };
    let call = |rank| if rank == 2 { shrink } else { agree };
    let calls = (0..5).map(|rank| (rank, all[rank as usize].step(0, call(rank)))).collect();
    assert_eq!(deliver_within(&mut all, 0, calls, |_, _, _| false), []);
    for time in [900, 1_000] {
        let ticks: Vec<_> =
            (0..5).map(|rank| (rank, all[rank as usize].step(time, Input::Tick))).collect();
        let mut verdicts = deliver_within(&mut all, time, ticks, |_, _, _| false);
        verdicts.sort_by_key(|(rank, _)| *rank);
        let named = Verdict::TimedOut { missing: Ranks::only(2) };
        let all_name = [0, 1, 3, 4].map(|rank| (rank, named.clone())).to_vec();
        assert_eq!(verdicts, if time == 900 { vec![] } else { all_name });
    }
}

/// Ranks 1 to 3 wait for the ballot of rank 0, which ends after two questions.
#[test]
fn a_new_leader_has_as_much_time_as_the_first() {
    let mut one = members(4).swap_remove(2);
    one.step(0, change());
    let enters = Body::Enter(Entry { kind: AgreementKind::Change, asks: false });
    for rank in [0, 1, 3] {
        one.step(0, Input::Message(rank, &Message { epoch: 0, slot: 1, body: enters.clone() }));
    }
    let due = SETTINGS.answer_timeout;
    for times in [1, 2] {
        one.step(times * due, Input::Tick);
    }
    let ended = 2 * due + due / 2;
    let certain = [(0, Evidence::Certain, Some(LastVotes::default()))];
    one.step(ended, Input::Evidence(&certain));
    let mut leads = |time| {
        let sends = one.step(time, Input::Tick).sends;
        sends.iter().any(|(_, it)| matches!(it.body, Body::Prepare(_)))
    };
    for half in 1..6 {
        assert!(!leads(ended + half * due / 2), "{half}: rank 1 is suspected too early");
    }
    assert!(leads(ended + 3 * due));
}

/// Rank 2 had given up its call before the leader asked all, and stays away. Rank 1 waits with the
/// leader.
#[test]
fn a_member_that_gave_up_and_stays_away_is_named() {
    let mut one = members(3).swap_remove(0);
    let enters = Body::Enter(Entry { kind: AgreementKind::Change, asks: false });
    for (rank, body) in [(2, enters.clone()), (2, Body::Withdraw)] {
        one.step(0, Input::Message(rank, &Message { epoch: 0, slot: 1, body }));
    }
    one.step(0, Input::Change { deadline: Some(100), evict_missing: false });
    one.step(0, Input::Message(1, &Message { epoch: 0, slot: 1, body: enters }));
    let verdicts = one.step(100, Input::Tick).verdicts;
    assert_eq!(verdicts, [Verdict::TimedOut { missing: Ranks::only(2) }]);
}
