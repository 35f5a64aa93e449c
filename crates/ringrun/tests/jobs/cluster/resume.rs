//! Connections between hosts that break in the middle of calls: sockets that are destroyed, cables
//! that are out for long, connections that a NAT forgets, and hosts whose address changes. Law: the
//! calls go on with the same bytes, and the output says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use ::harness::cluster::{Cluster, HostProcess};
use ::harness::wan::Wan;
use ::harness::{share, skip};
use nix::sys::signal::Signal;
use ringreduce::{Communicator, ReduceOp, Result};

use super::{FOUR, Running, cluster, ringrun, start_body, start_body_on};
use crate::harness::{AS_JOB, AS_RANK, BODY, PATIENCE, Process, myself, send, until};
use crate::job::Job;
use crate::procfs::state;

/// The file on the host of rank 0 that ends the job.
pub(super) const OVER: &str = "/run/over";
/// A killed rank is named by all others within this, however busy the machine is.
const KNOWN: Duration = Duration::from_secs(15);

/// The body of a rank: sums of several lengths until the end, each in all ranks and then in a group
/// of two neighbours, or of every other rank.
pub(crate) fn sums_until_over() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let (rank, ranks) = (comm.rank() as u32, comm.size() as u64);
    let mut groups = [comm.split(Some(rank / 2), 0)?, comm.split(Some(rank % 2), 0)?];
    for round in 1.. {
        let is_over = comm.rank() == 0 && Path::new(OVER).exists();
        let len = [2, 3_000, 400_000][(round % 3) as usize];
        let mut sum: Vec<u64> = (0..len).map(|at| round * 1000 + at).collect();
        sum[0] = u64::from(is_over);
        comm.all_reduce(&mut sum, ReduceOp::Sum)?;
        let right = |at: usize| (round * 1000 + at as u64) * ranks;
        assert!((1..sum.len()).all(|at| sum[at] == right(at)), "a wrong sum in round {round}");
        let group = groups[round as usize % 2].as_mut().expect("all ranks have a group");
        let (members, mut of_group) = (group.size() as u64, sum.clone());
        group.all_reduce(&mut of_group, ReduceOp::Sum)?;
        let right = |at: usize| of_group[at] == sum[at] * members;
        assert!((1..sum.len()).all(right), "a wrong sum of a group in round {round}");
        if sum[0] > 0 {
            break;
        }
        if comm.rank() == 0 {
            println!("\nround {round}");
        }
    }
    Ok(())
}

/// The file on each host after which its rank makes the first call of a group.
const FIRST_CALL: &str = "/run/first";

/// The body of a rank: the first call of a group, whose links have not been used.
pub(crate) fn begins_late() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut group = comm.split(Some(0), 0)?.expect("all ranks are in the group");
    comm.barrier()?;
    println!("\nready");
    while !Path::new(FIRST_CALL).exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let mut sum = vec![group.rank() as u64 + 1; 3_000];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [3; 3_000]);
    Ok(())
}

/// The interface of a host is down while a group makes its first call: the host knows no way to the
/// other one.
#[test]
fn links_begin_once_there_is_a_way() {
    let Some(cluster) = cluster("resume::links_begin_once_there_is_a_way", 2) else { return };
    for options in ["", "-x RINGREDUCE_ENCRYPT=1"] {
        let mut running = start_body_on(&cluster, "h0:1,h1:1", options, "begins_late");
        running.await_lines("ready", 2);
        cluster.hosts[1].does("ip link set eth0 down").unwrap();
        cluster.hosts.iter().for_each(|host| std::fs::write(host.path(FIRST_CALL), "").unwrap());
        thread::sleep(Duration::from_secs(2));
        cluster.hosts[1].does("ip link set eth0 up").unwrap();
        let ended = running.finish();
        assert_eq!(ended.code, 0, "{options}: {ended:?}");
        cluster.hosts.iter().for_each(|host| std::fs::remove_file(host.path(FIRST_CALL)).unwrap());
    }
}

/// Waits for so many rounds more.
fn await_rounds(running: &mut Running<'_>, count: usize) {
    let mut seen = 0;
    while seen < count {
        seen += usize::from(running.line().starts_with("round "));
    }
}

/// Destroys all connections of a host but those of ssh: their number.
pub(super) fn destroy(cluster: &Cluster, host: usize) -> usize {
    let mut ss = Command::new("ss");
    ss.args(["-HKtn", "not", "sport", "=", ":22", "and", "not", "dport", "=", ":22"]);
    let output = cluster.on(host, &ss).output();
    output.map_or(0, |output| String::from_utf8_lossy(&output.stdout).lines().count())
}

/// Ends the job, all of whose ranks must end well: what it has said.
fn end(cluster: &Cluster, running: Running<'_>) -> String {
    end_with(cluster, running, |_| true)
}

/// As [`end`], but only processes that count have to end with it.
fn end_with(
    cluster: &Cluster,
    running: Running<'_>,
    counts: impl Fn(&HostProcess) -> bool,
) -> String {
    std::fs::write(cluster.hosts[0].path(OVER), "").unwrap();
    let ended = running.finish_with(PATIENCE, counts);
    println!("{}", ended.err);
    assert_eq!(ended.code, 0, "{ended:?}");
    std::fs::remove_file(cluster.hosts[0].path(OVER)).unwrap();
    ended.err
}

#[test]
fn calls_go_on_when_all_connections_of_a_host_are_destroyed() {
    let test = "resume::calls_go_on_when_all_connections_of_a_host_are_destroyed";
    let Some(cluster) = cluster(test, 2) else { return };
    let traced = "-x RINGREDUCE_TCP_SOCKETS=3 -x RINGREDUCE_TRACE=/run/trace";
    for options in ["", "-x RINGREDUCE_ENCRYPT=1", traced] {
        let mut running = start_body(&cluster, options, "sums_until_over");
        await_rounds(&mut running, 5);
        for number in 0..share::count(6, 60) {
            if destroy(&cluster, number as usize % 2) == 0 {
                skip(&format!("cluster::{test}"), "ss -K destroys no socket here");
                drop(end(&cluster, running));
                return;
            }
            await_rounds(&mut running, 5);
        }
        let said = end(&cluster, running);
        let names_host = |line: &str| line.contains("(host h") && line.contains("broke, and goes");
        assert!(said.lines().any(names_host), "{options}: {said}");
    }
    // The trace of each rank has the connections that it made anew.
    let traces = std::fs::read_dir(cluster.hosts[0].path("/run/trace")).unwrap().flatten();
    let traces: String = traces.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    assert!(traces.contains(" made anew\",\"cat\":\"connection\""), "{}", traces.len());
}

#[test]
fn calls_go_on_after_a_cable_was_out_for_long() {
    let test = "resume::calls_go_on_after_a_cable_was_out_for_long";
    let Some(cluster) = cluster(test, 2) else { return };
    // Seconds, some of them most of the peer timeout, which is 5 without the option.
    let cases = [
        ("", 3),
        ("-x RINGREDUCE_PEER_TIMEOUT=20", 8),
        ("-x RINGREDUCE_ENCRYPT=1", 3),
        ("-x RINGREDUCE_PEER_TIMEOUT=15", 12),
    ];
    for (options, out) in share::of(&cases, 2) {
        let mut running = start_body(&cluster, options, "sums_until_over");
        await_rounds(&mut running, 5);
        cluster.cut(1);
        thread::sleep(Duration::from_secs(out));
        cluster.mend(1);
        await_rounds(&mut running, 20);
        let said = end(&cluster, running);
        assert!(said.contains("the link to rank ") && said.contains(" goes on after "), "{said}");
    }
}

/// Also those that are made anew when the NAT forgets the next time.
#[test]
fn calls_go_on_through_a_nat_that_forgets_all_connections() {
    let test = "resume::calls_go_on_through_a_nat_that_forgets_all_connections";
    let Some(mut cluster) = cluster(test, 2) else { return };
    if let Err(why) = cluster.set_wan(Wan { delay: Duration::from_millis(1), loss: 0.0 }) {
        return skip(&format!("cluster::{test}"), &why);
    }
    for options in ["", "-x RINGREDUCE_ENCRYPT=1"] {
        let mut running = start_body(&cluster, options, "sums_until_over");
        await_rounds(&mut running, 5);
        for _ in 0..share::count(3, 20) {
            cluster.forget_connections();
            thread::sleep(Duration::from_millis(share::random_range(0..2500)));
            cluster.forget_connections();
            await_rounds(&mut running, 5);
        }
        let said = end(&cluster, running);
        assert!(said.contains("the link to rank ") && said.contains(" goes on after "), "{said}");
    }
}

/// The host finds its peers, and they find it where it came from.
#[test]
fn calls_go_on_though_the_address_of_a_host_changes() {
    let test = "resume::calls_go_on_though_the_address_of_a_host_changes";
    let Some(cluster) = cluster(test, 3) else { return };
    for (host, options) in [(1, ""), (2, "-x RINGREDUCE_ENCRYPT=1")] {
        let hosts = format!("h0:2,h{host}:2");
        let mut running = start_body_on(&cluster, &hosts, options, "sums_until_over");
        await_rounds(&mut running, 5);
        cluster.change_address(host);
        await_rounds(&mut running, 20);
        // sshd waits for its client for as long as TCP does.
        let said = end_with(&cluster, running, |one| !one.command.starts_with("sshd: "));
        assert!(said.contains("the link to rank ") && said.contains(" goes on after "), "{said}");
    }
}

/// Its listeners have gone with it, so the others do not wait for another connection.
#[test]
fn a_rank_that_is_killed_while_its_connections_are_broken_is_named() {
    let test = "resume::a_rank_that_is_killed_while_its_connections_are_broken_is_named";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut running = start_body(&cluster, "", "sums_until_over");
    await_rounds(&mut running, 5);
    let ranks = cluster.processes().into_iter().filter(|it| {
        let is_rank = it.program().is_some_and(|path| !path.ends_with("ringrun"));
        it.host == 1 && is_rank && it.command.contains("ranks::bodies::body")
    });
    let victim = ranks.map(|it| it.pid).max().unwrap();
    destroy(&cluster, 1);
    send(victim, Signal::SIGKILL);
    let ended = running.finish_within(KNOWN);
    assert_eq!(ended.code, 137, "{ended:?}");
    assert!(ended.err.contains("was killed by SIGKILL"), "{ended:?}");
}

/// As by Ctrl-Z and `fg`: all hosts stand still for longer than peers and launcher may be silent,
/// which is 4 s and 9 s.
#[test]
fn a_suspended_job_goes_on() {
    let Some(cluster) = cluster("resume::a_suspended_job_goes_on", 2) else { return };
    let (job, me) = (Job::new(), myself());
    let words = ["-x", "RINGREDUCE_PEER_TIMEOUT=4", &me].into_iter().chain(AS_RANK);
    let command = ringrun(&job, FOUR, &words.collect::<Vec<_>>());
    let mut shell = job.command(AS_JOB[0]);
    shell.args(&AS_JOB[1..]).arg(command.get_program());
    shell.args(command.get_args()).env(BODY, "sums_until_over").env_remove("RINGREDUCE_INSECURE");
    let process = Process::start_on(&cluster.hosts[0], &shell, Stdio::null());
    let mut running = Running { process, job, cluster: &cluster };
    await_rounds(&mut running, 5);
    let launcher = running.process(0, "ringrun", "--rsh");
    send(launcher, Signal::SIGTSTP);
    until("ringrun stops", || state(launcher) == Some('T'));
    let is_rank = |it: &HostProcess| it.command.starts_with(&me);
    until("all ranks stop", || {
        let ranks: Vec<_> = cluster.processes().into_iter().filter(is_rank).collect();
        ranks.len() == 4 && ranks.iter().all(|it| state(it.pid) == Some('T'))
    });
    thread::sleep(Duration::from_secs(12));
    send(launcher, Signal::SIGCONT);
    await_rounds(&mut running, 20);
    let said = end(&cluster, running);
    assert!(!said.contains("lost") && !said.contains("the launcher was"), "{said}");
}

/// Processes that stand still together, as in a control group of the freezer. They go on when this
/// is dropped, since they could not end otherwise.
struct Freezer(PathBuf);

impl Freezer {
    /// A group of these processes and of those that they start; an error where there is no freezer.
    fn of(name: &str, processes: &[HostProcess]) -> std::io::Result<Self> {
        let group = format!("/sys/fs/cgroup/freezer/ringreduce-{}-{name}", std::process::id());
        std::fs::metadata("/sys/fs/cgroup/freezer/cgroup.procs")?;
        std::fs::create_dir(&group)?;
        let freezer = Self(group.into());
        for process in processes {
            std::fs::write(freezer.0.join("cgroup.procs"), process.pid.to_string())?;
        }
        Ok(freezer)
    }

    fn set(&self, state: &str) {
        let file = self.0.join("freezer.state");
        std::fs::write(&file, state).unwrap();
        until(state, || std::fs::read_to_string(&file).unwrap().trim() == state);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set("THAWED");
        let all = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let root = "/sys/fs/cgroup/freezer/cgroup.procs";
        all.lines().for_each(|pid| drop(std::fs::write(root, pid)));
        drop(std::fs::remove_dir(&self.0));
    }
}

/// The hosts stand still for longer than peers and launcher may be silent, which is 4 s and 9 s, as
/// virtual machines that are paused one after the other: each sees the other one stand still for
/// some of the time in which it runs itself.
#[test]
fn hosts_that_are_frozen_one_after_the_other_go_on() {
    let test = "resume::hosts_that_are_frozen_one_after_the_other_go_on";
    let Some(cluster) = cluster(test, 2) else { return };
    let apart = Duration::from_secs(1);
    for first in 0..share::count(1, 2) as usize {
        let mut running = start_body(&cluster, "-x RINGREDUCE_PEER_TIMEOUT=4", "sums_until_over");
        await_rounds(&mut running, 5);
        let (one, other): (Vec<_>, Vec<_>) =
            cluster.processes().into_iter().partition(|it| it.host == first);
        let groups =
            Freezer::of("first", &one).and_then(|it| Ok((it, Freezer::of("second", &other)?)));
        let (one, other) = match groups {
            Ok(groups) => groups,
            Err(why) => {
                skip(&format!("cluster::{test}"), &format!("no freezer: {why}"));
                drop(end(&cluster, running));
                return;
            }
        };
        one.set("FROZEN");
        thread::sleep(apart);
        other.set("FROZEN");
        thread::sleep(Duration::from_secs(12));
        one.set("THAWED");
        thread::sleep(apart);
        other.set("THAWED");
        await_rounds(&mut running, 20);
        let said = end(&cluster, running);
        assert!(!said.contains("lost") && !said.contains("the launcher was"), "{said}");
    }
}
