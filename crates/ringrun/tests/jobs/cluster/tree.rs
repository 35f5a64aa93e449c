//! Jobs whose hosts start each other's agents. Of seven hosts with two starts each, h1 and h2 are
//! started from h0, h3 and h4 from h1, and h5 and h6 from h2.

use std::process::{Command, Stdio};
use std::time::Duration;

use ::harness::cluster::{Cluster, HostProcess, pid_on_host};
use nix::sys::signal::Signal;

use super::checks::close_ports;
use super::{GONE, PROMPT, Running, cluster, start};
use crate::harness::{RINGRUN, send, until};

const HOSTS: &str = "h0,h1,h2,h3,h4,h5,h6";
/// Prints the rank's host and the address from which its agent was started.
const FROM: &str = "echo $(hostname) ${SSH_CONNECTION%% *}; sleep 0.3";

/// Starts a rank on each host that runs a script.
fn start_script<'a>(cluster: &'a Cluster, options: &str, script: &str) -> Running<'a> {
    let words: Vec<_> = options.split_whitespace().chain(["sh", "-c", script]).collect();
    start(cluster, HOSTS, &words, Stdio::null())
}

/// Runs a rank on each host, and checks the hosts from which others were started.
fn starters_are(cluster: &Cluster, options: &str, expected: [&str; 6]) {
    let ended = start_script(cluster, options, FROM).finish();
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
    let from = ended.sorted().into_iter().filter_map(|line| {
        let (host, address) = line.split_once(" 10.77.0.")?;
        let number: usize = address.parse().unwrap();
        Some(format!("{host} h{}", number - 1))
    });
    assert_eq!(from.collect::<Vec<_>>(), expected, "{options}");
}

#[test]
fn hosts_that_have_begun_start_further_ones() {
    let Some(cluster) = cluster("tree::hosts_that_have_begun_start_further_ones", 7) else {
        return;
    };
    let direct = ["h1 h0", "h2 h0", "h3 h0", "h4 h0", "h5 h0", "h6 h0"];
    let tree = ["h1 h0", "h2 h0", "h3 h1", "h4 h1", "h5 h2", "h6 h2"];
    let chain = ["h1 h0", "h2 h1", "h3 h2", "h4 h3", "h5 h4", "h6 h5"];
    starters_are(&cluster, "", direct);
    starters_are(&cluster, "--fanout 0", direct);
    starters_are(&cluster, "--fanout 2", tree);
    starters_are(&cluster, "--fanout 1", chain);
}

#[test]
fn a_host_that_reaches_no_others_leaves_them_to_the_launcher() {
    let test = "tree::a_host_that_reaches_no_others_leaves_them_to_the_launcher";
    let Some(cluster) = cluster(test, 7) else { return };
    // Without it ssh on h1 knows no host's key.
    cluster.hosts[1].does("mount --bind /dev/null /run/cluster/ssh_config").unwrap();
    let tree = ["h1 h0", "h2 h0", "h3 h0", "h4 h0", "h5 h2", "h6 h2"];
    let chain = ["h1 h0", "h2 h0", "h3 h2", "h4 h3", "h5 h4", "h6 h5"];
    starters_are(&cluster, "--fanout 2", tree);
    starters_are(&cluster, "--fanout 1", chain);
}

#[test]
fn hosts_that_can_not_be_started_are_named() {
    let test = "tree::hosts_that_can_not_be_started_are_named";
    let Some(cluster) = cluster(test, 3) else { return };
    for (hosts, missing) in [("h0,h1,nohost,h2", "nohost"), ("h0,nohost,h1,h2", "nohost")] {
        let running = start(&cluster, hosts, &["--fanout", "1", "true"], Stdio::null());
        let ended = running.finish_within(PROMPT);
        assert_ne!(ended.code, 0, "{hosts}");
        assert!(ended.err.contains(&format!("host {missing}: ssh ")), "{hosts}: {ended:?}");
        assert!(!ended.err.contains("panicked"), "{hosts}: {ended:?}");
    }
}

/// The connection of h2's agent goes through that of h1, which has nothing to do any more.
#[test]
fn an_agent_that_is_late_at_the_end_keeps_the_one_that_has_started_it() {
    let test = "tree::an_agent_that_is_late_at_the_end_keeps_the_one_that_has_started_it";
    let Some(cluster) = cluster(test, 3) else { return };
    close_ports(&cluster, 0);
    let script = "echo up; if [ $(hostname) = h0 ]; then read -r line || :; fi";
    let options = "--port-range 20000-20009 --fanout 1 sh -c";
    let words: Vec<_> = options.split(' ').chain([script]).collect();
    let mut running = start(&cluster, "h0,h1,h2", &words, Stdio::piped());
    running.await_lines("up", 3);
    let mut status = Command::new(RINGRUN);
    status.args(["status", "--json", &pid_on_host(running.pid()).to_string()]);
    until("the launcher knows that two ranks have ended", || {
        let output = cluster.on(0, &status).output().unwrap();
        String::from_utf8(output.stdout).unwrap().matches("\"ended\"").count() == 2
    });
    let late = running.process(2, "ringrun", "--agent");
    send(late, Signal::SIGSTOP);
    drop(running.stdin.take());
    // The agent of h1 must not end meanwhile, as it would after 0.3 s without bytes of ranks.
    std::thread::sleep(Duration::from_secs(1));
    send(late, Signal::SIGCONT);
    let ended = running.finish_within(PROMPT);
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
}

#[test]
fn ctrl_c_ends_a_start_that_hangs() {
    let Some(cluster) = cluster("tree::ctrl_c_ends_a_start_that_hangs", 4) else { return };
    // The connection of ssh to h2 gets no answer, so h3 has nobody who would start it.
    cluster.cut(2);
    let running = start(&cluster, "h0,h1,h2,h3", &["--fanout", "1", "true"], Stdio::null());
    let is_client = |it: &HostProcess| {
        it.host == 1 && it.command.starts_with("ssh ") && it.command.contains(" h2 ")
    };
    until("ssh to h2", || cluster.processes().iter().any(is_client));
    running.signal(Signal::SIGINT);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 130, "{ended:?}");
}

/// Each process that a job consists of dies in turn.
#[test]
fn nothing_is_left_whatever_dies() {
    let Some(cluster) = cluster("tree::nothing_is_left_whatever_dies", 7) else { return };
    let up = || {
        let mut running = start_script(&cluster, "--fanout 2", "echo up; exec sleep 1000");
        running.await_lines("up", 7);
        running
    };
    // A client of ssh, which is not needed any more once its agent has a connection of its own.
    let running = up();
    send(running.process(1, "ssh", "h3"), Signal::SIGKILL);
    running.signal(Signal::SIGTERM);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 143, "{ended:?}");
    assert!(!ended.err.contains("lost"), "{ended:?}");
    // An agent that has started others.
    let running = up();
    send(running.process(1, "ringrun", "--agent"), Signal::SIGKILL);
    let ended = running.finish_within(PROMPT);
    assert!(ended.err.contains("host h1 was lost"), "{ended:?}");
    assert!(!ended.err.contains("host h3 was lost"), "{ended:?}");
    // The launcher.
    let mut running = up();
    running.signal(Signal::SIGKILL);
    running.process.end(GONE);
    running.nothing_is_left(|_| true);
}
