//! `ringrun doctor`: checks of this host, or of several, for what ranks of a job need. Without a
//! list of hosts it starts no process. `limits`, `system`, `kernel_calls`, `network`, `settings`
//! and `cuda` make the checks; each judges values by a pure function, so that tests give it the
//! contents of strange files. `hosts` puts the checks of several hosts together, and `between`
//! judges what is between them.
//! Law: what cannot be read is unknown, not fine.

mod between;
mod cuda;
mod hosts;
mod kernel_calls;
mod limits;
mod network;
mod settings;
mod system;
mod table;

use std::borrow::Cow;
use std::path::Path;

use clap::Parser;
use ringreduce::codec::printable;
use serde::{Deserialize, Serialize};

use crate::cli::environment::Variables;
use crate::cli::hosts::here;
use crate::document::JsonOption;
use crate::failure::Failure;
use crate::host_links::HostList;
use crate::status::command::jobs;
use crate::topo::sysfs::text;

/// The number of the layout of the JSON document.
const FORMAT: u32 = 1;

/// Check what a job needs of this host: limits, system calls, network, settings and CUDA. Each
/// problem has a remedy.
///
/// A "note" says what works but could be better, and is no problem. What the system does not tell
/// is "unknown".
///
/// With -H or --hostfile it checks these hosts, and what is between them: clocks, the ports in both
/// directions, the speed of the links of the ring, and the secret.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
#[command(after_help = "Examples:\n  ringrun doctor --json -\n  \
    ringrun doctor -H node1,node2\n\n\
    Exit status: 0 if there is no problem, 1 if there is one, 2 if the command line is wrong\n\n\
    JSON: {format, host, checks: [{name, state: ok, note, unknown or problem, found, remedy: null \
    or a sentence}], secret: null or the fingerprint of the secret file}\n\n\
    JSON of hosts: {format, hosts: [{host, error: null or why it does not answer, checks}], \
    between: checks, links: [{from, to, latency_us, gbit_per_s}]}")]
pub(crate) struct Options {
    #[command(flatten)]
    json: JsonOption,
    #[command(flatten)]
    hosts: HostList,
}

/// The findings of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Findings {
    format: u32,
    host: String,
    checks: Vec<Check>,
    /// The fingerprint of the secret file that `RINGREDUCE_SECRET_FILE` names.
    secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Check {
    name: Cow<'static, str>,
    state: State,
    found: String,
    remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        Self { name: name.into(), state, found: printable(found), remedy: remedy.map(printable) }
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
    /// The checks of this host, for ranks that have these variables besides those of this process.
    fn of_this_host(variables: Variables) -> Self {
        let host = here();
        let settings = settings::Settings::of_ranks(variables);
        // Without this file, limits of control groups cannot be found.
        let knows_groups = text(Path::new("/proc/self/cgroup")).is_some();
        let mut checks = system::checks(knows_groups);
        checks.extend(limits::checks(knows_groups));
        checks.extend(kernel_calls::checks(&settings));
        checks.extend(network::checks(&host, &settings));
        checks.extend(settings.checks());
        checks.push(cuda::check(Path::new("/")));
        checks.push(other_jobs(jobs().ok()));
        let secret = settings.secret_fingerprint();
        Self { format: FORMAT, host: printable(&host), checks, secret }
    }
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    const DOING: &str = "print the checks";
    let variables = options.hosts.variables();
    let (code, has_problem) = if let Some(list) = options.hosts.hosts("doctor")? {
        let findings = hosts::look(&options.hosts, &list, variables)?;
        (options.json.show(&findings, &findings.text(), DOING)?, findings.has_problem())
    } else {
        let findings = Findings::of_this_host(variables);
        let has_problem = findings.checks.iter().any(|check| check.state == State::Problem);
        (options.json.show(&findings, &table::text(&findings), DOING)?, has_problem)
    };
    Ok(if code == 0 { u8::from(has_problem) } else { code })
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
