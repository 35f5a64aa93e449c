//! Hosts that a job loses, with their agent or their network: the others go on, and the host's ranks
//! are let in again once an agent of it can be started.

use std::time::Duration;

use ::harness::cluster::Cluster;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, ReduceOp, Result};

use super::{PROMPT, Running, cluster, start_body, start_script};
use crate::harness::{Ended, send};

/// Within this, members agree and connect.
const DEADLINE: Duration = Duration::from_secs(60);
/// After this, survivors go on without ranks that do not answer.
const GRACE: Duration = Duration::from_secs(6);

/// The body of a rank that sums, without the lost ranks and with those that come back, until all
/// are there in a later epoch than the first.
pub(crate) fn outlasts() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let all: usize = std::env::var("RINGREDUCE_SIZE").unwrap().parse().unwrap();
    let mut is_up = false;
    while comm.size() < all || comm.epoch() == 0 {
        match step(&mut comm, all) {
            Err(error) if error.is_lost_rank() => comm = comm.evict(GRACE)?,
            other => other?,
        }
        if !std::mem::replace(&mut is_up, true) {
            println!("\nup {} {}", comm.rank(), std::process::id());
        }
    }
    let mut sum = [comm.rank() as u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("\nended {} of {} with {}", comm.rank(), comm.size(), sum[0]);
    Ok(())
}

/// Sums once, and lets in the ranks that have come.
fn step(comm: &mut Communicator, all: usize) -> Result<()> {
    let mut sum = [1.0; 1000];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert!(sum.iter().all(|&it| it == comm.size() as f32), "a wrong sum");
    if comm.size() < all
        && let Some(larger) = comm.grow(DEADLINE)?
    {
        *comm = larger;
    }
    Ok(())
}

/// Checks that a job of four ranks has ended well with all of them, those of h1 in a second life.
fn ended_whole(ended: &Ended) {
    let whole = ended.out.lines().filter(|line| line.ends_with(" of 4 with 6")).count();
    assert_eq!((ended.code, whole), (0, 4), "{ended:?}");
    assert!(ended.err.contains("host h1 is back: ranks 2-3 "), "{ended:?}");
}

fn agent(running: &Running<'_>) -> u32 {
    running.process(1, "ringrun", "--agent")
}

fn start<'a>(cluster: &'a Cluster, options: &str) -> Running<'a> {
    let mut running = start_body(cluster, options, "outlasts");
    running.pids::<4>("up ");
    running
}

/// An agent that was killed ends with its ranks; one that is stopped is silent for the lease, and
/// its successor ends it with its ranks.
#[test]
fn the_ranks_of_a_lost_agent_come_back() {
    let test = "lost_hosts::the_ranks_of_a_lost_agent_come_back";
    let Some(cluster) = cluster(test, 2) else { return };
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGSTOP] {
        let running = start(&cluster, "--elastic 1:4 -x RINGREDUCE_PEER_TIMEOUT=4");
        send(agent(&running), signal);
        ended_whole(&running.finish());
    }
}

/// The network of a host is down for longer than launcher and agent wait for each other.
#[test]
fn ranks_come_back_with_the_network_of_their_host() {
    let test = "lost_hosts::ranks_come_back_with_the_network_of_their_host";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut running = start(&cluster, "--elastic 1:4 -x RINGREDUCE_PEER_TIMEOUT=4");
    cluster.cut(1);
    running.error_line("host h1 was lost: no sign of life");
    running.error_line("host h1 can't be reached yet");
    cluster.mend(1);
    ended_whole(&running.finish());
}

/// The others go on, and the job ends with them.
#[test]
fn a_job_ends_well_without_a_host_that_never_comes_back() {
    let test = "lost_hosts::a_job_ends_well_without_a_host_that_never_comes_back";
    let Some(cluster) = cluster(test, 2) else { return };
    let script = "echo up; test $RINGREDUCE_RANK = 1 && exec sleep 1000; while ! test -e \
                  /run/end; do sleep 0.1; done";
    let mut running = start_script(&cluster, "h0:1,h1:1", "--elastic 1:2", script);
    running.await_lines("up", 2);
    cluster.stop_sshd(1);
    send(agent(&running), Signal::SIGKILL);
    running.error_line("host h1 was lost");
    running.error_line("host h1 can't be reached yet");
    std::fs::write(cluster.hosts[0].path("/run/end"), "").unwrap();
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("the job ends without rank 1"), "{ended:?}");
}

/// A job that does not go on without ranks ends with its first lost host.
#[test]
fn a_job_of_fixed_size_ends_with_a_lost_host() {
    let test = "lost_hosts::a_job_of_fixed_size_ends_with_a_lost_host";
    let Some(cluster) = cluster(test, 2) else { return };
    let running = start(&cluster, "--kill-after 1");
    send(agent(&running), Signal::SIGKILL);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("host h1 was lost") && !ended.err.contains("back"), "{ended:?}");
}
