//! The cluster itself: its hosts reach each other by ssh, do not see each other's processes and
//! files, and are gone with their test.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use ::harness::cluster::{Cluster, SSH, name};
use nix::sys::signal::Signal;
use ringreduce::Result;

use super::cluster;
use crate::harness::{AS_RANK, BODY, Process, myself, until};
use crate::job::Job;
use crate::procfs::state;

/// The output of a shell on a host.
fn prints(cluster: &Cluster, host: usize, script: &str) -> String {
    let mut shell = Command::new("sh");
    let output = cluster.on(host, shell.args(["-c", script])).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hosts_reach_each_other_by_ssh() {
    let Some(cluster) = cluster("machine::hosts_reach_each_other_by_ssh", 3) else { return };
    for (from, to) in [(0, 1), (1, 0), (2, 1), (0, 2), (0, 0)] {
        let script = format!("{SSH} {} 'hostname; cat'", name(to));
        assert_eq!(prints(&cluster, from, &format!("echo in | {script}")), format!("h{to}\nin\n"));
    }
    // Neither the user's files nor those of the machine say how.
    assert_eq!(prints(&cluster, 0, "ls -A ~"), "");
    assert_eq!(prints(&cluster, 1, &format!("{SSH} h0 'echo $HOME; ls -A ~'")), "/run/home\n");
}

#[test]
fn hosts_have_their_own_processes_and_files() {
    let Some(cluster) = cluster("machine::hosts_have_their_own_processes_and_files", 2) else {
        return;
    };
    let mut sleep = Command::new("sleep");
    let mut command = cluster.hosts[0].for_spawn(sleep.arg("1000"));
    let mut child = cluster.hosts[0].spawn(command.stdin(Stdio::null())).unwrap();
    assert!(cluster.hosts[0].processes().contains(&child.id()));
    assert!(!cluster.hosts[1].processes().contains(&child.id()));
    let sleeps = "cat /proc/[0-9]*/comm 2> /dev/null | grep -cx sleep || true";
    until("the command has begun", || prints(&cluster, 0, sleeps) == "1\n");
    assert_eq!(prints(&cluster, 1, sleeps), "0\n");
    // Signals and the end are those of the command itself.
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().to_string(), "signal: 9 (SIGKILL)");
    prints(&cluster, 0, "touch /run/mine /dev/shm/mine");
    assert_eq!(prints(&cluster, 1, "ls /run /dev/shm | grep -c mine || true"), "0\n");
    assert!(cluster.hosts[0].path("/run/mine").exists() && !fs::exists("/run/mine").unwrap());
}

#[test]
fn cables_have_a_rate_and_can_be_pulled_out() {
    let Some(cluster) = cluster("machine::cables_have_a_rate_and_can_be_pulled_out", 2) else {
        return;
    };
    let copy = format!("head -c 4000000 /dev/zero | {SSH} h1 'wc -c'");
    cluster.set_rate("16mbit");
    let began = Instant::now();
    assert_eq!(prints(&cluster, 0, &copy), "4000000\n");
    // Two seconds, less what passes at once.
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds > 1.5, "{seconds} s");
    // A busy machine takes seconds for a handshake.
    let reach = |limit| format!("{SSH} -o ConnectTimeout={limit} h1 echo yes || echo no");
    cluster.cut(1);
    assert_eq!(prints(&cluster, 0, &reach(1)), "no\n");
    cluster.mend(1);
    assert_eq!(prints(&cluster, 0, &reach(60)), "yes\n");
}

/// The body of a process that makes a cluster, and is killed.
pub(crate) fn holds() -> Result<()> {
    let cluster = Cluster::new(2).unwrap();
    let all: Vec<_> = cluster.hosts.iter().flat_map(|host| host.processes()).collect();
    println!("\nholds {}", all.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    nix::unistd::pause();
    drop(cluster);
    Ok(())
}

#[test]
fn a_cluster_is_gone_with_its_test() {
    let Some(here) = cluster("machine::a_cluster_is_gone_with_its_test", 2) else { return };
    let mut command = Command::new("sh");
    let script = "setsid sleep 1000 & trap '' TERM HUP; sleep 1000; true";
    let mut child = here.on(1, command.args(["-c", script])).spawn().unwrap();
    let sleeps = || here.hosts[1].processes().len() >= 5;
    until("all processes of the host have begun", sleeps);
    let all: Vec<_> = here.hosts.iter().flat_map(|host| host.processes()).collect();
    drop(here);
    child.wait().unwrap();
    assert!(all.iter().all(|&pid| state(pid).is_none()), "{all:?}");

    let job = Job::new();
    let mut command = job.command(&myself());
    let mut test = Process::start({
        command.args(AS_RANK).env(BODY, "holds");
        command
    });
    let all = test.numbers::<4>("holds ");
    assert!(all.iter().all(|&pid| state(pid).is_some()), "{all:?}");
    test.signal(Signal::SIGKILL);
    until("all are gone", || all.iter().all(|&pid| state(pid).is_none()));
    drop(test);
    job.left_nothing();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(" - tmpfs cluster "), "{mounts}");
}
