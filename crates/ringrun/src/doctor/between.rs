//! Checks of what is between hosts. Pure: they judge what the hosts have reported.

mod ports;

use std::collections::BTreeMap;

use super::{Check, Findings};
use crate::host_links::report::{ClockSkew, HostReport, ListenAddress};
use crate::host_links::{AskedHost, Survey};
use ringreduce::config::variables::SECRET_FILE;

/// The most hosts that a row names.
pub(super) const MAX_NAMED: usize = 4;
/// Clocks that differ by less do not confuse who compares times in logs of hosts.
const MAX_SKEW_S: f64 = 1.0;
/// A link whose speed is below this part of the median is told.
const SLOW_PART: f64 = 0.5;

/// The checks, made by a host with this fingerprint of its secret file.
pub(super) fn checks(survey: &Survey<Findings>, own_secret: Option<&str>) -> Vec<Check> {
    let mut checks = unanswered(survey);
    let answered = survey.hosts.iter().filter(|host| host.answer.is_ok()).count();
    if answered > 1 {
        checks.extend(addresses(survey));
        checks.extend(ports::checks(survey, answered));
        checks.extend(clocks(survey));
        checks.extend(links(survey));
        checks.extend(failures(survey));
    }
    checks.extend(secret(survey, own_secret));
    checks
}

/// Hosts without an answer, each with the reason.
fn unanswered(survey: &Survey<Findings>) -> Vec<Check> {
    let check = |host: &AskedHost<Findings>| {
        let error = host.answer.as_ref().err()?;
        let remedy = "Mend that, or leave the host out. The other hosts are checked all the same.";
        Some(Check::problem("host", &format!("{}: {error}", host.name), remedy))
    };
    survey.hosts.iter().filter_map(check).collect()
}

/// The addresses that ranks of each host give to those of others.
fn addresses(survey: &Survey<Findings>) -> Option<Check> {
    let listeners = survey.reports.iter().filter_map(|report| match report {
        HostReport::Listens(listener) => Some(listener),
        _ => None,
    });
    let shown = |ListenAddress { address, interface, .. }: &ListenAddress| {
        let interface = interface.as_deref().map_or(String::new(), |name| format!(" ({name})"));
        format!("{}{interface}", address.ip())
    };
    let mut hosts: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for listener in listeners {
        hosts.entry(listener.host).or_default().push(shown(listener));
    }
    let of_host = |(host, all): (&usize, &Vec<String>)| {
        format!("{} {}", survey.name(*host), all.join(" and "))
    };
    let all: Vec<_> = hosts.iter().map(of_host).collect();
    (!all.is_empty()).then(|| Check::ok("addresses", &all.join(", ")))
}

/// Clocks that differ by more than the time that the comparison took.
fn clocks(survey: &Survey<Findings>) -> Vec<Check> {
    const NAME: &str = "clocks";
    let skews: Vec<&ClockSkew> = survey
        .reports
        .iter()
        .filter_map(|report| match report {
            HostReport::Clock(skew) => Some(skew),
            _ => None,
        })
        .collect();
    let first = survey.hosts.iter().find(|host| host.answer.is_ok());
    let first = first.map_or("", |host| &host.name);
    let seconds = |skew: &ClockSkew| skew.ahead_ns as f64 / 1e9;
    let wrong = skews.iter().filter(|skew| seconds(skew).abs() >= MAX_SKEW_S).map(|skew| {
        let side = if skew.ahead_ns > 0 { "ahead of" } else { "behind" };
        let (host, by) = (survey.name(skew.host), seconds(skew).abs());
        let found = format!("{host} is {by:.1} s {side} {first}");
        let remedy = "Let both hosts take their time from one source (chronyd, ntpd), so that \
            times in logs can be compared.";
        Check::note(NAME, &found, remedy)
    });
    let mut checks: Vec<_> = wrong.collect();
    if checks.is_empty() && !skews.is_empty() {
        checks.push(Check::ok(NAME, &format!("less than {MAX_SKEW_S} s from that of {first}")));
    }
    checks
}

/// The links of the ring, of which one that is much slower than the others is told.
fn links(survey: &Survey<Findings>) -> Vec<Check> {
    const NAME: &str = "links";
    let links = survey.named_links();
    if links.is_empty() {
        return vec![Check::unknown(NAME, "not measured: see the problems")];
    }
    let mut speeds: Vec<f64> = links.iter().map(|link| link.gbit_per_s).collect();
    speeds.sort_by(f64::total_cmp);
    let median = speeds[speeds.len() / 2];
    let (mut slow, mut others) = (vec![], vec![]);
    for link in &links {
        if link.gbit_per_s < median * SLOW_PART {
            let found = format!("{}, where half of the links have {median:.1}", link.text());
            let remedy = "Compare the interfaces (`ringrun topo -H`), their cables and the other \
                traffic: a ring is as fast as its slowest link.";
            slow.push(Check::note(NAME, &found, remedy));
        } else {
            others.push(link.text());
        }
    }
    slow.extend(others.chunks(MAX_NAMED).map(|some| Check::ok(NAME, &some.join("; "))));
    slow
}

/// The failures of the job between the hosts.
fn failures(survey: &Survey<Findings>) -> Vec<Check> {
    const NAME: &str = "messages";
    let failed = survey.reports.iter().filter_map(|report| match report {
        HostReport::Failed { host, why } => Some(format!("{}: {why}", survey.name(*host))),
        _ => None,
    });
    let remedy = "Mend the other problems first, and what this message names. If ports are open \
        and messages are lost, the MTU of hosts and switches may differ.";
    let failed = failed.chain(survey.failure.clone());
    failed.map(|found| Check::problem(NAME, &found, remedy)).collect()
}

/// Whether the secret file of all hosts is that of this host, whose jobs they join, even where this
/// host is none of them. Each host checks itself whether its file is private.
fn secret(survey: &Survey<Findings>, own: Option<&str>) -> Option<Check> {
    const NAME: &str = "secret";
    let of = |host: &AskedHost<Findings>| {
        Some((host.name.clone(), host.answer.as_ref().ok()?.secret.clone()))
    };
    let all: Vec<(String, Option<String>)> = survey.hosts.iter().filter_map(of).collect();
    let other = all.iter().filter(|(_, secret)| secret.as_deref() != own);
    let other: Vec<&str> = other.map(|(name, _)| name.as_str()).collect();
    let found = match own {
        Some(_) if other.is_empty() && all.len() > 1 => {
            let found = format!("the file of {SECRET_FILE} is the same on all hosts");
            return Some(Check::ok(NAME, &found));
        }
        _ if other.is_empty() => return None,
        Some(_) => format!("{}: no secret, or another one than on this host", some(&other)),
        None => format!("{}: a secret, which this host does not have", some(&other)),
    };
    let remedy = format!("Copy the file that {SECRET_FILE} names from one host to all (scp -p).");
    Some(Check::problem(NAME, &found, &remedy))
}

/// "a, b, c, d and 3 more".
pub(super) fn some(names: &[&str]) -> String {
    let shown = names[..names.len().min(MAX_NAMED)].join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
