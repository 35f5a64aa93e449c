//! The value that a leader proposes, from the reports of all participants.

use ringreduce::recovery::membership::{
    AgreementKind, Ballot, Body, Call, Cause, Entry, Evidence, Input, Member, Message, Ranks,
    Recovery, Report, Settings, Value,
};

use super::{SETTINGS, change, members};

const AGREE: Input<'_> = Input::Agree { flags: 7, deadline: None };

fn report(kind: AgreementKind, flags: u64) -> Report {
    let (suspected, call) = (Ranks::NONE, Call { kind, flags });
    Report { suspected, done: 0, full: 0, call, cause: None, accepted: None }
}

/// The value that is proposed among these messages.
fn proposal(sends: Vec<(u32, Message)>) -> Option<Value> {
    sends.into_iter().find_map(|(_, it)| match it.body {
        Body::Propose(_, value, _) => Some(value),
        _ => None,
    })
}

/// What `one`, rank 0, proposes in this agreement, whose calls `sends` follow, after these reports
/// of the ranks from 1 on: at once, or when it has waited for better evidence.
fn after(
    one: &mut Member,
    slot: u32,
    sends: &[(u32, Message)],
    reports: &[Report],
) -> [Option<Value>; 2] {
    let ballot = sends.iter().find_map(|(_, it)| match it.body {
        Body::Prepare(ballot) => Some(ballot),
        _ => None,
    });
    let mut answers = Vec::new();
    for (rank, report) in (1..).zip(reports) {
        let body = Body::Promise(ballot.unwrap(), report.clone());
        let promise = Message { epoch: 0, slot, body };
        answers.extend(one.step(0, Input::Message(rank, &promise)).sends);
    }
    let late = one.step(SETTINGS.answer_timeout, Input::Tick).sends;
    [proposal(answers), proposal(late)]
}

/// As [`after`], in the first agreement, where the program of rank 0 makes the call `input`.
fn proposed(input: Input<'_>, reports: &[Report]) -> [Option<Value>; 2] {
    let mut one = members(1 + reports.len() as u32).swap_remove(0);
    let mut sends = one.step(0, input).sends;
    for (rank, report) in (1..).zip(reports) {
        let body = Body::Enter(Entry { kind: report.call.kind, asks: false });
        let enters = Message { epoch: 0, slot: 1, body };
        sends.extend(one.step(0, Input::Message(rank, &enters)).sends);
    }
    after(&mut one, 1, &sends, reports)
}

/// It may be decided already, and of two the later one.
#[test]
fn the_accepted_value_of_the_highest_ballot_is_proposed_again() {
    let value = |flags| Value {
        kind: AgreementKind::Agree,
        members: Ranks::first(3).unwrap(),
        flags,
        recovery: Recovery::default(),
        cause: None,
    };
    let accepted = |round: u32| {
        let ballot = Ballot { round, leader: 1 };
        let accepted = Some((ballot, value(round.into())));
        Report { accepted, ..report(AgreementKind::Agree, 7) }
    };
    for rounds in [[1, 2], [2, 1]] {
        assert_eq!(proposed(AGREE, &rounds.map(accepted))[0], Some(value(2)));
    }
}

#[test]
fn all_flags_count() {
    let reports = [6, 3].map(|flags| report(AgreementKind::Agree, flags));
    let [value, _] = proposed(AGREE, &reports);
    let (flags, members) = value.map(|value| (value.flags, value.members)).unwrap();
    assert_eq!((flags, members), (2, Ranks::first(3).unwrap()));
}

#[test]
fn calls_of_two_kinds_make_no_value() {
    let reports = [AgreementKind::Agree, AgreementKind::Change].map(|kind| report(kind, 7));
    assert_eq!(proposed(AGREE, &reports), [None, None]);
}

/// These are the suspects of the ranks from 1 on. The leader stays.
#[test]
fn of_ranks_that_suspect_each_other_the_most_suspected_go() {
    for (suspicions, stay) in [
        (vec![vec![3], vec![3], vec![]], vec![0, 1, 2]),
        (vec![vec![2], vec![]], vec![0, 1]),
        (vec![vec![0], vec![0]], vec![0]),
    ] {
        let suspects = |of: &Vec<u32>| Report {
            suspected: of.iter().copied().collect(),
            ..report(AgreementKind::Change, u64::MAX)
        };
        let reports: Vec<_> = suspicions.iter().map(suspects).collect();
        let [early, late] = proposed(change(), &reports);
        assert_eq!(early, None, "better evidence may come");
        let stay: Ranks = stay.into_iter().collect();
        assert_eq!(late.map(|value| value.members), Some(stay), "{suspicions:?}");
    }
}

#[test]
fn a_change_says_what_was_done_and_why_it_came() {
    let cause = |evidence| Some(Cause { rank: 2, evidence, sequence: 1 });
    let known = [(5, Evidence::Suspected), (3, Evidence::Certain)];
    let reports = known.map(|(done, evidence)| Report {
        done,
        cause: cause(evidence),
        ..report(AgreementKind::Change, u64::MAX)
    });
    let value = proposed(change(), &reports)[0].clone().unwrap();
    assert_eq!(value.recovery, Recovery { low: 0, high: 5 });
    assert_eq!(value.cause, cause(Evidence::Certain));
}

#[test]
fn a_closing_names_the_ranks_with_links() {
    let close = Input::Close { epoch: 0, is_linked: true, deadline: None, evict_missing: false };
    let reports = [1, 0].map(|flags| report(AgreementKind::Close, flags));
    let [value, _] = proposed(close, &reports);
    assert_eq!(value.map(|value| value.members), Some(Ranks::first(2).unwrap()));
}

#[test]
fn a_settlement_counts_what_all_have() {
    let settings = Settings { uniform: true, ..SETTINGS };
    let mut one = Member::new(0, Ranks::first(3).unwrap(), settings).unwrap();
    for input in [Input::Begin(1), Input::Begin(2), Input::Full(2)] {
        one.step(0, input);
    }
    let sends = one.step(0, Input::Revoke).sends;
    let reports = [2, 1].map(|full| Report { full, ..report(AgreementKind::Settle, u64::MAX) });
    let [value, _] = after(&mut one, 0, &sends, &reports);
    assert_eq!(value.map(|value| value.recovery), Some(Recovery { low: 1, high: 1 }));
}
