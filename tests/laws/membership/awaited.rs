//! The members that a call names which times out: the silent ones, not those that wait too.

use ringreduce::recovery::membership::{Body, Input, Message, Ranks, Verdict};

use super::{SETTINGS, deliver_within, members};

/// All have called, and one rank is silent from then on. A leader that has asked a member does not
/// count as silent there before it is late.
#[test]
fn a_call_that_times_out_names_the_rank_that_is_silent() {
    let late = Input::Change { deadline: Some(100), evict_missing: false };
    for silent in [0, 1, 2] {
        let mut all = members(3);
        let calls = (0..3).map(|rank| (rank, all[rank as usize].step(0, late))).collect();
        let is_lost =
            |from, _, message: &Message| from == silent && !matches!(message.body, Body::Enter(_));
        assert_eq!(deliver_within(&mut all, 0, calls, is_lost), []);
        let missing = Ranks::from_iter([silent]);
        for rank in (0..3).filter(|&rank| rank != silent) {
            let verdicts = all[rank as usize].step(100, Input::Tick).verdicts;
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
    for rank in [1, 2] {
        all[rank].step(SETTINGS.answer_timeout, Input::Tick);
        let verdicts = all[rank].step(SETTINGS.answer_timeout + 1, Input::Tick).verdicts;
        assert_eq!(verdicts, [Verdict::TimedOut { missing: Ranks::from_iter([0]) }]);
    }
}
