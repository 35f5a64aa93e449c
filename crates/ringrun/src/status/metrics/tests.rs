//! The text of the metrics, read by a strict reader of the format.

use std::collections::BTreeMap;

use harness::openmetrics::{Sample, read};
use harness::share::{count, random_range};
use ringreduce::trace::{CommunicatorRecord, NameLabels, ShortName, State};

use super::super::verdict::tests::{NOW, SECOND, any_number, any_rank, rank, waits};
use super::super::{ProcessState, RankStatus};
use super::text;
use crate::launch::rank_end::RankEnd;

fn samples(all: &[RankStatus]) -> Vec<Sample> {
    let text = text(all, NOW, &mut NameLabels::new());
    read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// The values of a metric by rank.
fn values(samples: &[Sample], name: &str) -> Vec<(String, f64)> {
    let of_name = samples.iter().filter(|sample| sample.name == format!("ringreduce_rank_{name}"));
    of_name.map(|sample| (sample.labels["rank"].clone(), sample.value)).collect()
}

/// The values of a metric that each rank has, in the order of the ranks.
fn all_values(samples: &[Sample], name: &str) -> Vec<f64> {
    let values = values(samples, name);
    assert!(values.iter().enumerate().all(|(at, (rank, _))| *rank == at.to_string()), "{values:?}");
    values.into_iter().map(|(_, value)| value).collect()
}

/// The states of the ranks.
fn states(samples: &[Sample]) -> Vec<String> {
    let states = samples.iter().filter(|sample| sample.name == "ringreduce_rank_state");
    let current = states.filter(|sample| sample.value == 1.0);
    current.map(|sample| sample.labels["state"].clone()).collect()
}

#[test]
fn each_question_has_a_metric() {
    let mut all = [waits(0), waits(1), rank(2, 11, State::Done, 31), waits(3)];
    let got = samples(&all);
    assert_eq!(got[0].name, "ringreduce_launcher_info");
    assert_eq!(states(&got), ["running"; 4]);
    assert_eq!(all_values(&got, "restarts_total"), [0.0; 4]);
    assert_eq!(all_values(&got, "calls_begun_total"), [12.0, 12.0, 11.0, 12.0]);
    assert_eq!(all_values(&got, "calls_finished_total"), [11.0; 4]);
    assert_eq!(all_values(&got, "call_seconds"), [30.0, 30.0, 0.0, 30.0]);
    assert_eq!(all_values(&got, "call_bytes"), [400.0, 400.0, 0.0, 400.0]);
    assert_eq!(all_values(&got, "awaited_seconds"), [0.0, 0.0, 30.0, 0.0]);
    let of_waiting = |value| ["0", "1", "3"].map(|rank| (rank.to_owned(), value));
    assert_eq!(values(&got, "call_step"), of_waiting(3.0));
    assert_eq!(values(&got, "call_info"), of_waiting(1.0));
    let info = got.iter().find(|sample| sample.name == "ringreduce_rank_call_info").unwrap();
    let labels = [("call", "all_reduce"), ("host", "b"), ("rank", "0")];
    let labels = labels.map(|(label, text)| (label.to_owned(), text.to_owned()));
    assert_eq!(info.labels, BTreeMap::from(labels));
    // A process that has ended is in no call, and has not finished the one that it was in.
    all[0].state = ProcessState::Ended(RankEnd::Killed { signal: 9, core: false });
    all[1].state = ProcessState::Stopped;
    (all[2].record, all[2].restarts) = (None, 2);
    all[3].record = None;
    for is_read in [true, false] {
        // Of a host that does not answer, as much is known as of another version.
        (all[3].is_read, all[3].other_format) = (is_read, is_read);
        assert_eq!(all_values(&samples(&all), "calls_begun_total").len(), 3);
    }
    let got = samples(&all);
    assert_eq!(states(&got), ["ended", "stopped", "running", "running"]);
    assert_eq!(all_values(&got, "restarts_total"), [0.0, 0.0, 2.0, 0.0]);
    // Rank 3 could not be read, and has no samples of calls.
    assert_eq!(all_values(&got, "calls_begun_total"), [12.0, 12.0, 0.0]);
    assert_eq!(all_values(&got, "calls_finished_total"), [11.0, 11.0, 0.0]);
    assert_eq!(all_values(&got, "call_seconds"), [0.0, 30.0, 0.0]);
}

#[test]
fn of_several_calls_the_first_to_begin_counts() {
    let mut all = [rank(0, 12, State::Done, 0)];
    let record = all[0].record.as_mut().unwrap();
    let member = record.communicators[0].unwrap();
    let named = |name| Some(CommunicatorRecord { name: ShortName::of(name), ..member });
    record.communicators.extend([named("a \"b\\"), named("c")]);
    for (at, communicator) in [(4, 1), (8, 2)] {
        let op = &mut record.ops[at];
        (op.state, op.communicator) = (State::Entered, Some(communicator));
        op.start = NOW - (9 - at as u64) * SECOND;
    }
    let got = samples(&all);
    assert_eq!(all_values(&got, "call_seconds"), [5.0]);
    assert_eq!(all_values(&got, "calls_finished_total"), [10.0]);
    assert_eq!(values(&got, "call_step"), []);
    let info = got.iter().find(|sample| sample.name == "ringreduce_rank_call_info").unwrap();
    assert_eq!(info.labels["communicator"], "a \"b\\");
    // A job that makes ever new names does not fill the memory of who collects its metrics.
    let mut names = NameLabels::new();
    for name in 0..1_000 {
        names.label(&name.to_string());
    }
    let text = text(&all, NOW, &mut names);
    assert!(text.contains("communicator=\"other\""), "{text}");
}

#[test]
fn any_record_has_metrics() {
    for _ in 0..count(5_000, 500_000) {
        let all: Vec<_> = (0..random_range(0..5)).map(any_rank).collect();
        let text = text(&all, any_number(), &mut NameLabels::new());
        read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    }
}
