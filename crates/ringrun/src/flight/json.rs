//! Records as JSON. Pure: text.

use ringreduce::trace::{Op, State};
use serde::Serialize;

use super::{Life, Seen, words};
use crate::job::End;
use crate::signals;

/// The layout of the document; another layout gets another number.
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
    /// The last one.
    call: Option<Call>,
}

#[derive(Serialize)]
struct Call {
    collective: &'static str,
    number: u64,
    is_message: bool,
    uneven: bool,
    count: u64,
    #[serde(rename = "type")]
    dtype: Option<&'static str>,
    op: Option<&'static str>,
    root: Option<u64>,
    state: &'static str,
    /// Since it began, or since it ended.
    seconds: f64,
    step: u64,
    toward: Option<Toward>,
}

#[derive(Serialize)]
struct Toward {
    how: &'static str,
    /// Of the call's communicator.
    rank: u64,
}

/// A job in one line.
pub(super) fn line(summary: &str, seen: &[Seen], now: u64) -> String {
    let ranks = seen.iter().map(|one| rank(one, now)).collect();
    let job = Job { format: FORMAT, summary, ranks };
    // Numbers and texts alone: there is nothing that JSON has no form for.
    serde_json::to_string(&job).unwrap_or_default()
}

fn rank(seen: &Seen, now: u64) -> Rank<'_> {
    let (state, exit_status, signal) = match seen.life {
        Life::Running => ("running", None, None),
        Life::Stopped => ("stopped", None, None),
        Life::Ended(End::Exited(status)) => ("ended", Some(status), None),
        Life::Ended(End::Killed { signal, .. }) => ("ended", None, Some(signals::name(signal))),
    };
    let Seen { rank, ref host, pid, .. } = *seen;
    let call = words::last(seen).map(|op| call(op, now));
    Rank { rank, host, pid, state, exit_status, signal, call }
}

fn call(op: &Op, now: u64) -> Call {
    let (state, since) = match op.state {
        State::Entered => ("entered", op.start),
        State::AtStep => ("at_step", op.start),
        State::Done => ("done", op.end),
        State::Failed => ("failed", op.end),
    };
    Call {
        collective: op.what.name(),
        number: op.sequence,
        is_message: op.is_message,
        uneven: op.what.is_uneven(),
        count: op.count,
        dtype: op.what.dtype(),
        op: op.what.op(),
        root: op.what.root(),
        state,
        seconds: now.saturating_sub(since) as f64 / 1e9,
        step: op.step,
        toward: op.toward.map(|(how, rank)| Toward { how, rank }),
    }
}
