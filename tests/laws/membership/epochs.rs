//! The start of an epoch at one member: what carries over to it, and messages of other epochs.

use ringreduce::recovery::membership::{
    AgreementKind, Body, Cause, Entry, Evidence, Input, LastVotes, Member, Message, Outputs, Ranks,
    Recovery, Settings, Value, Verdict,
};

use super::{SETTINGS, change, members};

/// The decision of the change that ends `epoch`, its first agreement, with these members.
fn decision(epoch: u32, members: u32, high: u64) -> Message {
    let value = Value {
        kind: AgreementKind::Change,
        members: Ranks::first(members).unwrap(),
        flags: u64::MAX,
        recovery: Recovery { low: high, high },
        cause: None,
    };
    Message { epoch, slot: 1, body: Body::Decide(value) }
}

/// Rank 0 tells the decision to `one`, whose program has called.
fn changes(one: &mut Member, decision: &Message) -> Outputs {
    one.step(0, change());
    one.step(0, Input::Message(0, decision))
}

/// Rank 0 tells the settlement that operations up to `last` are done.
fn settles(one: &mut Member, last: u64) -> Outputs {
    let Body::Decide(value) = decision(0, 3, last).body else { panic!("no decision") };
    let value = Value { kind: AgreementKind::Settle, ..value };
    one.step(0, Input::Message(0, &Message { epoch: 0, slot: 0, body: Body::Decide(value) }))
}

fn is_next(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Membership { epoch: 1, .. })
}

/// Rank 3 has ended, and the others have decided before they knew.
#[test]
fn a_loss_during_the_decision_revokes_the_next_epoch() {
    let mut one = members(4).swap_remove(1);
    let certain = [(3, Evidence::Certain, Some(LastVotes::default()))];
    one.step(0, Input::Evidence(&certain));
    let verdicts = changes(&mut one, &decision(0, 4, 0)).verdicts;
    let [begins, Verdict::Revoked(Cause { rank: 3, evidence: Evidence::Certain, .. })] =
        &verdicts[..]
    else {
        panic!("{verdicts:?}")
    };
    assert!(is_next(begins), "{verdicts:?}");
}

/// The members have agreed once. In the next epoch they do so again.
#[test]
fn the_agreements_of_an_epoch_end_with_it() {
    let mut one = members(3).swap_remove(1);
    let agree = Input::Agree { flags: 1, deadline: None };
    let Body::Decide(value) = decision(0, 3, 0).body else { panic!("no decision") };
    one.step(0, agree);
    let value = Value { kind: AgreementKind::Agree, ..value };
    let agreed = Message { epoch: 0, slot: 1, body: Body::Decide(value) };
    one.step(0, Input::Message(0, &agreed));
    let verdicts = changes(&mut one, &Message { slot: 2, ..decision(0, 3, 0) }).verdicts;
    assert!(verdicts.len() == 1 && is_next(&verdicts[0]), "{verdicts:?}");
    let body = Body::Enter(Entry { kind: AgreementKind::Agree, asks: false });
    assert_eq!(one.step(0, agree).sends, [(0, Message { epoch: 1, slot: 1, body })]);
}

/// Operation 1 is complete here, and 2 is not. All that goes on had the first.
#[test]
fn operations_end_as_the_change_says() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(1, Ranks::first(3).unwrap(), settings).unwrap();
    for input in [Input::Begin(1), Input::Full(1), Input::Begin(2)] {
        one.step(0, input);
    }
    let verdicts = changes(&mut one, &decision(0, 3, 1)).verdicts;
    assert_eq!(verdicts[..2], [Verdict::Ok(1), Verdict::Failed(2)], "{verdicts:?}");
    assert!(verdicts[2..].iter().all(is_next), "{verdicts:?}");
}

/// The settlement says whether it has.
#[test]
fn no_operation_passes_after_a_revocation() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(1, Ranks::first(3).unwrap(), settings).unwrap();
    for input in [Input::Begin(1), Input::Full(1), Input::Revoke] {
        one.step(0, input);
    }
    assert_eq!(one.step(0, Input::Passed(1)).verdicts, []);
}

/// The others have settled that operation 1 is done.
#[test]
fn a_member_that_lacks_a_settled_result_is_evicted() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(1, Ranks::first(3).unwrap(), settings).unwrap();
    one.step(0, Input::Begin(1));
    one.step(0, Input::Revoke);
    let verdicts = settles(&mut one, 1).verdicts;
    assert_eq!(verdicts, [Verdict::Evicted { epoch: 0 }]);
}

#[test]
fn an_operation_that_begins_after_a_revocation_fails() {
    let mut one = members(2).swap_remove(0);
    one.step(0, Input::Revoke);
    assert_eq!(one.step(0, Input::Begin(1)).verdicts, [Verdict::Failed(1)]);
}

/// Rank 2 is one epoch behind, and rank 3 is no member any more.
#[test]
fn a_sender_in_an_older_epoch_learns_what_it_has_missed() {
    let mut one = members(4).swap_remove(1);
    let decided = decision(0, 3, 0);
    changes(&mut one, &decided);
    let evicted = Message { epoch: 1, slot: 0, body: Body::Evicted };
    let body = Body::Enter(Entry { kind: AgreementKind::Change, asks: true });
    let asks = Message { epoch: 0, slot: 1, body };
    for (from, reply) in [(2, decided), (3, evicted)] {
        assert_eq!(one.step(0, Input::Message(from, &asks)).replies, [reply], "{from}");
    }
    let body = Body::Goodbye(LastVotes::default());
    let goodbye = Message { epoch: 0, slot: 0, body };
    assert_eq!(one.step(0, Input::Message(2, &goodbye)).replies, []);
    assert_eq!(one.left(), Ranks::only(2));
}

#[test]
fn a_change_without_a_member_evicts_it() {
    let mut one = members(3).swap_remove(2);
    let verdicts = changes(&mut one, &decision(0, 2, 0)).verdicts;
    assert_eq!(verdicts, [Verdict::Evicted { epoch: 1 }]);
}

#[test]
fn a_message_of_the_next_epoch_waits_for_it() {
    let mut one = members(3).swap_remove(1);
    let body = Body::Goodbye(LastVotes::default());
    let goodbye = Message { epoch: 1, slot: 0, body };
    let asks = Message { epoch: 0, slot: 0, body: Body::Ask };
    assert_eq!(one.step(0, Input::Message(2, &goodbye)).replies, [asks]);
    assert_eq!(one.left(), Ranks::NONE);
    changes(&mut one, &decision(0, 3, 0));
    assert_eq!(one.left(), Ranks::only(2));
}

/// Its epoch is two ahead, so the one between was without this rank.
#[test]
fn a_decision_of_a_newer_epoch_evicts() {
    let mut one = members(3).swap_remove(1);
    let verdicts = one.step(0, Input::Message(0, &decision(1, 3, 0))).verdicts;
    assert_eq!(verdicts, [Verdict::Evicted { epoch: 2 }]);
}

/// A settlement has failed operation 1 here, though its result is there, and the change says that
/// all have it: its caller waits no more.
#[test]
fn an_operation_ends_once() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(1, Ranks::first(3).unwrap(), settings).unwrap();
    for input in [Input::Begin(1), Input::Full(1), Input::Revoke] {
        one.step(0, input);
    }
    let verdicts = settles(&mut one, 0).verdicts;
    assert_eq!(verdicts, [Verdict::Failed(1)]);
    let verdicts = changes(&mut one, &decision(0, 3, 1)).verdicts;
    assert!(verdicts.len() == 1 && is_next(&verdicts[0]), "{verdicts:?}");
}

/// The program has given up a change that was decided all the same. It goes on in that epoch,
/// unless a member is lost there.
#[test]
fn a_change_that_was_given_up_counts_while_all_its_members_are_there() {
    for is_lost in [false, true] {
        let mut one = members(3).swap_remove(1);
        one.step(0, change());
        one.step(0, Input::Withdraw);
        one.step(0, Input::Message(0, &decision(0, 3, 0)));
        if is_lost {
            one.step(0, Input::Evidence(&[(2, Evidence::Certain, Some(LastVotes::default()))]));
        }
        let again = one.step(0, change());
        assert_eq!(again.verdicts.iter().any(is_next), !is_lost, "{again:?}");
        assert_eq!(again.sends.is_empty(), !is_lost, "{again:?}");
    }
}

#[test]
fn a_rank_that_evicts_asks_all_for_their_calls_at_once() {
    for evict_missing in [false, true] {
        let mut one = members(3).swap_remove(1);
        let deadline = Some(100 * SETTINGS.answer_timeout);
        let sends = one.step(0, Input::Change { deadline, evict_missing }).sends;
        let body = Body::Enter(Entry { kind: AgreementKind::Change, asks: evict_missing });
        let call = Message { epoch: 0, slot: 1, body };
        // The leader alone is told otherwise, and asks nobody for so short a time.
        let told = if evict_missing { &[0, 2][..] } else { &[0] };
        assert_eq!(sends, told.iter().map(|&to| (to, call.clone())).collect::<Vec<_>>());
    }
}
