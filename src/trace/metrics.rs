//! The counters (metrics) of a communicator, and their text in the format of Prometheus.
//! Law: one thread at a time counts, so an increment is a load and a store.

use std::array::from_fn;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::operation::{self, KINDS};
use crate::error::Error;
use crate::error::communicator_name::escaped;

/// The kinds of errors with a counter of their own.
const ERRORS: [&str; 7] =
    ["aborted", "argument", "broken", "mismatch", "peer_lost", "stalled", "timeout"];
/// The label of all other errors, and of communicators beyond [`MAX_LABELS`].
const OTHER: &str = "other";
/// Names of communicators that are labels, in the life of a process. A program that makes ever new
/// names would fill the memory of the server that collects its metrics.
const MAX_LABELS: usize = 256;

/// The counters of one collective.
#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    bytes: AtomicU64,
    /// Bytes sent over links.
    sent: AtomicU64,
    waited: AtomicU64,
    errors: [AtomicU64; ERRORS.len() + 1],
}

/// The counters of one communicator, by collective.
#[derive(Debug)]
pub(super) struct Metrics([Counts; KINDS]);

impl Default for Metrics {
    fn default() -> Self {
        Self(from_fn(|_| Counts::default()))
    }
}

/// The names of communicators that are labels: the first ones of a process.
#[derive(Debug, Default)]
pub struct NameLabels(BTreeSet<String>);

impl NameLabels {
    /// Without any name yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// The name, if it is one of the first ones; "other" if not.
    pub fn label<'a>(&mut self, name: &'a str) -> &'a str {
        if self.0.contains(name) {
            return name;
        }
        if self.0.len() == MAX_LABELS {
            return OTHER;
        }
        self.0.insert(name.into());
        name
    }
}

/// The label of a communicator's name, after another one.
fn communicator_label(name: &str) -> String {
    static LABELS: Mutex<NameLabels> = Mutex::new(NameLabels::new());
    let mut labels = LABELS.lock().unwrap_or_else(PoisonError::into_inner);
    format!(",communicator=\"{}\"", escaped(labels.label(name)))
}

#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Metrics {
    #[inline]
    pub(super) fn done(&self, kind: usize, bytes: u64) {
        add(&self.0[kind].calls, 1);
        add(&self.0[kind].bytes, bytes);
    }

    #[inline]
    pub(super) fn add_sent(&self, kind: usize, bytes: u64) {
        add(&self.0[kind].sent, bytes);
    }

    pub(super) fn failed(&self, kind: usize, error: &Error) {
        let error = match error {
            Error::Aborted { .. } => 0,
            Error::Argument { .. } => 1,
            Error::Broken { .. } => 2,
            Error::Mismatch { .. } => 3,
            Error::PeerLost { .. } => 4,
            Error::Stalled { .. } => 5,
            Error::Timeout { .. } => 6,
            _ => ERRORS.len(),
        };
        add(&self.0[kind].calls, 1);
        add(&self.0[kind].errors[error], 1);
    }

    pub(super) fn add_wait(&self, kind: usize, time: Duration) {
        add(&self.0[kind].waited, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The text of the counters of all collectives that were called, of the communicator of this
    /// name if it has one. `messages` are the bytes that messages have sent.
    pub(super) fn text(&self, rank: usize, name: Option<&str>, messages: u64) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let called = || self.0.iter().enumerate().filter(|(_, counts)| read(&counts.calls) > 0);
        let is_used = messages > 0 || called().next().is_some();
        let named = name.filter(|_| is_used).map_or(String::new(), communicator_label);
        let mut text = String::new();
        let mut family = |name: &str, help: &str, lines: String| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{lines}");
        };
        let lines = |metric: &str, value: &dyn Fn(&Counts) -> String| {
            let line = |(kind, counts): (usize, &Counts)| {
                let collective = operation::name(kind);
                let value = value(counts);
                format!("{metric}{{collective=\"{collective}\"{named},rank=\"{rank}\"}} {value}\n")
            };
            called().map(line).collect::<String>()
        };
        let metric = "ringreduce_calls_total";
        family(metric, "Calls.", lines(metric, &|counts| read(&counts.calls).to_string()));
        let metric = "ringreduce_bytes_total";
        let help = "Bytes of the results of calls that succeeded.";
        family(metric, help, lines(metric, &|counts| read(&counts.bytes).to_string()));
        let metric = "ringreduce_sent_bytes_total";
        let help = "Bytes sent over links; calls in the memory of a host send none.";
        let mut sent = lines(metric, &|counts| read(&counts.sent).to_string());
        let _ =
            writeln!(sent, "{metric}{{collective=\"message\"{named},rank=\"{rank}\"}} {messages}");
        family(metric, help, sent);
        let metric = "ringreduce_wait_seconds_total";
        let seconds = |counts: &Counts| format!("{:.9}", read(&counts.waited) as f64 / 1e9);
        let help = "Seconds asleep for other ranks; waits that needed no sleep do not count.";
        family(metric, help, lines(metric, &seconds));
        let metric = "ringreduce_errors_total";
        let mut errors = String::new();
        for (kind, counts) in called() {
            let kinds = ERRORS.iter().chain([&OTHER]).zip(&counts.errors);
            for (error, count) in kinds.filter(|(_, count)| read(count) > 0) {
                let (collective, count) = (operation::name(kind), read(count));
                let _ = writeln!(
                    errors,
                    "{metric}{{collective=\"{collective}\"{named},kind=\"{error}\",\
                     rank=\"{rank}\"}} {count}"
                );
            }
        }
        family(metric, "Calls that failed.", errors);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_collectives_that_were_called_have_counters() {
        let metrics = Metrics::default();
        metrics.done(1, 8);
        metrics.done(1, 24);
        metrics.add_sent(1, 48);
        metrics.add_wait(1, Duration::from_millis(1500));
        let first = "timeout".to_string();
        metrics.failed(11, &Error::Broken { call: "barrier", first });
        let text = metrics.text(3, None, 7);
        for line in [
            "# TYPE ringreduce_calls_total counter",
            "ringreduce_calls_total{collective=\"all_reduce\",rank=\"3\"} 2",
            "ringreduce_calls_total{collective=\"barrier\",rank=\"3\"} 1",
            "ringreduce_bytes_total{collective=\"all_reduce\",rank=\"3\"} 32",
            "ringreduce_sent_bytes_total{collective=\"all_reduce\",rank=\"3\"} 48",
            "ringreduce_sent_bytes_total{collective=\"message\",rank=\"3\"} 7",
            "ringreduce_wait_seconds_total{collective=\"all_reduce\",rank=\"3\"} 1.500000000",
            "ringreduce_errors_total{collective=\"barrier\",kind=\"broken\",rank=\"3\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("broadcast") && text.ends_with('\n'), "{text}");
        assert!(!text.contains("communicator"), "{text}");
        let text = metrics.text(3, Some("a \"b\\"), 7);
        let name = "communicator=\"a \\\"b\\\\\"";
        for line in [
            format!("ringreduce_calls_total{{collective=\"barrier\",{name},rank=\"3\"}} 1"),
            format!("ringreduce_sent_bytes_total{{collective=\"message\",{name},rank=\"3\"}} 7"),
            format!(
                "ringreduce_errors_total{{collective=\"barrier\",{name},kind=\"broken\",\
                 rank=\"3\"}} 1"
            ),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        let unused = Metrics::default().text(3, Some("a"), 0);
        assert!(!unused.contains("communicator"), "{unused}");
    }

    #[test]
    fn names_beyond_the_limit_share_a_label() {
        let mut labels = NameLabels::default();
        for number in 0..MAX_LABELS {
            let name = number.to_string();
            assert_eq!(labels.label(&name), name);
        }
        assert_eq!([labels.label("256"), labels.label("7")], [OTHER, "7"]);
        assert_eq!(labels.0.len(), MAX_LABELS);
    }
}
