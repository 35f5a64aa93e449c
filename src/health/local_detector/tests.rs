//! Tests of the failure detector of one host, with two ranks that are threads of one process.

use super::*;
use crate::error::cause::{CallMismatch, FailureReason};

/// The detectors of the ranks of one communicator, in this process.
fn ranks<const N: usize>() -> [LocalDetector; N] {
    let memory = LocalDetector::private_memory(N).unwrap();
    std::array::from_fn(|me| LocalDetector::of_threads((me, N), 0..N, &memory).unwrap())
}

/// A peer may look late, when the rank has dropped its communicator.
#[test]
fn a_failure_cause_stays_and_a_dropped_communicator_is_none() {
    for fails in [false, true] {
        let [one, other] = ranks();
        other.enter(1, 7);
        one.enter(1, 7);
        if fails {
            one.fail(&FailureCause::aborted(0), true);
        }
        drop(one);
        assert_eq!(other.has_entry_of(0), fails);
        assert_eq!(matches!(other.failed_peer(), Some((0, Fault::GaveUp(_)))), fails);
        assert!(fails || other.failed_peer().is_none() && other.stalled_in(1).is_none());
    }
}

#[test]
fn a_rank_in_another_call_is_known_while_its_entry_has_the_fingerprint() {
    let [one, other] = ranks();
    for call in 1..=20 {
        one.enter(call, 100 + call);
        assert!(one.mismatched_peer().is_none());
        one.leave(call);
    }
    other.enter(14, 114);
    assert!(other.mismatched_peer().is_none(), "the same call");
    other.enter(14, 7);
    let Some((0, Fault::Mismatch { field: MismatchField::Fingerprint, ours, theirs })) =
        other.mismatched_peer()
    else {
        panic!("the mismatch is not found")
    };
    assert_eq!((ours, theirs), (7, 114));
    // The entry has no fingerprint any more of a call so far back.
    other.enter(13, 7);
    assert!(other.mismatched_peer().is_none());
    other.enter(14, 0);
    assert!(other.mismatched_peer().is_none(), "its fingerprint is not known yet");
}

#[test]
fn the_rank_that_finds_a_mismatch_tells_the_other_rank() {
    let [one, other] = ranks();
    one.enter(3, 5);
    other.enter(3, 5);
    let difference = CallMismatch { with: 1, field: MismatchField::Captured, ours: 1, theirs: 0 };
    let cause = FailureCause { culprit: 0, reason: FailureReason::Differs(difference) };
    one.fail(&cause, true);
    // Only the first cause counts.
    one.fail(&FailureCause::lost(1), true);
    let Some((0, Fault::Mismatch { field: MismatchField::Captured, ours: 0, theirs: 1 })) =
        other.mismatched_peer()
    else {
        panic!("the mismatch is not reported")
    };
    let shown = |(by, fault): (usize, Fault)| (by, format!("{fault:?}"));
    assert!(one.mismatched_peer().is_none());
    assert_eq!(
        other.failed_peer().map(shown),
        Some((0, format!("{:?}", Fault::GaveUp(Box::new(cause)))))
    );
}

/// Rank 0 waits in a call for rank 1, which waits outside calls for a message of rank 2.
#[test]
fn the_rank_at_the_end_of_a_chain_of_messages_is_the_absent_one() {
    let ranks: [_; 3] = ranks();
    ranks.iter().for_each(|rank| {
        rank.enter(1, 7);
        rank.leave(1);
    });
    ranks[0].enter(2, 8);
    let absent = |rank| Some((rank, Stall::NeverEntered { entered: 1 }));
    assert_eq!(ranks[0].stalled_in(2), absent(1));
    ranks[1].wait_for_message(Some(2));
    assert_eq!(ranks[0].stalled_in(2), absent(2));
    assert_eq!([1, 2].map(|peer| ranks[0].end_of_messages(peer)), [2, 2]);
    // A circle has no end.
    ranks[2].wait_for_message(Some(1));
    assert!(ranks[0].stalled_in(2).is_some());
    assert_eq!([1, 2].map(|peer| ranks[0].end_of_messages(peer)), [1, 2]);
    ranks[1].wait_for_message(None);
    assert_eq!(ranks[0].stalled_in(2), absent(1));
}

/// Rank 1 has made the call that makes the subgroup, and rank 0 has failed in it or after it.
#[test]
fn a_rank_that_failed_in_the_call_that_made_a_subgroup_has_failed_there() {
    for has_made in [false, true] {
        let [one, other] = ranks();
        [&one, &other].into_iter().for_each(|rank| rank.enter(5, 7));
        other.leave(5);
        if has_made {
            one.leave(5);
        }
        one.fail(&FailureCause::aborted(0), true);
        let pages = Arc::new(other.pages());
        let group = |call| {
            let memory = LocalDetector::private_memory(2).unwrap();
            LocalDetector::subgroup(&pages, (1, &[0, 1], &[0, 1]), (&memory, 0), call).unwrap()
        };
        let made = group(Some(5));
        assert_eq!(made.failure(0).is_none(), has_made);
        // Messages are outside calls.
        assert_eq!(made.cause_outside_calls(0).is_none(), has_made);
        made.enter(1, 7);
        assert_eq!(made.failed_peer().is_none(), has_made);
        drop(made);
        // No call of the parent makes a group that its members alone make.
        assert!(group(None).failure(0).is_none());
    }
}
