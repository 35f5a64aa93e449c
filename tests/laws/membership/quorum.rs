//! Quorums that the last votes of dead ranks complete.

use ringreduce::recovery::membership::{
    AgreementKind, Ballot, Body, Call, Cause, Ends, Entry, Evidence, Input, LastVotes, Member,
    Message, Ranks, Report, Settings, Verdict, Vote, is_quorum,
};

use super::{SETTINGS, change, deliver, members};

/// The end of rank 0 is known before its last vote, which its goodbye brings.
#[test]
fn a_goodbye_may_bring_the_quorum() {
    let mut one = members(2).swap_remove(1);
    one.step(0, Input::Evidence(&[(0, Evidence::Certain, None)]));
    assert!(one.step(0, change()).verdicts.is_empty());
    let goodbye = Message { epoch: 0, slot: 0, body: Body::Goodbye(LastVotes::default()) };
    let verdicts = one.step(1, Input::Message(0, &goodbye)).verdicts;
    let new = Ranks::only(1);
    let is_alone =
        |it: &Verdict| matches!(it, Verdict::Membership { members, .. } if *members == new);
    assert!(verdicts.iter().any(is_alone), "{verdicts:?}");
}

/// Rank 2 alone knows for certain that five of eight have ended, before rank 1 asks or later; and
/// rank 0, its only neighbour, is busy elsewhere.
#[test]
fn a_member_without_a_quorum_learns_of_ends_that_others_know() {
    let lost = [0, 3, 4, 5, 6, 7];
    let ended = |evidence, votes: Option<LastVotes>| -> Vec<_> {
        (3..8).map(|rank| (rank, evidence, votes.clone())).collect()
    };
    let certain = ended(Evidence::Certain, Some(LastVotes::default()));
    for knows_first in [true, false] {
        let mut all = members(8);
        let learns = |all: &mut [Member]| vec![(2, all[2].step(0, Input::Evidence(&certain)))];
        let mut steps = if knows_first { learns(&mut all) } else { vec![] };
        let suspected = ended(Evidence::Strong, None);
        steps.push((1, all[1].step(0, Input::Evidence(&suspected))));
        steps.push((1, all[1].step(0, change())));
        let mut verdicts = deliver(&mut all, &lost, steps);
        if !knows_first {
            let step = learns(&mut all);
            verdicts.extend(deliver(&mut all, &lost, step));
        }
        let late = SETTINGS.answer_timeout;
        let tick = vec![(1, all[1].step(late, Input::Tick))];
        verdicts.extend(deliver(&mut all, &lost, tick));
        let has_lost = |(_, it): &&(u32, Verdict)| matches!(it, Verdict::QuorumLost { .. });
        assert_eq!(verdicts.iter().find(has_lost), None, "{knows_first}");
    }
}

fn are_lost(ranks: impl Iterator<Item = u32>) -> Vec<(u32, Evidence, Option<LastVotes>)> {
    ranks.map(|rank| (rank, Evidence::Strong, None)).collect()
}

fn loses_quorum(member: &mut Member, time: u64) -> bool {
    let verdicts = member.step(time, Input::Tick).verdicts;
    verdicts.iter().any(|it| matches!(it, Verdict::QuorumLost { .. }))
}

/// Rank 0 of seven knows that the last five are lost. Rank 1 knows that they have ended, and the
/// last vote of each goes in a message of its own. Three make a quorum of ranks 0 and 1.
#[test]
fn a_member_waits_for_the_rest_of_an_answer() {
    let mut one = members(7).swap_remove(0);
    one.step(0, Input::Evidence(&are_lost(2..7)));
    one.step(0, change());
    let due = SETTINGS.answer_timeout;
    for (voter, time) in (2..5).zip([due - 1, due, 2 * due - 2]) {
        assert!(!loses_quorum(&mut one, time));
        let promised = Ballot { round: 1, leader: voter };
        let promised_in = (0, 1);
        let vote = Vote { promised_in, promised, ..Vote::default() };
        let votes = Some((voter, LastVotes { call: vote, ..LastVotes::default() }));
        let ends = Ends { dead: (2..7).collect(), votes, ..Ends::default() };
        let cause = Cause { rank: 2, evidence: Evidence::Certain, sequence: 1 };
        let body = Body::Revoke(cause, ends);
        one.step(time, Input::Message(1, &Message { epoch: 0, slot: 0, body }));
    }
    assert!(!loses_quorum(&mut one, 4 * due), "two of four are a quorum");
}

/// Rank 0 of seven has lost its quorum, and half of the time later one more rank.
#[test]
fn a_member_that_loses_one_more_asks_again() {
    let mut one = members(7).swap_remove(0);
    let asks = |sends: &[(u32, Message)]| -> Ranks {
        sends.iter().filter(|(_, it)| it.body == Body::Ask).map(|(to, _)| *to).collect()
    };
    let (due, lost) = (SETTINGS.answer_timeout, are_lost(3..7));
    one.step(0, change());
    let asked = asks(&one.step(0, Input::Evidence(&lost)).sends);
    assert_eq!(asked, [1, 2].into_iter().collect());
    let enters = Body::Enter(Entry { kind: AgreementKind::Change, asks: false });
    one.step(0, Input::Message(1, &Message { epoch: 0, slot: 1, body: enters }));
    let asked = asks(&one.step(due / 2, Input::Evidence(&are_lost(2..3))).sends);
    assert_eq!(asked, Ranks::only(1));
    assert!(!loses_quorum(&mut one, due), "rank 1 may know how that one was lost");
    assert!(loses_quorum(&mut one, due + due / 2));
}

/// Rank 0 has asked rank 1, which learns later that rank 2 has left.
#[test]
fn a_member_that_has_asked_is_told_of_ranks_that_leave() {
    let mut one = members(3).swap_remove(1);
    one.step(0, Input::Revoke);
    one.step(0, Input::Message(0, &Message { epoch: 0, slot: 0, body: Body::Ask }));
    let goodbye = Message { epoch: 0, slot: 0, body: Body::Goodbye(LastVotes::default()) };
    let sends = one.step(0, Input::Message(2, &goodbye)).sends;
    let tells = |(to, it): &(u32, Message)| match &it.body {
        Body::Revoke(_, ends) => *to == 0 && ends.left == Ranks::only(2),
        _ => false,
    };
    assert!(sends.iter().any(tells), "{sends:?}");
}

/// Rank 0 of five, whose calls end alike, lost its quorum long before its call.
#[test]
fn the_wait_for_a_quorum_is_that_of_the_call() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(0, Ranks::first(5).unwrap(), settings).unwrap();
    one.step(0, Input::Evidence(&are_lost(2..5)));
    one.step(0, Input::Agree { flags: 0, deadline: Some(100) });
    for time in [SETTINGS.grace, 100] {
        assert!(!loses_quorum(&mut one, time));
    }
    let later = 10 * SETTINGS.settling;
    one.step(later, change());
    for time in [later + SETTINGS.grace, later + SETTINGS.settling - 1] {
        assert!(!loses_quorum(&mut one, time), "rank 1 may answer yet");
    }
    assert!(loses_quorum(&mut one, later + 2 * SETTINGS.settling));
}

/// Rank 0 of four has seen the three others end, which have voted alike. It goes on alone unless
/// they may have decided without it.
#[test]
fn the_votes_of_the_dead_say_whether_one_may_go_on() {
    let at = |epoch| (epoch, 1);
    let others = Ballot { round: 5, leader: 2 };
    let accepted = |epoch, participants: &[u32]| Vote {
        accepted_in: at(epoch),
        accepted: others,
        participants: participants.iter().copied().collect(),
        ..Vote::default()
    };
    for (goes_on, call) in [
        (true, Vote::default()),
        (true, Vote { promised_in: at(0), promised: others, ..Vote::default() }),
        (true, accepted(0, &[0, 2, 3])),
        (false, accepted(0, &[1, 2, 3])),
        (false, accepted(1, &[0, 1, 2, 3])),
    ] {
        let mut one = members(4).swap_remove(0);
        let votes = LastVotes { call: call.clone(), ..LastVotes::default() };
        let ended = [1, 2, 3].map(|rank| (rank, Evidence::Certain, Some(votes.clone())));
        one.step(0, Input::Evidence(&ended));
        let verdicts = one.step(0, change()).verdicts;
        let end = match &verdicts[..] {
            [Verdict::Membership { members, .. }] => *members == Ranks::only(0),
            [Verdict::QuorumLost { .. }] => false,
            _ => panic!("{verdicts:?}"),
        };
        assert_eq!(end, goes_on, "{call:?}");
        // Whoever learns of those ballots refuses a lower one.
        assert!(!goes_on || one.last_votes().call.promised > call.promised, "{call:?}");
    }
}

#[test]
fn ranks_that_have_ended_are_no_part_of_a_quorum() {
    let set = |ranks: &[u32]| ranks.iter().copied().collect::<Ranks>();
    assert!(!is_quorum(&set(&[0, 1, 2, 3]), &set(&[0, 1]), &set(&[0, 1])));
}

/// Rank 1 of six has begun a ballot with rank 2. Ranks 3 and 4 may have decided without them, so
/// without rank 5, too, they are no quorum. That one has promised a higher ballot.
#[test]
fn a_ballot_below_the_promise_of_a_dead_rank_begins_again() {
    let mut one = members(6).swap_remove(1);
    let voted = |promised, accepted: Ballot| {
        let participants = if accepted.round > 0 { (3..5).collect() } else { Ranks::NONE };
        let (promised_in, accepted_in) = ((0, 1), (0, accepted.round.min(1)));
        let call = Vote { promised_in, promised, accepted_in, accepted, participants };
        LastVotes { call, ..LastVotes::default() }
    };
    let decided = Ballot { round: 4, leader: 3 };
    for (rank, votes) in [
        (0, Some(LastVotes::default())),
        (3, Some(voted(decided, decided))),
        (4, Some(voted(decided, decided))),
        (5, None),
    ] {
        let evidence = if votes.is_some() { Evidence::Certain } else { Evidence::Suspected };
        one.step(0, Input::Evidence(&[(rank, evidence, votes)]));
    }
    one.step(0, change());
    let hears = |one: &mut Member, body| -> Vec<Body> {
        let message = Message { epoch: 0, slot: 1, body };
        one.step(0, Input::Message(2, &message)).sends.into_iter().map(|(_, it)| it.body).collect()
    };
    let own = |round| Ballot { round, leader: 1 };
    let enters = Body::Enter(Entry { kind: AgreementKind::Change, asks: false });
    assert_eq!(hears(&mut one, enters), [Body::Prepare(own(5))]);
    let late = voted(Ballot { round: 7, leader: 5 }, Ballot::default());
    one.step(0, Input::Evidence(&[(5, Evidence::Certain, Some(late))]));
    let call = Call { kind: AgreementKind::Change, flags: u64::MAX };
    let (suspected, cause, accepted) = (Ranks::NONE, None, None);
    let report = Report { suspected, done: 0, full: 0, call, cause, accepted };
    let again = hears(&mut one, Body::Promise(own(5), report.clone()));
    assert_eq!(again, [Body::Prepare(own(8))]);
    let proposes = hears(&mut one, Body::Promise(own(8), report));
    assert!(matches!(proposes[..], [Body::Propose(..)]), "{proposes:?}");
}
