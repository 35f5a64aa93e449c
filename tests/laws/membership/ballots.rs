//! The two phases of a ballot, at one member: what it promises and accepts, and what a leader waits
//! for.

use ringreduce::recovery::membership::{
    AgreementKind, Ballot, Body, Call, Entry, Evidence, Input, LastVotes, Member, Message, Outputs,
    Ranks, Recovery, Report, Value, Verdict,
};

use super::{SETTINGS, change, members};

fn ballot(round: u32, leader: u32) -> Ballot {
    Ballot { round, leader }
}

fn value(members: u32) -> Value {
    Value {
        kind: AgreementKind::Change,
        members: Ranks::first(members).unwrap(),
        flags: u64::MAX,
        recovery: Recovery::default(),
        cause: None,
    }
}

fn promise(ballot: Ballot) -> Body {
    let call = Call { kind: AgreementKind::Change, flags: u64::MAX };
    let (suspected, cause, accepted) = (Ranks::NONE, None, None);
    Body::Promise(ballot, Report { suspected, done: 0, full: 0, call, cause, accepted })
}

/// A message about the first agreement.
fn hears(one: &mut Member, from: u32, body: Body) -> Outputs {
    one.step(0, Input::Message(from, &Message { epoch: 0, slot: 1, body }))
}

/// Rank 1 of four, whose program has called.
fn accepting() -> Member {
    let mut one = members(4).swap_remove(1);
    one.step(0, change());
    one
}

#[test]
fn a_member_has_no_part_in_a_ballot_below_its_promise() {
    let mut one = accepting();
    let mut answer = |from, body| {
        let sends = hears(&mut one, from, body).sends;
        sends.into_iter().map(|(to, it)| (to, it.body)).collect::<Vec<_>>()
    };
    let (low, high) = (ballot(1, 0), ballot(2, 2));
    let promised = answer(2, Body::Prepare(high));
    assert!(matches!(promised[..], [(2, Body::Promise(..))]), "{promised:?}");
    let refusal = [(0, Body::Refuse(low, high))];
    assert_eq!(answer(0, Body::Prepare(low)), refusal);
    let all = Ranks::first(4).unwrap();
    assert_eq!(answer(0, Body::Propose(low, value(4), all.clone())), refusal);
    assert_eq!(answer(2, Body::Propose(high, value(4), all)), [(2, Body::Accept(high))]);
}

/// Survivors know what a dead rank has promised, and who took part in all that it has accepted.
#[test]
fn the_last_vote_of_a_member_says_what_others_may_have_decided_by_it() {
    let mut one = accepting();
    hears(&mut one, 2, Body::Prepare(ballot(2, 2)));
    assert_eq!(one.last_votes().call.promised, ballot(2, 2));
    for (round, participants) in [(2, 0..3), (3, 1..4)] {
        let participants = participants.collect();
        hears(&mut one, 2, Body::Propose(ballot(round, 2), value(4), participants));
    }
    let vote = &one.last_votes().call;
    assert_eq!((vote.accepted, vote.promised), (ballot(3, 2), ballot(3, 2)));
    assert_eq!(vote.participants, [1, 2].into_iter().collect());
}

/// The receivers of this ballot's first message.
fn asked(outputs: &Outputs, ballot: Ballot) -> Ranks {
    let sends = outputs.sends.iter();
    sends.filter(|(_, it)| it.body == Body::Prepare(ballot)).map(|(to, _)| *to).collect()
}

/// Rank 0 of three, which has begun the ballot 1 with all.
fn leading() -> Member {
    let mut one = members(3).swap_remove(0);
    let enters = || Body::Enter(Entry { kind: AgreementKind::Change, asks: false });
    let early = [one.step(0, change()), hears(&mut one, 1, enters())];
    assert!(early.iter().all(|it| asked(it, ballot(1, 0)).is_empty()), "not all have called");
    let begins = hears(&mut one, 2, enters());
    assert_eq!(asked(&begins, ballot(1, 0)), [1, 2].into_iter().collect());
    one
}

#[test]
fn a_leader_waits_for_the_answers_of_all_to_its_ballot() {
    let mut one = leading();
    let (own, other) = (ballot(1, 0), ballot(3, 0));
    let proposes = |outputs: &Outputs| {
        outputs.sends.iter().any(|(_, it)| matches!(it.body, Body::Propose(..)))
    };
    for (from, of) in [(1, own), (2, other)] {
        assert!(!proposes(&hears(&mut one, from, promise(of))), "{from}");
    }
    assert!(proposes(&hears(&mut one, 2, promise(own))));
    for (from, of) in [(1, own), (2, other)] {
        assert_eq!(hears(&mut one, from, Body::Accept(of)).verdicts, [], "{from}");
    }
    let verdicts = hears(&mut one, 2, Body::Accept(own)).verdicts;
    assert!(matches!(verdicts[..], [Verdict::Membership { epoch: 1, .. }]), "{verdicts:?}");
}

/// Another leader goes first; then comes a ballot above its own.
#[test]
fn a_leader_that_was_refused_lets_the_other_go_first() {
    let mut one = leading();
    let next = ballot(6, 0);
    let refused = hears(&mut one, 2, Body::Refuse(ballot(1, 0), ballot(5, 2)));
    let soon = one.step(SETTINGS.answer_timeout / 10, Input::Tick);
    assert_eq!([asked(&refused, next), asked(&soon, next)], [Ranks::NONE, Ranks::NONE]);
    let late = one.step(SETTINGS.answer_timeout, Input::Tick);
    assert_eq!(asked(&late, next), [1, 2].into_iter().collect());
}

#[test]
fn a_ballot_begins_again_without_a_rank_that_has_ended() {
    let mut one = leading();
    let certain = [(2, Evidence::Certain, Some(LastVotes::default()))];
    let again = one.step(0, Input::Evidence(&certain));
    assert_eq!(asked(&again, ballot(2, 0)), Ranks::only(1));
}
