//! The closing of a change of the membership: all its members go on with it, or none does.

use ringreduce::recovery::membership::{
    Body, Evidence, Input, LastVotes, Member, Message, Outputs, Ranks, Verdict,
};

use super::{SETTINGS, change, deliver, deliver_within, members};

const DEADLINE: u64 = 100;

fn close(is_linked: bool, evict_missing: bool) -> Input<'static> {
    Input::Close { epoch: 1, is_linked, deadline: Some(DEADLINE), evict_missing }
}

/// Three members whose programs have just decided epoch 1.
fn changed() -> Vec<Member> {
    let mut all = members(3);
    let calls = (0..3).map(|rank| (rank, all[rank as usize].step(0, change()))).collect();
    let verdicts = deliver(&mut all, &[], calls);
    let begins =
        |(_, verdict): &&(u32, Verdict)| matches!(verdict, Verdict::Membership { epoch: 1, .. });
    assert_eq!(verdicts.iter().filter(begins).count(), 3, "{verdicts:?}");
    all
}

fn step<'a>(
    all: &mut [Member],
    time: u64,
    ranks: &[u32],
    input: impl Fn(u32) -> Input<'a>,
) -> Vec<(u32, Outputs)> {
    ranks.iter().map(|&rank| (rank, all[rank as usize].step(time, input(rank)))).collect()
}

#[test]
fn a_change_goes_on_once_all_members_have_their_links() {
    let mut all = changed();
    let votes = step(&mut all, 0, &[0, 1, 2], |_| close(true, false));
    let verdicts = deliver(&mut all, &[], votes);
    assert!(verdicts.iter().all(|(_, it)| *it == Verdict::Closed { epoch: 1 }), "{verdicts:?}");
    assert_eq!(verdicts.len(), 3);
}

#[test]
fn a_change_is_undone_at_all_members_if_one_lacks_a_link_or_dies() {
    for dies in [false, true] {
        let mut all = changed();
        let rest: &[u32] = if dies { &[0, 2] } else { &[0, 1, 2] };
        let mut first = step(&mut all, 0, rest, |rank| close(rank != 1, false));
        if dies {
            let certain = [(1, Evidence::Certain, Some(LastVotes::default()))];
            let death = Input::Evidence(&certain);
            first.extend(step(&mut all, 0, rest, |_| death));
        }
        let mut verdicts = deliver(&mut all, if dies { &[1] } else { &[] }, first);
        verdicts.retain(|(_, verdict)| !matches!(verdict, Verdict::Revoked(_)));
        let undone = Verdict::Undone { epoch: 1, missing: Ranks::only(1) };
        assert_eq!(verdicts.len(), rest.len(), "{verdicts:?}");
        assert!(verdicts.iter().all(|(_, verdict)| *verdict == undone), "{verdicts:?}");
        // The next change begins with what is known.
        let calls = step(&mut all, 1, rest, |_| change());
        let mut verdicts = deliver(&mut all, if dies { &[1] } else { &[] }, calls);
        let new: Ranks = rest.iter().copied().collect();
        verdicts.retain(|(_, verdict)| match verdict {
            Verdict::Membership { epoch: 2, members, .. } => *members == new,
            _ => false,
        });
        assert_eq!(verdicts.len(), rest.len(), "{verdicts:?}");
    }
}

/// Rank 2 gives up its wait for the votes; the others vote late, go on and leave.
#[test]
fn a_rank_that_gave_up_the_wait_does_not_go_on_alone() {
    let mut all = changed();
    let vote = step(&mut all, 0, &[2], |_| close(true, false));
    assert_eq!(deliver(&mut all, &[], vote), []);
    let late = step(&mut all, DEADLINE, &[2], |_| Input::Tick);
    let missing = [0, 1].into_iter().collect();
    assert_eq!(deliver(&mut all, &[], late), [(2, Verdict::TimedOut { missing })]);
    let votes = step(&mut all, DEADLINE, &[0, 1], |_| close(true, false));
    let closed = Verdict::Closed { epoch: 1 };
    let mut verdicts = deliver(&mut all, &[], votes);
    verdicts.sort_by_key(|(rank, _)| *rank);
    assert_eq!(verdicts, [(0, closed.clone()), (1, closed.clone())]);
    let goodbyes = step(&mut all, DEADLINE, &[0, 1], |_| Input::Leave);
    assert_eq!(deliver(&mut all, &[], goodbyes), []);
    for _ in 0..2 {
        let call = step(&mut all, DEADLINE, &[2], |_| change());
        assert_eq!(deliver(&mut all, &[], call), [(2, closed.clone())]);
    }
}

/// Rank 2 gives up its wait for the votes and changes the members: the others wait no longer, and
/// come to the next change.
#[test]
fn the_wait_for_a_vote_ends_once_its_rank_changes_the_members() {
    let mut all = changed();
    let vote = step(&mut all, 0, &[2], |_| close(true, false));
    assert_eq!(deliver(&mut all, &[], vote), []);
    assert_eq!(step(&mut all, DEADLINE, &[2], |_| Input::Tick).len(), 1);
    let votes = step(&mut all, DEADLINE, &[0], |_| close(true, false));
    assert_eq!(deliver(&mut all, &[], votes), []);
    let call = step(&mut all, DEADLINE, &[2], |_| change());
    // Rank 2 has given up because of rank 1.
    let given_up = Verdict::TimedOut { missing: Ranks::only(1) };
    assert_eq!(deliver(&mut all, &[], call), [(0, given_up)]);
    // A vote that comes after the change does not wait either.
    let vote = step(&mut all, DEADLINE, &[1], |_| close(true, false));
    let missing = Ranks::only(2);
    assert_eq!(deliver(&mut all, &[], vote), [(1, Verdict::TimedOut { missing })]);
    let calls = step(&mut all, DEADLINE, &[0, 1], |_| change());
    let verdicts = deliver(&mut all, &[], calls);
    let is_next = |it: &(_, _)| matches!(it.1, Verdict::Membership { epoch: 2, .. });
    assert!(verdicts.len() == 3 && verdicts.iter().all(is_next), "{verdicts:?}");
}

/// As by `evict`; without it the call times out, and names the rank.
#[test]
fn a_rank_that_has_not_voted_by_the_deadline_is_left_behind() {
    let missing = Ranks::only(2);
    for evict_missing in [true, false] {
        let mut all = changed();
        let votes = step(&mut all, 0, &[0, 1], |_| close(true, evict_missing));
        assert_eq!(deliver(&mut all, &[2], votes), []);
        let mut verdicts = Vec::new();
        for time in [DEADLINE, DEADLINE + SETTINGS.answer_timeout] {
            let late = step(&mut all, time, &[0, 1], |_| Input::Tick);
            verdicts.extend(deliver(&mut all, &[2], late));
        }
        verdicts.retain(|(_, verdict)| !matches!(verdict, Verdict::Revoked(_)));
        let end = match evict_missing {
            true => Verdict::Undone { epoch: 1, missing: missing.clone() },
            false => Verdict::TimedOut { missing: missing.clone() },
        };
        verdicts.sort_by_key(|(rank, _)| *rank);
        assert_eq!(verdicts, [(0, end.clone()), (1, end)]);
    }
}

#[test]
fn a_vote_for_an_older_epoch_does_not_count() {
    let mut all = changed();
    let vote = |rank| Input::Close {
        epoch: u32::from(rank != 1),
        is_linked: true,
        deadline: None,
        evict_missing: false,
    };
    let votes = step(&mut all, 0, &[0, 1, 2], vote);
    let undone = Verdict::Undone { epoch: 0, missing: Ranks::NONE };
    assert_eq!(deliver(&mut all, &[], votes), [(1, undone)]);
    // The others wait for the vote of the epoch.
    let vote = step(&mut all, 0, &[1], |_| close(true, false));
    let mut verdicts = deliver(&mut all, &[], vote);
    verdicts.sort_by_key(|(rank, _)| *rank);
    assert_eq!(verdicts, [0, 1, 2].map(|rank| (rank, Verdict::Closed { epoch: 1 })));
}

/// The program of rank 2 calls again after it has given up a change, which was decided meanwhile.
#[test]
fn a_change_that_was_given_up_answers_the_next_call() {
    let mut all = changed();
    let change = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    let calls = step(&mut all, 0, &[0, 1, 2], |_| change);
    let is_lost = |_, to, message: &Message| to == 2 && matches!(message.body, Body::Decide(_));
    assert_eq!(deliver_within(&mut all, 0, calls, is_lost).len(), 2);
    let gives_up = step(&mut all, DEADLINE, &[2], |_| Input::Tick);
    let verdicts = deliver(&mut all, &[], gives_up);
    let [(2, Verdict::TimedOut { .. }), (2, decided @ Verdict::Membership { epoch: 2, .. })] =
        &verdicts[..]
    else {
        panic!("{verdicts:?}")
    };
    let again = all[2].step(DEADLINE, change);
    assert_eq!((again.verdicts, again.sends), (vec![decided.clone()], vec![]));
    // A call after that is a change of its own.
    assert!(!all[2].step(DEADLINE, change).sends.is_empty());
}

/// The decision of a change comes to rank 2 only once its program has given up the wait and votes.
#[test]
fn a_vote_that_a_change_has_overtaken_is_answered() {
    let mut all = changed();
    let late = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    let calls = step(&mut all, 0, &[0, 1, 2], |_| late);
    let is_lost = |_, to, message: &Message| to == 2 && matches!(message.body, Body::Decide(_));
    assert_eq!(deliver_within(&mut all, 0, calls, is_lost).len(), 2);
    let gives_up = all[2].step(DEADLINE, Input::Tick).verdicts;
    assert!(matches!(gives_up[..], [Verdict::TimedOut { .. }]), "{gives_up:?}");
    let vote = step(&mut all, DEADLINE, &[2], |_| close(true, false));
    let verdicts = deliver(&mut all, &[], vote);
    let [(2, given_up), (2, Verdict::Membership { epoch: 2, .. })] = &verdicts[..] else {
        panic!("{verdicts:?}")
    };
    let missing = [0, 1].into_iter().collect();
    assert_eq!(*given_up, Verdict::TimedOut { missing }, "they change the members instead");
}

fn agree() -> Input<'static> {
    Input::Agree { flags: 6, deadline: Some(3 * DEADLINE) }
}

/// Rank 2 gives up a change, which the others decide, and agrees.
#[test]
fn an_agreement_that_a_change_overtakes_ends_at_once_and_names_who_changed() {
    let mut all = changed();
    let late = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    let calls = step(&mut all, 0, &[0, 1, 2], |_| late);
    let is_decision = |message: &Message| matches!(message.body, Body::Decide(_));
    deliver_within(&mut all, 0, calls, |_, to, message| to == 2 && is_decision(message));
    assert_eq!(all[2].step(DEADLINE, Input::Tick).verdicts.len(), 1);
    let call = step(&mut all, DEADLINE, &[2], |_| agree());
    let missing = [0, 1].into_iter().collect();
    let verdicts = deliver(&mut all, &[], call);
    let [(2, overtaken), (2, Verdict::Membership { epoch: 2, .. })] = &verdicts[..] else {
        panic!("{verdicts:?}")
    };
    assert_eq!(*overtaken, Verdict::TimedOut { missing });
}

/// All members give up a change, or the closing of one, that is decided once they agree instead.
#[test]
fn an_agreement_after_a_call_that_all_gave_up_is_made_all_the_same() {
    let late = Input::Change { deadline: Some(DEADLINE), evict_missing: false };
    for given_up in [late, close(false, false)] {
        let mut all = changed();
        let calls = step(&mut all, 0, &[0, 1, 2], |_| given_up);
        let is_accepted = |message: &Message| matches!(message.body, Body::Accept(_));
        deliver_within(&mut all, 0, calls, |_, _, message| is_accepted(message));
        let late = step(&mut all, DEADLINE, &[0, 1, 2], |_| Input::Tick);
        assert_eq!(deliver(&mut all, &[], late).len(), 3);
        let calls = step(&mut all, DEADLINE, &[0, 1, 2], |_| agree());
        let mut verdicts = deliver(&mut all, &[], calls);
        verdicts.retain(|(_, it)| matches!(it, Verdict::Agreed { flags: 6, .. }));
        assert_eq!(verdicts.len(), 3, "{given_up:?}: {all:?}");
    }
}

/// A member of five gives up the wait and changes the members. Others that do not lead know of
/// their leader's vote and of its call.
#[test]
fn a_member_that_gave_up_is_named_by_those_that_do_not_lead() {
    let mut all = members(5);
    let calls = (0..5).map(|rank| (rank, all[rank as usize].step(0, change()))).collect();
    deliver(&mut all, &[], calls);
    let deadline = Some(3 * SETTINGS.answer_timeout);
    let close = Input::Close { epoch: 1, is_linked: true, deadline, evict_missing: false };
    let votes = step(&mut all, 0, &[0, 1, 2], |_| close);
    assert_eq!(deliver(&mut all, &[], votes), []);
    let gives_up = step(&mut all, 0, &[4], |_| change());
    let mut verdicts = deliver(&mut all, &[], gives_up);
    verdicts.sort_by_key(|(rank, _)| *rank);
    // The leader knows that rank 3 has not voted, for which rank 4 may have given up.
    let [(0, Verdict::TimedOut { missing: known }), others @ ..] = &verdicts[..] else {
        panic!("{verdicts:?}")
    };
    assert_eq!(*known, Ranks::only(3));
    let missing = Ranks::only(4);
    let named = Verdict::TimedOut { missing };
    assert_eq!(others, [(1, named.clone()), (2, named)]);
}
