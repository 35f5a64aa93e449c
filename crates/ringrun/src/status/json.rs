//! A job's status as JSON.

use ringreduce::trace::{OperationRecord, State};
use serde::Serialize;

use super::{ProcessState, RankStatus, wording};
use crate::launch::rank_end::RankEnd;
use crate::launch::signals;

/// The number of the document's layout.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Job<'a> {
    format: u32,
    summary: &'a str,
    ranks: Vec<Rank<'a>>,
}

#[derive(Serialize)]
struct Rank<'a> {
    rank: usize,
    host: &'a str,
    pid: u64,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    call: Option<Call>,
}

#[derive(Serialize)]
pub(super) struct Call {
    collective: &'static str,
    /// The communicator's name, if it has one.
    communicator: Option<String>,
    number: u64,
    is_message: bool,
    uneven: bool,
    count: u64,
    #[serde(rename = "type")]
    dtype: Option<&'static str>,
    op: Option<&'static str>,
    root: Option<u64>,
    state: &'static str,
    /// Seconds since the call began, or since it ended.
    seconds: f64,
    step: u64,
    toward: Option<Toward>,
}

#[derive(Serialize)]
struct Toward {
    how: &'static str,
    /// The rank in the call's communicator.
    rank: u64,
}

pub(super) fn line(summary: &str, status: &[RankStatus], now: u64) -> String {
    let ranks = status.iter().map(|one| rank(one, now)).collect();
    let job = Job { format: FORMAT, summary, ranks };
    // Numbers and texts always have a form in JSON.
    serde_json::to_string(&job).unwrap_or_default()
}

fn rank(status: &RankStatus, now: u64) -> Rank<'_> {
    let (state, exit_status, signal) = match status.state {
        ProcessState::Running => ("running", None, None),
        ProcessState::Stopped => ("stopped", None, None),
        ProcessState::Ended(RankEnd::Exited(status)) => ("ended", Some(status), None),
        ProcessState::Ended(RankEnd::Killed { signal, .. }) => {
            ("ended", None, Some(signals::name(signal)))
        }
    };
    let RankStatus { rank, ref host, pid, .. } = *status;
    let call = wording::last_op(status).map(|op| call(status, op, now));
    Rank { rank, host, pid, state, exit_status, signal, call }
}

pub(super) fn call(status: &RankStatus, op: &OperationRecord, now: u64) -> Call {
    let (state, since) = match op.state {
        State::Entered => ("entered", op.start),
        State::AtStep => ("at_step", op.start),
        State::Done => ("done", op.end),
        State::Failed => ("failed", op.end),
    };
    Call {
        collective: op.code.name(),
        communicator: wording::communicator_name(status, op),
        number: op.sequence,
        is_message: op.is_message,
        uneven: op.code.is_uneven(),
        count: op.count,
        dtype: op.code.dtype(),
        op: op.code.op(),
        root: op.code.root(),
        state,
        seconds: now.saturating_sub(since) as f64 / 1e9,
        step: op.step,
        toward: op.waits_for.map(|(how, rank)| Toward { how, rank }),
    }
}
