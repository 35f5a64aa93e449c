//! One ringrun on each host, as torchrun is started: they join the one of host 0.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::harness::cluster::Cluster;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, Result};

use super::lost_hosts::OVER;
use super::{RINGRUN, cluster};
use crate::harness::{AS_RANK, BODY, Ended, PATIENCE, Process, myself};
use crate::job::Job;

struct Node {
    process: Process,
    job: Job,
}

impl Node {
    /// Starts the ringrun of a host; options are separated by spaces.
    fn start(cluster: &Cluster, rank: usize, options: &str, script: &str) -> Self {
        Self::start_with((cluster, rank), options, script, ("RINGREDUCE_INSECURE", "1"))
    }

    fn start_with(
        (cluster, rank): (&Cluster, usize),
        options: &str,
        script: &str,
        (variable, value): (&str, &str),
    ) -> Self {
        let job = Job::new();
        let mut command = job.command(RINGRUN);
        command.args(["--node-rank", &rank.to_string(), "--rdzv-endpoint", "h0:7000"]);
        command.args(options.split(' ')).args(["sh", "-c", script]);
        command.env(variable, value);
        Self { process: Process::start_on(&cluster.hosts[rank], &command, Stdio::null()), job }
    }

    fn finish(mut self) -> Ended {
        let ended = self.process.end(PATIENCE);
        self.job.left_nothing();
        ended
    }
}

fn both(cluster: &Cluster, options: [&str; 2], script: &str) -> [Ended; 2] {
    // The second host waits until the first one listens.
    let second = Node::start(cluster, 1, options[1], script);
    let first = Node::start(cluster, 0, options[0], script);
    [first.finish(), second.finish()]
}

#[test]
fn hosts_join_the_first_one_and_end_as_it_does() {
    let test = "nodes::hosts_join_the_first_one_and_end_as_it_does";
    let Some(cluster) = cluster(test, 2) else { return };
    let options = "--nnodes 2 -N 2";
    let script = "echo $RANK $(hostname) $GROUP_RANK $RINGREDUCE_IFNAME ${TF_CONFIG-none}
        test $RANK != 3 || exit 5";
    let [first, second] = both(&cluster, [options; 2], script);
    let expected = [
        "0 h0 0 10.77.0.1/32 none",
        "1 h0 0 10.77.0.1/32 none",
        "2 h1 1 10.77.0.2/32 none",
        "3 h1 1 10.77.0.2/32 none",
    ];
    assert_eq!(first.sorted(), expected, "{first:?}");
    assert!(first.err.contains("host node1) failed first: sh exited with status 5"), "{first:?}");
    assert_eq!((first.code, second.code, &second.out[..]), (5, 5, ""), "{second:?}");
    assert!(!second.err.contains("something else"), "{second:?}");
}

/// By torchrun's variables. What the second ringrun is told besides counts for nobody.
#[test]
fn each_host_has_its_own_environment_and_the_first_one_s_program() {
    let test = "nodes::each_host_has_its_own_environment_and_the_first_one_s_program";
    let Some(cluster) = cluster(test, 2) else { return };
    let start = |rank: usize, words: &[&str]| {
        let job = Job::new();
        let mut command = job.command(RINGRUN);
        command.args(words).env("OF_HOST", rank.to_string()).env("PET_NNODES", "2");
        command.env("PET_NODE_RANK", rank.to_string()).env("PET_RDZV_ENDPOINT", "h0:7000");
        command.env("PET_NPROC_PER_NODE", "1").env("PET_RDZV_BACKEND", "c10d");
        command.env("PET_LOG_DIR", "/run/logs");
        // All ranks meet where host 0 says, and each host finds its own program.
        command.env("MASTER_PORT", (7101 + rank).to_string());
        command.env("PATH", format!("/run/bin:{}", std::env::var("PATH").unwrap()));
        let own = format!("#!/bin/sh\necho $RANK own {rank} of job $OF_JOB at $MASTER_PORT\n");
        let file = cluster.hosts[rank].path("/run/bin/own");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, own).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        Node { process: Process::start_on(&cluster.hosts[rank], &command, Stdio::null()), job }
    };
    let second = start(1, &["--timeout", "100", "-x", "OF_JOB=2", "echo", "ran"]);
    let script = "test $OF_HOST = $RANK && own";
    let first = start(0, &["-x", "OF_JOB=1", "sh", "-c", script]).finish();
    let expected = ["0 own 0 of job 1 at 7101", "1 own 1 of job 1 at 7101"];
    assert!(first.code == 0 && first.sorted() == expected, "{first:?}");
    let second = second.finish();
    assert!(first.err.contains("PET_LOG_DIR is not read: "), "{first:?}");
    assert!(!first.err.contains("PET_RDZV_BACKEND"), "{first:?}");
    let why = "counts for all hosts, and this one was told something else: the program and its \
               arguments, -x, or other options that set variables, --timeout";
    assert!(second.code == 0 && second.err.contains(why), "{second:?}");
}

#[test]
fn each_host_may_count_its_cpus() {
    let Some(cluster) = cluster("nodes::each_host_may_count_its_cpus", 2) else { return };
    let count = tools::cpus::allowed().unwrap().len();
    let [first, second] = both(&cluster, ["--nnodes 2 -N auto"; 2], "echo $(hostname)");
    assert_eq!((first.code, second.code), (0, 0), "{first:?} {second:?}");
    assert_eq!(first.sorted(), [vec!["h0"; count], vec!["h1"; count]].concat(), "{first:?}");
}

#[test]
fn hosts_that_say_different_things_are_refused() {
    let test = "nodes::hosts_that_say_different_things_are_refused";
    let Some(cluster) = cluster(test, 2) else { return };
    let [first, second] = both(&cluster, ["--nnodes 2 -N 2", "--nnodes 2 -N 3"], "echo ran");
    let why = "--nnodes 2 with 6 ranks in all, and this one with --nnodes 2 with 4 ranks in all";
    assert!(first.code == 1 && first.err.contains(why), "{first:?}");
    assert!(second.code == 1 && second.out.is_empty(), "{second:?}");
}

/// The file on the first host that ends the job.
const END: &str = "/run/end";

/// The body of a rank of two that have met: the first one goes on once the other one is lost.
pub(crate) fn outlives() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    comm.barrier()?;
    println!("\nup");
    if comm.rank() == 1 {
        nix::unistd::pause();
    }
    let error = comm.barrier().unwrap_err();
    assert!(error.is_lost_rank(), "{error}");
    comm = comm.evict(Duration::from_secs(12))?;
    assert_eq!(comm.size(), 1);
    while !Path::new(END).exists() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The first of two hosts, once the second one was killed.
fn without_second(cluster: &Cluster, script: &str) -> Node {
    let start = |rank| Node::start(cluster, rank, "--nnodes 2 -N 1 --elastic 1:2", script);
    let [mut first, second] = [0, 1].map(start);
    first.process.await_lines("up", 2);
    second.process.signal(Signal::SIGKILL);
    assert_eq!(second.finish().code, -9);
    first
}

const GONE_FOR_GOOD: &str = "its host has joined by itself and was lost";

/// No remote shell reaches the lost host, so that the first one goes on without it to the end.
#[test]
fn an_elastic_job_goes_on_without_a_host_that_had_joined() {
    let test = "nodes::an_elastic_job_goes_on_without_a_host_that_had_joined";
    let Some(cluster) = cluster(test, 2) else { return };
    let script = format!("exec env {BODY}=outlives {} {}", myself(), AS_RANK.join(" "));
    let mut first = without_second(&cluster, &script);
    first.process.error_line(GONE_FOR_GOOD);
    std::fs::write(cluster.hosts[0].path(END), "").unwrap();
    let first = first.finish();
    assert_eq!(first.code, 0, "{first:?}");
    // The end of the job cancels no restart.
    assert!(!first.err.contains("the job ends without rank 1"), "{first:?}");
}

/// No remote shell reaches the lost host, and another one that has joined had no rank so far.
#[test]
fn ranks_of_a_host_that_had_joined_go_to_free_slots() {
    let test = "nodes::ranks_of_a_host_that_had_joined_go_to_free_slots";
    let Some(cluster) = cluster(test, 3) else { return };
    let body = "outlasts evicts";
    let script = format!("exec env '{BODY}={body}' {} {}", myself(), AS_RANK.join(" "));
    let options = "--nnodes 3 -N 2 -n 4 --elastic 1:4";
    let [mut first, second, third] =
        [0, 1, 2].map(|rank| Node::start(&cluster, rank, options, &script));
    (0..4).for_each(|_| _ = first.process.numbers::<1>("up "));
    second.process.signal(Signal::SIGKILL);
    assert_eq!(second.finish().code, -9);
    first.process.error_line("ranks 2-3 go to free slots of host node2");
    (0..2).for_each(|_| _ = first.process.numbers::<1>("up "));
    std::fs::write(cluster.hosts[0].path(OVER), "").unwrap();
    let ended = [first.finish(), third.finish()];
    assert!(ended.iter().all(|it| it.code == 0), "{ended:?}");
}

/// The rank has not come to the others, which would wait for it.
#[test]
fn an_elastic_job_ends_with_a_host_that_had_joined_if_its_ranks_were_not_met() {
    let test = "nodes::an_elastic_job_ends_with_a_host_that_had_joined_if_its_ranks_were_not_met";
    let Some(cluster) = cluster(test, 2) else { return };
    let first = without_second(&cluster, "echo up; exec sleep 1000").finish();
    assert!(first.err.contains("before all ranks had met"), "{first:?}");
    assert!(first.code > 0, "{first:?}");
}

#[test]
fn a_signal_ends_hosts_that_wait_for_others() {
    let test = "nodes::a_signal_ends_hosts_that_wait_for_others";
    let Some(cluster) = cluster(test, 2) else { return };
    let options = "--nnodes 3 -N 1";
    for told in [0, 1] {
        let mut nodes = [0, 1].map(|rank| Node::start(&cluster, rank, options, "echo ran"));
        nodes[0].process.error_line("waiting for the ringrun of node2");
        nodes[told].process.signal(Signal::SIGTERM);
        let [first, second] = nodes.map(Node::finish);
        assert_eq!(first.code, 143, "{first:?}");
        assert!(second.code > 0 && second.out.is_empty(), "{second:?}");
    }
}

/// The one with the other secret may be on a host whose output nobody reads.
#[test]
fn the_first_host_names_one_that_has_another_secret() {
    let test = "nodes::the_first_host_names_one_that_has_another_secret";
    let Some(cluster) = cluster(test, 2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name).display().to_string();
        assert!(Command::new(RINGRUN).args(["secret", &path]).output().unwrap().status.success());
        path
    };
    let (right, wrong) = (secret("right"), secret("wrong"));
    let start = |rank, path: &str| {
        let with = ("RINGREDUCE_SECRET_FILE", path);
        Node::start_with((&cluster, rank), "--nnodes 2 -N 1", "echo ran", with)
    };
    let mut first = start(0, &right);
    let mut stranger = start(1, &wrong);
    let line = first.process.error_line("another secret");
    let start_of_line =
        "ringrun: a ringrun at 10.77.0.2 has another secret (RINGREDUCE_SECRET_FILE)";
    assert!(line.starts_with(start_of_line) && line.contains("same content"), "{line}");
    let line = stranger.process.error_line("host number 1 waits for the ringrun at");
    assert!(line.contains("does not have this job's secret"), "{line}");
    let second = start(1, &right);
    let [first, second] = [first, second].map(Node::finish);
    assert_eq!((first.code, first.out.as_str()), (0, "ran\nran\n"), "{first:?}");
    // Each address is named once.
    assert!(!first.err.contains("another secret") && second.code == 0, "{first:?} {second:?}");
    stranger.process.signal(Signal::SIGTERM);
    assert_eq!(stranger.finish().code, 143);
}
