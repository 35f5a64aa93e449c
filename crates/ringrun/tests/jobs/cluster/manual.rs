//! `--launcher manual`: the commands that ringrun prints are run on the other hosts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

use ::harness::cluster::Cluster;
use nix::sys::signal::Signal;

use super::{Running, cluster};
use crate::harness::{AS_JOB, AS_RANK, BODY, PATIENCE, Process, RINGRUN, myself, send, until};
use crate::job::Job;
use crate::procfs::state;

/// The secret's file, which all hosts see.
const SECRET: &str = "/run/cluster/job.secret";

/// Runs the command of the next line on a host.
fn run_printed(running: &mut Running<'_>, host: usize) -> (String, Process) {
    running.error_line(&format!("  on h{host}:\n"));
    let line = running.error_line(" --agent ");
    let mut shell = running.job.command("sh");
    shell.args(["-c", &line]).env_remove("RINGREDUCE_INSECURE");
    (line, Process::start_on(&running.cluster.hosts[host], &shell, Stdio::null()))
}

/// ringrun on the first host of a cluster, whose ranks run `program`.
fn start<'a>(cluster: &'a Cluster, hosts: &str, program: &[&str]) -> Running<'a> {
    start_by(cluster, hosts, program, &[])
}

/// As [`start`], by a program that runs the words behind its own.
fn start_by<'a>(
    cluster: &'a Cluster,
    hosts: &str,
    program: &[&str],
    shell: &[&str],
) -> Running<'a> {
    let file = cluster.file("job.secret");
    fs::write(&file, "07".repeat(32)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let job = Job::new();
    let words = shell.iter().copied().chain([RINGRUN, "--launcher", "manual", "-H", hosts]);
    let words: Vec<_> = words.chain(program.iter().copied()).collect();
    let mut command = job.command(words[0]);
    command.args(&words[1..]);
    command.env("RINGREDUCE_SECRET_FILE", SECRET).env_remove("RINGREDUCE_INSECURE");
    command.env(BODY, "calls 1000 10");
    let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
    Running { process, job, cluster }
}

/// The launcher might come back within the lease. What the agent says stays on its host.
#[test]
fn an_agent_names_the_ranks_that_it_ends_without_its_launcher() {
    let test = "manual::an_agent_names_the_ranks_that_it_ends_without_its_launcher";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut running = start(&cluster, "h1:2,h0", &["sh", "-c", "echo up; exec sleep 1000"]);
    let (_, mut agent) = run_printed(&mut running, 1);
    running.await_lines("up", 3);
    let killed = Instant::now();
    send(running.pid(), Signal::SIGKILL);
    let ended = agent.end(PATIENCE);
    println!("the agent has ended its ranks after {:.1?}", killed.elapsed());
    let words = "the launcher was out of reach for 10s: the agent on h1 ends ranks 0-1\n";
    assert!(ended.code > 0 && ended.err.contains(words), "{ended:?}");
    assert_eq!(running.finish().code, -9);
}

/// The launcher was stopped, as by Ctrl-Z, and is killed after that.
#[test]
fn an_agent_ends_its_ranks_once_its_stopped_launcher_was_killed() {
    let test = "manual::an_agent_ends_its_ranks_once_its_stopped_launcher_was_killed";
    let Some(cluster) = cluster(test, 2) else { return };
    let program = ["sh", "-c", "echo up; exec sleep 1000"];
    let mut running = start_by(&cluster, "h1:2,h0", &program, &AS_JOB);
    let (_, mut agent) = run_printed(&mut running, 1);
    running.await_lines("up", 3);
    let launcher = running.process(0, "ringrun", "--launcher");
    send(launcher, Signal::SIGTSTP);
    until("ringrun stops", || state(launcher) == Some('T'));
    send(launcher, Signal::SIGKILL);
    let ended = agent.end(PATIENCE);
    let words = "the launcher was out of reach for 10s: the agent on h1 ends ranks 0-1\n";
    assert!(ended.code > 0 && ended.err.contains(words), "{ended:?}");
    // The shell tells of the stop or of the end.
    assert!(running.finish().code > 128);
}

#[test]
fn commands_that_are_run_by_hand_start_ranks() {
    let test = "manual::commands_that_are_run_by_hand_start_ranks";
    let Some(cluster) = cluster(test, 3) else { return };
    let myself = myself();
    let program: Vec<_> = [&*myself].into_iter().chain(AS_RANK).collect();
    let mut running = start(&cluster, "h1:2,h0,h2:2", &program);
    let mut agents = [1, 2].map(|host| run_printed(&mut running, host));
    for (number, (line, agent)) in [0, 2].into_iter().zip(&mut agents) {
        let start = format!("    env RINGREDUCE_SECRET_FILE='{SECRET}' '{RINGRUN}' --agent 10.77.");
        assert!(line.starts_with(&start) && line.ends_with(&format!(" {number}\n")), "{line}");
        let ended = agent.end(PATIENCE);
        assert_eq!((ended.code, &ended.out[..]), (0, ""), "{ended:?}");
    }
    let ended = running.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.matches("right\n").count(), 5, "{ended:?}");
}
