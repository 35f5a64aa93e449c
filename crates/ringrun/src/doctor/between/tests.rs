//! Verdicts from reports of hosts that need not exist.

use super::super::State::{Note, Ok as Fine, Problem, Unknown};
use super::*;
use crate::host_links::AskedHost;
use crate::host_links::report::LinkSpeed;

/// Hosts `a`, `b` and so on, with these fingerprints of their secret; `Err` does not answer.
pub(super) fn survey(
    answers: &[Result<Option<&str>, &str>],
    reports: Vec<HostReport>,
) -> Survey<Findings> {
    let host = |(name, answer): (char, &Result<Option<&str>, &str>)| AskedHost {
        name: name.into(),
        answer: answer.map_err(str::to_owned).map(|secret| Findings {
            format: 1,
            host: "x".into(),
            checks: vec![],
            secret: secret.map(str::to_owned),
        }),
    };
    let hosts = ('a'..).zip(answers).map(host).collect();
    Survey { hosts, reports, failure: None }
}

fn link(from: usize, to: usize, gbit_per_s: f64) -> HostReport {
    HostReport::Link(LinkSpeed { from, to, latency_us: 20.0, gbit_per_s })
}

pub(super) const TWO: [Result<Option<&str>, &str>; 2] = [Ok(None), Ok(None)];

#[test]
fn a_host_without_an_answer_is_a_problem_with_its_reason() {
    let checks = checks(&survey(&[Ok(None), Err("ssh ended")], vec![]), None);
    let [check] = &checks[..] else { panic!("{checks:?}") };
    assert_eq!((check.state, check.found.as_str()), (Problem, "b: ssh ended"));
}

#[test]
fn each_host_has_the_addresses_that_its_ranks_give() {
    let listens = |host, address: &str, interface: Option<&str>| {
        let (address, interface) = (address.parse().unwrap(), interface.map(str::to_owned));
        HostReport::Listens(ListenAddress { host, address, interface })
    };
    let reports = vec![
        listens(0, "192.0.2.1:7", Some("eth0")),
        listens(0, "[fd00::1]:7", None),
        listens(1, "192.0.2.2:9", Some("eth1")),
    ];
    let found = addresses(&survey(&TWO, reports)).unwrap().found;
    assert_eq!(found, "a 192.0.2.1 (eth0) and fd00::1, b 192.0.2.2 (eth1)");
    assert!(addresses(&survey(&TWO, vec![])).is_none());
}

#[test]
fn clocks_may_differ_by_less_than_a_second() {
    let state = |ahead_ns| {
        let skew = ClockSkew { host: 1, ahead_ns };
        let mut checks = clocks(&survey(&TWO, vec![HostReport::Clock(skew)]));
        checks.remove(0)
    };
    assert_eq!([state(0).state, state(999_999_999).state], [Fine, Fine]);
    let ahead = state(1_500_000_000);
    assert_eq!((ahead.state, ahead.found.as_str()), (Note, "b is 1.5 s ahead of a"));
    assert_eq!(state(-60_000_000_000).found, "b is 60.0 s behind a");
}

#[test]
fn a_link_that_is_much_slower_than_others_is_told() {
    let three = [Ok(None); 3];
    let checks = links(&survey(&three, vec![link(0, 1, 90.0), link(1, 2, 9.0), link(2, 0, 88.0)]));
    assert_eq!((checks.len(), checks[0].state), (2, Note));
    assert!(checks[0].found.starts_with("b to c: "), "{checks:?}");
    assert_eq!(links(&survey(&TWO, vec![link(0, 1, 9.0), link(1, 0, 9.0)]))[0].state, Fine);
    assert_eq!(links(&survey(&TWO, vec![]))[0].state, Unknown);
}

#[test]
fn hosts_must_have_one_secret() {
    let of = |own, secrets: &[Option<&str>]| {
        let answers: Vec<_> = secrets.iter().map(|secret| Ok(*secret)).collect();
        secret(&survey(&answers, vec![]), own).map(|check| (check.state, check.found))
    };
    let problem = |found: &str| Some((Problem, found.into()));
    assert_eq!(of(None, &[None, None]), None);
    assert_eq!(of(Some("1"), &[Some("1")]), None);
    let same = "the file of RINGREDUCE_SECRET_FILE is the same on all hosts";
    assert_eq!(of(Some("1"), &[Some("1"), Some("1")]), Some((Fine, same.into())));
    // This host has the secret that counts, whether it is among the hosts or not.
    let a = problem("a: no secret, or another one than on this host");
    assert_eq!(of(Some("2"), &[Some("1"), Some("2")]), a);
    assert_eq!(of(Some("2"), &[None, Some("2")]), a);
    assert_eq!(of(Some("2"), &[Some("1")]), a);
    let both = problem("a, b: no secret, or another one than on this host");
    assert_eq!(of(Some("2"), &[Some("1"), Some("1")]), both);
    assert_eq!(of(None, &[Some("1"), None]), problem("a: a secret, which this host does not have"));
}

#[test]
fn what_ranks_could_not_do_is_a_problem() {
    let failed = HostReport::Failed { host: 1, why: "timed out".into() };
    let mut survey = survey(&TWO, vec![failed]);
    survey.failure = Some("host b was lost".into());
    let found: Vec<_> = failures(&survey).into_iter().map(|check| check.found).collect();
    assert_eq!(found, ["b: timed out", "host b was lost"]);
}

#[test]
fn a_row_names_some_hosts() {
    assert_eq!(some(&["a", "b"]), "a, b");
    assert_eq!(some(&["a"; 7]), "a, a, a, a and 3 more");
}
