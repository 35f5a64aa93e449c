//! The death of ranks of other hosts: it is certain, named, and others are let in for them.
#![allow(unsafe_code)]

use std::process::Command;
use std::time::Duration;

use ::harness::cluster::{Cluster, HostProcess, pid_on_host};
use ::harness::share;
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use ringreduce::{Communicator, Error, ReduceOp, Result};

use super::lost_hosts::{ELASTIC, Losing};
use super::{FOUR, cluster, draw_all_pairs, start_body, start_body_on};
use crate::harness::{Ended, myself, send};
use crate::procfs::processes_with;
use crate::ranks::bodies::SWING;

const DEADLINE: Duration = Duration::from_secs(60);
/// A killed rank is named by all others within this, however busy the machine is; less by far than
/// the timeout of a call.
const KNOWN: Duration = Duration::from_secs(10);

/// Half of all killed ranks are named by all others within so many milliseconds, and on a machine
/// that does nothing else 99 of 100.
const SOON: i64 = 300;

/// Milliseconds of the clock that all hosts of a cluster have in common.
pub(super) fn now() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000
}

/// The rank `victim` is killed in the middle of calls, `with_child` while a child of its process
/// keeps its connections open. The others say when they knew.
pub(crate) fn is_killed(victim: usize, with_child: bool) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    for call in 0.. {
        if call == SWING && comm.rank() == victim {
            if with_child {
                keep_connections_in_a_child();
            }
            println!("\nkilled at {}", now());
            raise(Signal::SIGKILL).unwrap();
        }
        let Err(error) = comm.all_reduce(&mut [1.0; 1000], ReduceOp::Sum) else { continue };
        let at = now();
        let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
        println!("\nlost rank {} known at {at}", peer.rank);
        assert_eq!(peer.rank, victim, "{error}");
        break;
    }
    Ok(())
}

/// Starts a child that waits. The library does not learn of it, as of one by the C library's fork.
fn keep_connections_in_a_child() {
    // SAFETY: it does what fork(2) does, and the child only waits and ends.
    if unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } == 0 {
        std::thread::sleep(DEADLINE);
        std::process::exit(0);
    }
}

/// The ranks from `first` to `last` are killed in their first life. The others go on without them
/// until they have come back.
pub(crate) fn comes_back(first: usize, last: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let all: usize = std::env::var("RINGREDUCE_SIZE").unwrap().parse().unwrap();
    if comm.epoch() == 0 {
        comm.barrier()?;
        if (first..=last).contains(&comm.rank()) {
            raise(Signal::SIGKILL).unwrap();
        }
        while comm.size() >= all - (last - first) {
            comm.barrier().unwrap_err();
            comm = comm.shrink(DEADLINE)?;
        }
    }
    while comm.size() < all {
        let larger = comm.grow(DEADLINE)?;
        comm = larger.unwrap_or(comm);
    }
    let mut sum = [comm.rank() as u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("\nended {} of {} with {}", comm.rank(), comm.size(), sum[0]);
    Ok(())
}

/// The longest time, in milliseconds, from the kill to a survivor's error.
fn longest(ended: &Ended, survivors: usize) -> i64 {
    let all = |start: &str| -> Vec<i64> {
        let lines = ended.out.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let (killed, known) = (all("killed at "), all("lost rank "));
    assert_eq!((killed.len(), known.len()), (1, survivors), "{ended:?}");
    known.into_iter().max().unwrap() - killed[0]
}

/// Kills one of the ranks on these hosts; gives the milliseconds after which all others knew.
fn kill_one(cluster: &Cluster, (hosts, size): (&str, usize), victim: usize, child: usize) -> i64 {
    // With links between all pairs of ranks or few links.
    let all_pairs = draw_all_pairs();
    let options =
        format!("--elastic 1:{size} --max-restarts 0 -x RINGREDUCE_ALL_PAIRS={all_pairs}");
    let body = format!("is_killed {victim} {child}");
    let ended = start_body_on(cluster, hosts, &options, &body).finish();
    let after = longest(&ended, size - 1);
    println!("rank {victim} of {size}, {child} children, all pairs of {all_pairs}: {after} ms");
    assert!(after < KNOWN.as_millis() as i64, "{after} ms: {ended:?}");
    after
}

/// A rank is named wherever it was, and whether or not a child of it keeps its connections open:
/// without another rank on its host, its agent alone knows of its end.
#[test]
fn a_killed_rank_is_named_on_all_hosts() {
    let test = "deaths::a_killed_rank_is_named_on_all_hosts";
    let Some(cluster) = cluster(test, 2) else { return };
    for (hosts, size, victims) in [(FOUR, 4, [0, 3]), ("h0:1,h1:1", 2, [0, 1])] {
        for (victim, child) in victims.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
            kill_one(&cluster, (hosts, size), victim, child);
        }
    }
}

/// As above with many hosts: soon, of enough kills to tell.
#[test]
fn a_killed_rank_is_named_by_many() {
    let Some(cluster) = cluster("deaths::a_killed_rank_is_named_by_many", 8) else { return };
    let hosts: Vec<_> = (0..8).map(|host| format!("h{host}:4")).collect();
    let mut all: Vec<_> = (0..share::count(2, 100))
        .map(|round| {
            let victim = share::random_range(0..32) as usize;
            kill_one(&cluster, (&hosts.join(","), 32), victim, round as usize % 2)
        })
        .collect();
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100];
    println!("{} kills: p50 {} ms, p99 {} ms", all.len(), at(50), at(99));
    assert!(at(50) <= SOON || !share::is_all(), "{all:?}");
}

/// A single rank of one host goes on without those of all others.
#[test]
fn the_last_rank_of_all_hosts_goes_on_alone() {
    let test = "deaths::the_last_rank_of_all_hosts_goes_on_alone";
    let Some(cluster) = cluster(test, 2) else { return };
    for after in [0, 20] {
        let options = "--elastic 1:4 --max-restarts 0";
        let ended = start_body(&cluster, options, &format!("dwindles {after}")).finish();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

/// One rank of a host, and all of one, come back, also the first host, from which the job was
/// started.
#[test]
fn killed_ranks_of_any_host_come_back() {
    let Some(cluster) = cluster("deaths::killed_ranks_of_any_host_come_back", 2) else { return };
    for (first, last) in [(3, 3), (0, 0), (2, 3), (0, 1), (1, 3)] {
        let body = format!("comes_back {first} {last}");
        let ended = start_body(&cluster, "--elastic 1:4", &body).finish();
        let lines = ended.out.lines().filter(|line| line.ends_with(" of 4 with 6")).count();
        assert_eq!((ended.code, lines), (0, 4), "ranks {first} to {last}: {ended:?}");
    }
}

/// Processes are known by their host and the number of their start, both by the launcher and by the
/// members that evict one.
#[test]
fn a_rank_is_told_apart_from_one_with_its_pid_on_another_host() {
    let test = "deaths::a_rank_is_told_apart_from_one_with_its_pid_on_another_host";
    let Some(cluster) = cluster(test, 3) else { return };
    let signals = [Signal::SIGKILL, Signal::SIGSTOP].into_iter();
    for signal in signals.take(share::count(1, 2) as usize) {
        let (mut losing, (pid, rank)) = with_twins(&cluster);
        send(pid, signal);
        losing.are_back(&[rank]);
        let starts: Vec<_> = (0..4).map(|other| 1 + usize::from(other == rank)).collect();
        assert_eq!(losing.up, starts, "{signal}: rank {rank}");
        losing.end_by(1);
    }
}

/// A job of two ranks on each of h1 and h2, and a process of h2, with its rank, whose pid a rank of
/// h1 has on its own host.
fn with_twins(cluster: &Cluster) -> (Losing<'_>, (u32, usize)) {
    // The agents' threads take numbers too, in an order that differs.
    for _ in 0..20 {
        for host in [1, 2] {
            let mut next = Command::new("sh");
            next.args(["-c", "echo 5000 > /proc/sys/kernel/ns_last_pid"]);
            assert!(cluster.on(host, &next).status().unwrap().success());
        }
        let losing = Losing::start_on(cluster, "h1:2,h2:2", ELASTIC, ("outlasts evicts", 4));
        let me = myself();
        let ranks = cluster.processes().into_iter().filter(|it| it.command.starts_with(&me));
        let (here, there): (Vec<_>, Vec<_>) = ranks.partition(|it| it.host == 1);
        let pids: Vec<_> = here.iter().map(|it| pid_on_host(it.pid)).collect();
        let twin = there.iter().find(|it| pids.contains(&pid_on_host(it.pid)));
        let rank_of = |it: &HostProcess| {
            [2, 3]
                .into_iter()
                .find(|&rank| processes_with(&format!("RINGREDUCE_RANK={rank}")).contains(&it.pid))
        };
        if let Some(twin) = twin {
            return (losing, (twin.pid, rank_of(twin).unwrap()));
        }
        losing.end_by(1);
    }
    panic!("no rank of one host had the pid of one of the other");
}
