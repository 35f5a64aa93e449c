//! What members tell each other of ends and decisions, and when evidence of an end revokes.

use ringreduce::recovery::membership::{
    AgreementKind, Ballot, Body, Call, Cause, Entry, Evidence, Input, LastVotes, Member, Message,
    Ranks, Recovery, Report, Settings, Value, Verdict, Vote,
};

use super::{SETTINGS, members};

/// The receivers of such messages.
fn told(sends: &[(u32, Message)], is_wanted: fn(&Body) -> bool) -> Ranks {
    sends.iter().filter(|(_, it)| is_wanted(&it.body)).map(|(to, _)| *to).collect()
}

fn certain(rank: u32) -> [(u32, Evidence, Option<LastVotes>); 1] {
    [(rank, Evidence::Certain, Some(LastVotes::default()))]
}

#[test]
fn each_fact_is_told_once() {
    let mut one = members(4).swap_remove(0);
    let (ends, suspicion) = (certain(3), [(2, Evidence::Suspected, None)]);
    for (input, receivers) in [
        (Input::Revoke, vec![1, 2, 3]),
        (Input::Evidence(&ends), vec![1, 2]),
        (Input::Evidence(&ends), vec![]),
        (Input::Evidence(&suspicion), vec![]),
    ] {
        let sends = one.step(0, input).sends;
        let receivers = receivers.into_iter().collect();
        assert_eq!(told(&sends, |it| matches!(it, Body::Revoke(..))), receivers, "{input:?}");
    }
}

/// The end of a rank is known before its last vote.
#[test]
fn a_last_vote_that_comes_later_is_told() {
    let mut one = members(4).swap_remove(1);
    one.step(0, Input::Evidence(&[(3, Evidence::Certain, None)]));
    let promised = Ballot { round: 1, leader: 0 };
    let call = Vote { promised_in: (0, 1), promised, ..Vote::default() };
    let votes = LastVotes { call, ..LastVotes::default() };
    let end = [(3, Evidence::Certain, Some(votes.clone()))];
    let sends = one.step(0, Input::Evidence(&end)).sends;
    let tells = |(_, it): &&(u32, Message)| match &it.body {
        Body::Revoke(_, ends) => ends.votes == Some((3, votes.clone())),
        _ => false,
    };
    let receivers: Ranks = sends.iter().filter(tells).map(|(to, _)| *to).collect();
    assert_eq!(receivers, [0, 2].into_iter().collect(), "{sends:?}");
}

/// What was told before may not have come.
#[test]
fn a_member_that_asks_is_told_again() {
    let mut one = members(3).swap_remove(1);
    let ask = Message { epoch: 0, slot: 0, body: Body::Ask };
    let end = certain(2);
    for input in [Input::Evidence(&end), Input::Message(0, &ask)] {
        let sends = one.step(0, input).sends;
        assert_eq!(told(&sends, |it| matches!(it, Body::Revoke(..))), Ranks::only(0), "{input:?}");
    }
}

/// Rank 1 of three, at which the program has agreed so many times as the leader says.
fn agreed(times: u32) -> (Member, Ranks) {
    let mut one = members(3).swap_remove(1);
    let mut receivers = Ranks::NONE;
    for slot in 1..=times {
        one.step(0, Input::Agree { flags: 1, deadline: None });
        let value = Value {
            kind: AgreementKind::Agree,
            members: Ranks::first(3).unwrap(),
            flags: 1,
            recovery: Recovery::default(),
            cause: None,
        };
        let decide = Message { epoch: 0, slot, body: Body::Decide(value) };
        let outputs = one.step(0, Input::Message(0, &decide));
        assert!(matches!(outputs.verdicts[..], [Verdict::Agreed { .. }]), "{outputs:?}");
        receivers = told(&outputs.sends, |it| matches!(it, Body::Decide(_)));
    }
    (one, receivers)
}

#[test]
fn a_decision_is_told_to_those_that_may_not_know_it() {
    let (mut one, receivers) = agreed(1);
    assert_eq!(receivers, Ranks::only(2), "rank 0 knows it");
    let sends = one.step(0, Input::Revoke).sends;
    assert_eq!(told(&sends, |it| matches!(it, Body::Decide(_))), Ranks::NONE, "all know it");
}

#[test]
fn a_member_that_has_missed_agreements_is_told_when_it_asks() {
    let (mut one, _) = agreed(4);
    for slot in 1..=4 {
        let body = Body::Enter(Entry { kind: AgreementKind::Agree, asks: true });
        let sends = one.step(0, Input::Message(2, &Message { epoch: 0, slot, body })).sends;
        let decides = |(to, it): &(u32, Message)| {
            (*to, it.slot) == (2, slot) && matches!(it.body, Body::Decide(_))
        };
        assert!(sends.iter().any(decides), "{slot}: {sends:?}");
    }
}

/// The process of rank 1 may end because another one has, of which better evidence comes soon.
#[test]
fn the_end_of_a_connection_waits_for_a_better_cause() {
    let strong = [(1, Evidence::Strong, None)];
    for better in [false, true] {
        let mut one = members(3).swap_remove(0);
        assert_eq!(one.step(0, Input::Evidence(&strong)).verdicts, []);
        assert_eq!(one.step(SETTINGS.grace - 1, Input::Tick).verdicts, []);
        let ends = certain(2);
        let (rank, evidence, input) = match better {
            true => (2, Evidence::Certain, Input::Evidence(&ends)),
            false => (1, Evidence::Strong, Input::Tick),
        };
        let revoked = Verdict::Revoked(Cause { rank, evidence, sequence: 1 });
        assert_eq!(one.step(SETTINGS.grace, input).verdicts, [revoked]);
    }
}

#[test]
fn a_goodbye_fails_only_the_calls_that_need_the_rank() {
    let mut one = members(3).swap_remove(0);
    let body = Body::Goodbye(LastVotes::default());
    let goodbye = Message { epoch: 0, slot: 0, body };
    assert_eq!(one.step(0, Input::Message(2, &goodbye)).verdicts, []);
    assert_eq!(one.step(0, Input::Evidence(&certain(2))).verdicts, [], "it has said so");
    let (rank, evidence) = (2, Evidence::Left);
    let needed = one.step(0, Input::Evidence(&[(rank, evidence, None)])).verdicts;
    assert_eq!(needed, [Verdict::Revoked(Cause { rank, evidence, sequence: 1 })]);
}

/// Rank 1 has reported its operations to rank 0. The program of rank 2 may be busy.
#[test]
fn a_settlement_has_a_time_of_its_own() {
    let settings = Settings { uniform: true, settling: 5 * SETTINGS.answer_timeout, ..SETTINGS };
    let mut one = Member::new(0, Ranks::first(3).unwrap(), settings).unwrap();
    one.step(0, Input::Revoke);
    let call = Call { kind: AgreementKind::Settle, flags: u64::MAX };
    let (suspected, cause, accepted) = (Ranks::NONE, None, None);
    let report = Report { suspected, done: 0, full: 0, call, cause, accepted };
    let body = Body::Promise(Ballot { round: 1, leader: 0 }, report);
    one.step(0, Input::Message(1, &Message { epoch: 0, slot: 0, body }));
    assert_eq!(one.step(settings.settling - 1, Input::Tick).sends, []);
    let late = one.step(settings.settling, Input::Tick).sends;
    assert_eq!(told(&late, |it| matches!(it, Body::Prepare(_))), Ranks::only(1));
}
