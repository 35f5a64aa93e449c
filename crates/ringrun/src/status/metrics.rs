//! A job's status as metrics, in OpenMetrics' text format: a family of samples for each question,
//! with a sample for each rank.
//! Law: a sample whose value is known is not missing, it may be 0; and labels that change from call
//! to call are those of one family alone, so that the others are the same series at all times.

use std::fmt::{Display, Write};

use ringreduce::trace::{NameLabels, OperationRecord, State};

use super::wording::{communicator_name, is_running};
use super::{ProcessState, RankStatus, verdict};

const STATES: [&str; 3] = ["running", "stopped", "ended"];

/// The text so far.
struct Exposition(String);

/// The metrics of a job at the time `now`. `names` are the communicators that have had a label.
pub(super) fn text(ranks: &[RankStatus], now: u64, names: &mut NameLabels) -> String {
    let mut text = Exposition(String::new());
    text.family("ringreduce_launcher", "info", "The version of ringrun.");
    text.sample("ringreduce_launcher_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    states(&mut text, ranks);
    calls(&mut text, ranks);
    calls_under_way(&mut text, ranks, now, names);
    let cause = verdict::of(ranks, None, now);
    let name = "ringreduce_rank_awaited_seconds";
    let help = "How long others have waited for this rank, which is the first cause of their wait.";
    text.family(name, "gauge", help);
    for status in ranks {
        let blamed = cause.as_ref().filter(|cause| cause.ranks.contains(&status.rank));
        text.of_rank(name, status, seconds(blamed.map_or(0, |cause| cause.waited)));
    }
    text.0 + "# EOF\n"
}

/// The process of each rank.
fn states(text: &mut Exposition, ranks: &[RankStatus]) {
    let name = "ringreduce_rank_state";
    text.family(name, "gauge", "1 for the state that the rank's process is in, or else 0.");
    for status in ranks {
        let now = match status.state {
            ProcessState::Running => "running",
            ProcessState::Stopped => "stopped",
            ProcessState::Ended(_) => "ended",
        };
        let (rank, host) = (status.rank.to_string(), &status.host);
        for state in STATES {
            let labels = [("rank", rank.as_str()), ("host", host), ("state", state)];
            text.sample(name, &labels, u8::from(state == now));
        }
    }
    let help = "How often the rank was started again.";
    text.family("ringreduce_rank_restarts", "counter", help);
    for status in ranks {
        text.of_rank("ringreduce_rank_restarts_total", status, status.restarts);
    }
}

/// The calls of each rank so far, counted from 0 again when the rank is started again.
fn calls(text: &mut Exposition, ranks: &[RankStatus]) {
    let help = "Collectives and messages that the rank's process has begun.";
    text.family("ringreduce_rank_calls_begun", "counter", help);
    for status in recorded(ranks) {
        text.of_rank("ringreduce_rank_calls_begun_total", status, begun(status));
    }
    let help = "Collectives and messages of the rank's process that have ended, well or not.";
    text.family("ringreduce_rank_calls_finished", "counter", help);
    for status in recorded(ranks) {
        let running = operations(status).iter().filter(|op| is_running(op)).count();
        let finished = begun(status).saturating_sub(running as u64);
        text.of_rank("ringreduce_rank_calls_finished_total", status, finished);
    }
}

/// The call that each rank is in: of several, the one that began first.
fn calls_under_way(text: &mut Exposition, ranks: &[RankStatus], now: u64, names: &mut NameLabels) {
    let calls: Vec<_> = recorded(ranks).map(|status| (status, call_under_way(status))).collect();
    text.family("ringreduce_rank_call", "info", "The call that the rank is in, if any.");
    for (status, call) in &calls {
        let Some(op) = call else { continue };
        let (rank, name) = (status.rank.to_string(), communicator_name(status, op));
        let communicator = name.as_deref().map_or("", |name| names.label(name));
        let labels = [
            ("rank", rank.as_str()),
            ("host", &status.host),
            ("call", op.code.name()),
            ("communicator", communicator),
        ];
        text.sample("ringreduce_rank_call_info", &labels, 1);
    }
    let name = "ringreduce_rank_call_seconds";
    text.family(name, "gauge", "How long the rank has been in its call; 0 in none.");
    for (status, call) in &calls {
        let age = call.map_or(0, |op| now.saturating_sub(op.start));
        text.of_rank(name, status, seconds(age));
    }
    let name = "ringreduce_rank_call_bytes";
    text.family(name, "gauge", "Bytes of the result of the rank's call; 0 in none.");
    for (status, call) in &calls {
        text.of_rank(name, status, call.map_or(0, |op| op.bytes));
    }
    let name = "ringreduce_rank_call_step";
    text.family(name, "gauge", "The step of its schedule that the rank's call is at.");
    for (status, call) in &calls {
        if let Some(op) = call.filter(|op| op.state == State::AtStep) {
            text.of_rank(name, status, op.step);
        }
    }
}

/// The ranks whose calls are known: not those of a host that does not answer, nor those that record
/// their calls in another version's format. A count of 0 would look like a new process.
fn recorded(ranks: &[RankStatus]) -> impl Iterator<Item = &RankStatus> {
    ranks.iter().filter(|status| status.is_read && !status.other_format)
}

/// The last operations of a rank, none before it has joined.
fn operations(status: &RankStatus) -> &[OperationRecord] {
    status.record.as_ref().map_or(&[], |record| &record.ops)
}

fn begun(status: &RankStatus) -> u64 {
    operations(status).last().map_or(0, |op| op.number)
}

/// The first to begin of the calls that the rank's process is in.
fn call_under_way(status: &RankStatus) -> Option<&OperationRecord> {
    let lives = !matches!(status.state, ProcessState::Ended(_));
    operations(status).iter().find(|op| lives && is_running(op))
}

fn seconds(nanos: u64) -> String {
    format!("{:.3}", nanos as f64 / 1e9)
}

impl Exposition {
    /// Begins a family of samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            let _ = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {name} {help}");
    }

    /// A sample of the family. A label without a text is left out.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0 += name;
        let labels = labels.iter().filter(|(_, text)| !text.is_empty());
        for (at, (label, text)) in labels.enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "}} {value}");
    }

    /// A sample of a rank.
    fn of_rank(&mut self, name: &str, status: &RankStatus, value: impl Display) {
        self.sample(name, &[("rank", &status.rank.to_string()), ("host", &status.host)], value);
    }
}

#[cfg(test)]
mod tests;
