//! Quorums that the last votes of dead ranks complete.

use ringreduce::recovery::membership::{Body, Evidence, Input, LastVotes, Message, Ranks, Verdict};

use super::{change, members};

/// The end of rank 0 is known before its last vote, which its goodbye brings.
#[test]
fn a_goodbye_may_bring_the_quorum() {
    let mut one = members(2).swap_remove(1);
    one.step(0, Input::Evidence(0, Evidence::Certain, None));
    assert!(one.step(0, change()).verdicts.is_empty());
    let goodbye = Message { epoch: 0, slot: 0, body: Body::Goodbye(LastVotes::default()) };
    let verdicts = one.step(1, Input::Message(0, &goodbye)).verdicts;
    let new = Ranks::from_iter([1]);
    let is_alone =
        |it: &Verdict| matches!(it, Verdict::Membership { members, .. } if *members == new);
    assert!(verdicts.iter().any(is_alone), "{verdicts:?}");
}
