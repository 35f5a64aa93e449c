//! `ringrun doctor`: checks of this host for what ranks of a job need. Starts no process.
//! `limits`, `system`, `kernel_calls`, `network`, `settings` and `cuda` make the checks; each
//! judges values by a pure function, so that tests give it the contents of strange files.
//! Law: what cannot be read is unknown, not fine.

mod cuda;
mod kernel_calls;
mod limits;
mod network;
mod settings;
mod system;
mod table;

use std::path::Path;

use clap::Parser;
use ringreduce::codec::printable;
use serde::Serialize;

use crate::cli::hosts::here;
use crate::document::JsonOption;
use crate::failure::Failure;
use crate::status::command::jobs;
use crate::topo::sysfs::text;
use tools::count::several;

/// The number of the layout of the JSON document.
const FORMAT: u32 = 1;

/// Check what a job needs of this host: limits, system calls, network, settings and CUDA. Each
/// problem has a remedy.
///
/// A "note" says what works but could be better, and is no problem. What the system does not tell
/// is "unknown".
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
#[command(after_help = "Example: ringrun doctor --json -\n\n\
    Exit status: 0 if there is no problem, 1 if there is one, 2 if the command line is wrong\n\n\
    JSON: {format, host, checks: [{name, state: ok, note, unknown or problem, found, remedy: null \
    or a sentence}]}")]
pub(crate) struct Options {
    #[command(flatten)]
    json: JsonOption,
}

/// The findings of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Findings {
    format: u32,
    host: String,
    checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// The host works, and could do better.
    Note,
    /// The system does not tell.
    Unknown,
    Problem,
}

impl Check {
    fn new(name: &'static str, state: State, found: &str, remedy: Option<&str>) -> Self {
        Self { name, state, found: printable(found), remedy: remedy.map(printable) }
    }

    fn ok(name: &'static str, found: &str) -> Self {
        Self::new(name, State::Ok, found, None)
    }

    fn note(name: &'static str, found: &str, remedy: &str) -> Self {
        Self::new(name, State::Note, found, Some(remedy))
    }

    fn unknown(name: &'static str, found: &str) -> Self {
        Self::new(name, State::Unknown, found, None)
    }

    fn problem(name: &'static str, found: &str, remedy: &str) -> Self {
        Self::new(name, State::Problem, found, Some(remedy))
    }
}

impl Findings {
    fn of_this_host() -> Self {
        let host = here();
        let settings = settings::Settings::of_this_process();
        // Without this file, limits of control groups cannot be found.
        let knows_groups = text(Path::new("/proc/self/cgroup")).is_some();
        let mut checks = system::checks(knows_groups);
        checks.extend(limits::checks(knows_groups));
        checks.extend(kernel_calls::checks(&settings));
        checks.extend(network::checks(&host, &settings));
        checks.extend(settings.checks());
        checks.push(cuda::check(Path::new("/")));
        checks.push(other_jobs(jobs().ok()));
        Self { format: FORMAT, host: printable(&host), checks }
    }

    fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|check| check.state == state).count()
    }

    /// The sentence at the end of the table.
    fn summary(&self) -> String {
        let parts = [
            (State::Problem, "problem", "problems"),
            (State::Unknown, "unknown", "unknown"),
            (State::Note, "note", "notes"),
        ];
        let parts = parts.map(|(state, one, many)| (self.count(state), one, many));
        let parts = parts.into_iter().filter(|(count, ..)| *count > 0);
        let parts: Vec<_> = parts.map(|(count, one, many)| several(count, one, many)).collect();
        let parts = parts.join(", ");
        match self.count(State::Problem) {
            0 if parts.is_empty() => "no problem".into(),
            0 => format!("no problem, {parts}"),
            _ => parts,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let findings = Findings::of_this_host();
    let code = options.json.show(&findings, &table::text(&findings), "print the checks")?;
    Ok(if code == 0 { u8::from(findings.count(State::Problem) > 0) } else { code })
}

/// The jobs of this user that run here, which are `None` if the system does not list them.
fn other_jobs(jobs: Option<Vec<u32>>) -> Check {
    const NAME: &str = "jobs";
    match jobs.as_deref() {
        None => Check::unknown(NAME, "the system does not list them (/proc/net/unix)"),
        Some([]) => Check::ok(NAME, "no other job of yours runs here"),
        Some(jobs) => {
            let found = format!("ringrun {jobs:?} runs here and takes CPUs and memory");
            let remedy = "Measure speeds when they have ended; `ringrun status JOB` says how far \
                they are.";
            Check::note(NAME, &found, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_well_formed() {
        <Options as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_summary_counts_problems_first() {
        let findings = |checks: &[Check]| Findings {
            format: FORMAT,
            host: "a".into(),
            checks: checks.to_vec(),
        };
        let (ok, note) = (Check::ok("a", "b"), Check::note("a", "b", "c"));
        let problem = Check::problem("a", "b", "c");
        assert_eq!(findings(std::slice::from_ref(&ok)).summary(), "no problem");
        assert_eq!(findings(&[ok, note.clone()]).summary(), "no problem, 1 note");
        let all = [problem.clone(), problem, Check::unknown("a", "b"), note];
        assert_eq!(findings(&all).summary(), "2 problems, 1 unknown, 1 note");
    }

    #[test]
    fn text_of_others_cannot_change_the_terminal() {
        let check = Check::problem("a", "\u{1b}[2J", "a\nb");
        assert_eq!((check.found.as_str(), check.remedy.as_deref()), ("?[2J", Some("a?b")));
    }

    #[test]
    fn jobs_are_told() {
        assert_eq!(other_jobs(None).state, State::Unknown);
        assert_eq!(other_jobs(Some(vec![])).state, State::Ok);
        let two = other_jobs(Some(vec![7, 9]));
        assert!(two.state == State::Note && two.found.contains("[7, 9]"), "{two:?}");
    }
}
