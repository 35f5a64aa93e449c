//! Quorums that the last votes of dead ranks complete.

use ringreduce::recovery::membership::{
    Body, Evidence, Input, LastVotes, Member, Message, Ranks, Verdict,
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
