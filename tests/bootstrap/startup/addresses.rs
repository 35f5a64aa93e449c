//! Hosts with addresses that mislead: of IPv6 alone, of no use to others, or of a name that comes
//! late. All ranks meet and call.

use harness::hosts::{Host, Hosts};
use harness::processes::Process;

use super::*;

/// Two hosts, or a SKIP of this test.
fn hosts(test: &str) -> Option<Hosts> {
    let hosts = Hosts::new();
    hosts.inspect_err(|reason| harness::skip(&format!("startup::addresses::{test}"), reason)).ok()
}

/// Runs these commands on each host; `N` is the host's number.
fn do_all(hosts: &Hosts, lines: &[&str]) {
    for (host, number) in hosts.0.iter().zip(["1", "2"]) {
        lines.iter().for_each(|line| host.does(&line.replace('N', number)).unwrap());
    }
}

fn rank(rank: usize, store: &str) -> Command {
    let mut command = harness::process("startup::killed::rank");
    command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", "2");
    command.env("RINGREDUCE_STORE", store).env("RINGREDUCE_TIMEOUT", "60");
    command.env("RINGREDUCE_CACHE", "off");
    command
}

fn all_meet(ranks: [Process; 2]) {
    for rank in ranks {
        let lines = rank.succeeds("");
        assert!(lines.contains("met 2"), "{lines}");
    }
}

fn one_on_each(hosts: &Hosts, store: &str) {
    all_meet([0, 1].map(|number| Process::start(hosts.0[number].on(&rank(number, store)))));
}

#[test]
fn hosts_of_ipv6_alone_meet() {
    let _concurrent = concurrent();
    let Some(hosts) = hosts("hosts_of_ipv6_alone_meet") else { return };
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        return harness::skip("startup::addresses::hosts_of_ipv6_alone_meet", "no IPv6");
    }
    do_all(
        &hosts,
        &["ip address del 10.77.0.N/24 dev eth0", "ip address add fd77::N/64 dev eth0 nodad"],
    );
    one_on_each(&hosts, "[fd77::1]:2000");
    // Both on one host, at its loopback address.
    let on_first: &Host = &hosts.0[0];
    all_meet([0, 1].map(|number| Process::start(on_first.on(&rank(number, "[::1]:2001")))));
}

#[test]
fn ranks_give_the_address_by_which_they_have_reached_the_store() {
    let _concurrent = concurrent();
    let test = "ranks_give_the_address_by_which_they_have_reached_the_store";
    let Some(hosts) = hosts(test) else { return };
    // The first address of both hosts is the same one, as those of bridges often are.
    do_all(
        &hosts,
        &[
            "ip address del 10.77.0.N/24 dev eth0",
            "ip address add 10.99.0.1/32 dev eth0",
            "ip address add 10.77.0.N/24 dev eth0",
        ],
    );
    one_on_each(&hosts, "10.77.0.1:2000");
}

#[test]
fn a_name_that_comes_late_is_waited_for() {
    let _concurrent = concurrent();
    let Some(hosts) = hosts("a_name_that_comes_late_is_waited_for") else { return };
    let directory = tempfile::tempdir().unwrap();
    let names = directory.path().join("hosts");
    std::fs::write(&names, "127.0.0.1 localhost\n").unwrap();
    let start = |number: usize| {
        Process::start(hosts.0[number].with_names(&rank(number, "first:2000"), &names))
    };
    let mut ranks = [0, 1].map(start);
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.says(&format!("ringreduce: warning: rank {number} has waited")).unwrap();
        let line = rank.lines.last().unwrap();
        assert!(line.contains("the name first has no address on this host yet"), "{line}");
    }
    std::fs::write(&names, "10.77.0.1 first\n").unwrap();
    all_meet(ranks);
}
