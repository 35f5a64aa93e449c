//! `ringrun doctor -H` and `ringrun topo -H`: healthy hosts, and each thing that is wrong between
//! them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::harness::cluster::{Cluster, SSH};
use serde_json::Value;

use super::{Running, cluster};
use crate::harness::{Ended, Process, RINGRUN, until};
use crate::job::Job;

/// A look at hosts has ended within this, whatever is wrong.
const BOUNDED: Duration = Duration::from_secs(120);

/// `ringrun SUBCOMMAND --rsh SSH WORDS` on h0; words are separated by spaces.
fn start<'a>(cluster: &'a Cluster, line: &str, change: impl FnOnce(&mut Command)) -> Running<'a> {
    let job = Job::new();
    let mut command = job.command(RINGRUN);
    let (subcommand, words) = line.split_once(' ').unwrap();
    command.args([subcommand, "--rsh", SSH]).args(words.split(' '));
    command.env_remove("RINGREDUCE_INSECURE");
    change(&mut command);
    Running { process: Process::start_on(&cluster.hosts[0], &command, Stdio::null()), job, cluster }
}

/// Runs it to its end. Nothing of it is left on any host.
fn look(cluster: &Cluster, line: &str) -> Ended {
    start(cluster, line, |_| ()).finish_within(BOUNDED)
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The findings of all checks between hosts that are a problem.
fn problems(ended: &Ended) -> Vec<String> {
    let json = json(ended);
    let between = json["between"].as_array().unwrap().iter();
    let problems = between.filter(|check| check["state"] == "problem");
    let found = problems.map(|check| {
        assert!(check["remedy"].is_string(), "{check}");
        format!("{}: {}", check["name"].as_str().unwrap(), check["found"].as_str().unwrap())
    });
    found.collect()
}

/// Closes or opens a host's ports 20000 to 20009 for what comes over its cable.
pub(super) fn close_ports(cluster: &Cluster, host: usize) {
    for line in [
        "ip rule add pref 100 lookup local",
        "ip rule add pref 50 iif eth0 ipproto tcp dport 20000-20009 blackhole",
        "ip rule del pref 0",
    ] {
        cluster.hosts[host].does(line).unwrap();
    }
}

#[test]
fn healthy_hosts_have_no_problem() {
    let Some(cluster) = cluster("checks::healthy_hosts_have_no_problem", 3) else { return };
    let ended = look(&cluster, "doctor -H h0,h1,h2");
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{}", ended.out);
    for part in [
        "# 3 hosts: h0, h1, h2\n",
        "  all ",
        "h0 10.77.0.1 (eth0), h1 10.77.0.2 (eth0), h2 10.77.0.3 (eth0)",
        "each of 3 hosts reaches each other one",
        "h2 to h0: ",
        "\n# no problem",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
    // From a host file, on a host that is none of those in it.
    fs::write(cluster.hosts[0].path("/run/hosts"), "h2 slots=2\nh1 slots=4\n").unwrap();
    let ended = look(&cluster, "doctor --hostfile /run/hosts --json -");
    let json = json(&ended);
    assert_eq!((ended.code, json["hosts"][0]["host"].as_str()), (0, Some("h2")), "{json}");
    assert!(json["hosts"][1]["checks"].as_array().unwrap().len() > 15, "{json}");
    let links = json["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "{json}");
    assert!(links.iter().all(|link| link["latency_us"].as_f64().unwrap() > 0.0), "{json}");
}

#[test]
fn a_port_that_is_closed_one_way_is_named_with_its_direction() {
    const TEST: &str = "checks::a_port_that_is_closed_one_way_is_named_with_its_direction";
    let Some(cluster) = cluster(TEST, 2) else { return };
    close_ports(&cluster, 1);
    let ended = look(&cluster, "doctor -H h0,h1 --port-range 20000-20009 --json -");
    assert_eq!((ended.code, &ended.err[..]), (1, ""), "{}", ended.out);
    let expected = "ports: h0 does not reach h1 at 10.77.0.2:20000: no answer within 3 s; \
        h1 reaches h0";
    assert_eq!(problems(&ended), [expected]);
    let other = look(&cluster, "doctor -H h0,h1 --port-range 20010-20019 --json -");
    assert_eq!((other.code, problems(&other).len()), (0, 0), "{}", other.out);
    let topo = look(&cluster, "topo -H h0,h1 --port-range 20000-20009");
    let link = "  h0 to h1: not reached at 10.77.0.2:20000, no answer within 3 s";
    assert!(topo.code == 0 && topo.out.contains(link), "{}", topo.out);
}

#[test]
fn an_address_that_is_closed_is_a_note_if_another_one_is_open() {
    const TEST: &str = "checks::an_address_that_is_closed_is_a_note_if_another_one_is_open";
    let Some(cluster) = cluster(TEST, 2) else { return };
    cluster.add_cable();
    close_ports(&cluster, 0);
    let line = "-H h0,h1 --port-range 20000-20009";
    let ended = look(&cluster, &format!("doctor {line}"));
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{}", ended.out);
    for part in [
        "h0 10.77.0.1 (eth0) and 10.78.0.1 (eth1), h1 10.77.0.2 (eth0) and 10.78.0.2 (eth1)",
        "each of 2 hosts reaches each other one",
        "h1 reaches h0 at 10.78.0.1, but not at 10.77.0.1:20001: no answer within 3 s",
        "> Ranks take an address that works",
        // The communicator finds the way too, in both directions.
        "h0 to h1: ",
        "h1 to h0: ",
        "\n# no problem, ",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
    let rule = "ip rule add pref 50 iif eth1 ipproto tcp dport 20000-20009 blackhole";
    cluster.hosts[0].does(rule).unwrap();
    let ended = look(&cluster, &format!("doctor {line} --json -"));
    // The launcher has the first port.
    let both = ["10.77.0.1:20001", "10.78.0.1:20001"];
    let no_answer = "no answer within 3 s";
    let expected = format!(
        "ports: h1 does not reach h0 at {}: {no_answer}, nor at {}: {no_answer}; h0 reaches h1",
        both[0], both[1]
    );
    assert_eq!((ended.code, problems(&ended)), (1, vec![expected]), "{}", ended.out);
    let topo = look(&cluster, &format!("topo {line}"));
    let link = format!(
        "  h1 to h0: not reached at {}, {no_answer}, nor at {}, {no_answer}",
        both[0], both[1]
    );
    assert!(topo.code == 0 && topo.out.contains(&link), "{}", topo.out);
}

#[test]
fn a_host_that_does_not_answer_is_a_row_and_the_others_are_checked() {
    const TEST: &str = "checks::a_host_that_does_not_answer_is_a_row_and_the_others_are_checked";
    let Some(cluster) = cluster(TEST, 3) else { return };
    cluster.stop_sshd(1);
    let ended = look(&cluster, "doctor -H h0,h1,h2 --json -");
    assert_eq!(ended.code, 1, "{}", ended.out);
    let found = problems(&ended);
    assert!(found.len() == 1 && found[0].starts_with("host: h1: cannot start ranks"), "{found:?}");
    let json = json(&ended);
    assert!(json["hosts"][1]["error"].as_str().unwrap().contains("ssh"), "{json}");
    assert_eq!(json["links"].as_array().unwrap().len(), 2, "{json}");
    let topo = look(&cluster, "topo -H h0,h1,h2");
    assert!(topo.code == 1 && topo.out.contains("\nhost h1: cannot start ranks"), "{}", topo.out);
    assert!(topo.out.contains("\n  h2 to h0: "), "{}", topo.out);
}

#[test]
fn hosts_with_different_or_public_secrets_are_a_problem() {
    const TEST: &str = "checks::hosts_with_different_or_public_secrets_are_a_problem";
    let Some(cluster) = cluster(TEST, 2) else { return };
    let write = |host: usize, byte: u8, mode| {
        let file = cluster.hosts[host].path("/run/secret");
        fs::write(&file, [byte; 32]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    };
    let check_hosts = |hosts: &str| {
        let set = |command: &mut Command| _ = command.env("RINGREDUCE_SECRET_FILE", "/run/secret");
        start(&cluster, &format!("doctor -H {hosts} --json -"), set).finish_within(BOUNDED)
    };
    let check = || check_hosts("h0,h1");
    write(0, 1, 0o600);
    write(1, 1, 0o600);
    let same = check();
    assert!(same.code == 0 && same.out.contains("is the same on all hosts"), "{}", same.out);
    // The secret itself is told nowhere.
    assert!(!same.out.contains("0101010101"), "{}", same.out);
    write(1, 2, 0o600);
    let differs = check();
    let found = problems(&differs);
    assert_eq!(differs.code, 1);
    let expected = "secret: h1: no secret, or another one than on this host";
    assert!(found.iter().any(|it| it == expected), "{found:?}");
    // Nor is the secret of this host that of the others if this host is none of those named.
    let found = problems(&check_hosts("h1"));
    assert!(found.iter().any(|it| it == expected), "{found:?}");
    write(1, 1, 0o644);
    let public = check();
    let json = json(&public);
    let checks = json["hosts"][1]["checks"].as_array().unwrap();
    let secret = checks.iter().find(|check| check["name"] == "secret").unwrap();
    assert_eq!((public.code, &secret["state"]), (1, &"problem".into()), "{secret}");
}

#[test]
fn the_ring_over_hosts_is_shown_with_its_speeds() {
    let Some(cluster) = cluster("checks::the_ring_over_hosts_is_shown_with_its_speeds", 2) else {
        return;
    };
    let ended = look(&cluster, "topo -H h1,h0 --svg /run/hosts.svg --json /run/hosts.json");
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{}", ended.out);
    let ring = ended.out.split_once("\nring over hosts").unwrap().1;
    let at = |part: &str| ring.find(part).unwrap_or_else(|| panic!("{part}: {ring}"));
    assert!(at("\n  h1 to h0: ") < at("\n  h0 to h1: ") && ring.contains("Gbit/s"), "{ring}");
    assert!(ended.out.starts_with("host h1: ") && ended.out.contains("\nhost h0: "));
    let file = |name: &str| fs::read_to_string(cluster.hosts[0].path(name)).unwrap();
    let svg = file("/run/hosts.svg");
    assert_eq!(svg.matches("class=\"link\"").count(), 2, "{svg}");
    let json: Value = serde_json::from_str(&file("/run/hosts.json")).unwrap();
    assert!(json["hosts"][0]["topology"]["cores"].is_array(), "{json}");
}

#[test]
fn a_look_that_is_ended_leaves_nothing() {
    let Some(cluster) = cluster("checks::a_look_that_is_ended_leaves_nothing", 2) else { return };
    close_ports(&cluster, 1);
    let line = "doctor -H h0,h1 --port-range 20000-20009";
    let mut running = start(&cluster, line, |_| ());
    // The job between hosts waits for connections that do not come.
    let runs = |process: &::harness::cluster::HostProcess| process.command.contains("--host-links");
    until("ranks run", || cluster.processes().iter().any(runs));
    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.process.end(BOUNDED);
    running.nothing_is_left(|_| true);
}
