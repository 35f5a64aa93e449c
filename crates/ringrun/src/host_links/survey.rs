//! The two jobs of a look at several hosts, and what comes of them.

use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ringreduce::codec::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::{self, EndedJob};
use super::report::{HostReport, LinkSpeed};
use super::{FLAG, HostList};
use crate::cli::environment::check_nesting;
use crate::cli::hosts::Host;
use crate::failure::Failure;

/// The time in which a host answers for itself, its remote shell included.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Seconds from SIGTERM to SIGKILL for ranks, which have nothing to save.
const KILL_AFTER_S: &str = "1";
/// Hosts that are asked at a time.
const AT_A_TIME: usize = 32;
/// The time for the job between hosts, and the more of it for each host.
const LINKS_LIMIT: Duration = Duration::from_secs(120);
const LINKS_LIMIT_PER_HOST: Duration = Duration::from_secs(1);

/// The findings of several hosts, and what they have reported of the ways between them.
pub(crate) struct Survey<T> {
    pub(crate) hosts: Vec<AskedHost<T>>,
    /// Reports with the hosts' numbers in `hosts`.
    pub(crate) reports: Vec<HostReport>,
    /// Why the job between the hosts failed; none if it did not, or was not started.
    pub(crate) failure: Option<String>,
}

pub(crate) struct AskedHost<T> {
    pub(crate) name: String,
    /// The host's own findings, or why there are none.
    pub(crate) answer: Result<T, String>,
}

/// A link of the ring, with the names of its hosts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NamedLink {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) latency_us: f64,
    pub(crate) gbit_per_s: f64,
}

impl NamedLink {
    /// "left to right: 21.3 us, 9.4 Gbit/s".
    pub(crate) fn text(&self) -> String {
        let Self { from, to, latency_us, gbit_per_s } = self;
        format!("{from} to {to}: {latency_us:.1} us, {gbit_per_s:.1} Gbit/s")
    }
}

impl<T> Survey<T> {
    /// The name of a host by its number; empty for a number that no host has.
    pub(crate) fn name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("", |host| &host.name)
    }

    /// The links that were measured, in the order of the ring.
    pub(crate) fn named_links(&self) -> Vec<NamedLink> {
        let links = self.reports.iter().filter_map(|report| match report {
            HostReport::Link(link) => Some(link),
            _ => None,
        });
        links.map(|link| self.named(link)).collect()
    }

    pub(crate) fn named(&self, link: &LinkSpeed) -> NamedLink {
        NamedLink {
            from: self.name(link.from).into(),
            to: self.name(link.to).into(),
            latency_us: link.latency_us,
            gbit_per_s: link.gbit_per_s,
        }
    }
}

/// Asks the hosts for their findings, by this ringrun here and by the command `ringrun WORDS` on
/// the other hosts, and looks at what is between them.
pub(crate) fn survey<T: DeserializeOwned + Send>(
    list: &HostList,
    hosts: &[Host],
    words: &[&str],
    here: impl FnOnce() -> T,
) -> Result<Survey<T>, Failure> {
    check_nesting(false)?;
    let program = std::env::current_exe().map_err(Failure::system("find this ringrun"))?;
    let options = |hosts: &str, command: &[&str]| {
        let own = ["-H", hosts, "--per-host", "1", "--stdin", "none", "--quiet"];
        let mut line: Vec<OsString> = own.map(OsString::from).into();
        line.extend(["--kill-after", KILL_AFTER_S].map(OsString::from));
        line.extend(list.reach.words());
        line.push(program.clone().into());
        line.extend(command.iter().map(OsString::from));
        line
    };
    let ask = |host: &Host| {
        let ended = child::run(&options(&host.with_count(1), words), ANSWER_LIMIT);
        ended.map_err(|cause| format!("cannot start ringrun: {cause}")).and_then(read_answer)
    };
    // Before the jobs of the other hosts, which are no other jobs of this user.
    let own = hosts.iter().any(|host| host.is_here).then(here);
    let others: Vec<_> = hosts.iter().filter(|host| !host.is_here).collect();
    let mut answers = in_parallel(&others, |host| ask(host)).into_iter();
    let mut own = own.into_iter();
    let missing = || Err("no answer".into());
    let hosts: Vec<(&Host, Result<T, String>)> = hosts
        .iter()
        .map(|host| match host.is_here {
            true => (host, own.next().map_or_else(missing, Ok)),
            false => (host, answers.next().unwrap_or_else(missing)),
        })
        .collect();
    let answered = hosts.iter().enumerate().filter(|(_, (_, answer))| answer.is_ok());
    let (numbers, names): (Vec<usize>, Vec<String>) =
        answered.map(|(number, (host, _))| (number, host.with_count(1))).unzip();
    let (mut reports, mut failure) = (vec![], None);
    if numbers.len() > 1 {
        let more = LINKS_LIMIT_PER_HOST * u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let ended = child::run(&options(&names.join(","), &[FLAG]), LINKS_LIMIT + more);
        let ended = ended.map_err(Failure::system("start a job on the hosts"))?;
        reports = read_reports(&ended.output, &numbers);
        failure = ended.failure().map(|failure| printable(&failure));
    }
    let asked = |(host, answer): (&Host, Result<T, String>)| AskedHost {
        name: printable(&host.name),
        answer: answer.map_err(|why| printable(&why)),
    };
    Ok(Survey { hosts: hosts.into_iter().map(asked).collect(), reports, failure })
}

/// The findings that a job has printed. A program that finds a problem exits with another status
/// than 0, so its output counts first.
fn read_answer<T: DeserializeOwned>(ended: EndedJob) -> Result<T, String> {
    let read = serde_json::from_str(&ended.output);
    read.map_err(|error| match ended.failure() {
        Some(failure) => failure,
        None => format!("its ringrun printed what this one can't read: {error}"),
    })
}

/// The reports among the lines of a job's output, which come in any order.
fn read_reports(output: &str, hosts: &[usize]) -> Vec<HostReport> {
    let reports = output.lines().filter_map(|line| serde_json::from_str::<HostReport>(line).ok());
    let mut reports: Vec<_> = reports.filter_map(|report| report.renumbered(hosts)).collect();
    reports.sort_by_key(HostReport::hosts);
    reports
}

/// Applies `function` to all items on some threads; the results are in the items' order.
fn in_parallel<I: Sync, O: Send>(items: &[I], function: impl Fn(&I) -> O + Sync) -> Vec<O> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        let take = || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            items.get(number).map(|item| (number, item))
        };
        while let Some((number, item)) = take() {
            let result = function(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..items.len().min(AT_A_TIME) {
            // With fewer threads it takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::{ClockSkew, HostReport};
    use super::*;

    #[test]
    fn results_are_in_the_order_of_their_items() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(in_parallel(&items, |item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[usize], |item| *item).is_empty());
    }

    #[test]
    fn reports_are_read_among_other_lines() {
        let skew = HostReport::Clock(ClockSkew { host: 1, ahead_ns: -7 });
        let line = serde_json::to_string(&skew).unwrap();
        let other = "{\"Clock\":{\"host\":9,\"ahead_ns\":0}}";
        let failed = "{\"Failed\":{\"host\":0,\"why\":\"a\"}}";
        let read = read_reports(&format!("a warning\n{line}\n{other}\n{failed}\n{{"), &[2, 4]);
        let skew = HostReport::Clock(ClockSkew { host: 4, ahead_ns: -7 });
        assert_eq!(read, [HostReport::Failed { host: 2, why: "a".into() }, skew]);
    }
}
