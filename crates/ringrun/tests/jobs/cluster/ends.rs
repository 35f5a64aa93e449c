//! The end of jobs over hosts: signals, a time limit, the death of each process that a job consists
//! of, and a network that is cut. Nothing is left on any host.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use ::harness::cluster::{Cluster, pid_on_host};
use ::harness::skip;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{FOUR, GONE, PROMPT, Running, cluster, names_first, script, start_body, start_script};
use crate::harness::{RINGRUN, send, until};
use crate::launch::cleanup::FAMILY;
use crate::ranks::{metrics, ras};

/// Longer than a connection may go without an acknowledgement, so that it breaks.
const BREAKS: Duration = Duration::from_secs(6);
/// A rank that ends on SIGTERM, and says so.
const TOLD: &str = "trap 'echo told; exit 0' TERM; trap 'echo signalled' USR1
    echo up; while :; do sleep 0.1; done";

#[test]
fn ctrl_c_ends_the_ranks_of_all_hosts() {
    let Some(cluster) = cluster("ends::ctrl_c_ends_the_ranks_of_all_hosts", 2) else { return };
    let mut running = start_script(&cluster, FOUR, "", TOLD);
    running.await_lines("up", 4);
    // As the terminal does: to all of the foreground, the clients of ssh included.
    killpg(Pid::from_raw(running.pid().cast_signed()), Signal::SIGINT).unwrap();
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 130, "{ended:?}");
    assert_eq!(ended.out.matches("told\n").count(), 4, "{ended:?}");
}

#[test]
fn signals_reach_the_ranks_of_all_hosts() {
    let Some(cluster) = cluster("ends::signals_reach_the_ranks_of_all_hosts", 2) else { return };
    let mut running = start_script(&cluster, FOUR, "", TOLD);
    running.await_lines("up", 4);
    for _ in 0..2 {
        running.signal(Signal::SIGUSR1);
        running.await_lines("signalled", 4);
    }
    running.signal(Signal::SIGTERM);
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 143, "{ended:?}");
    assert_eq!(ended.out.matches("told\n").count(), 4, "{ended:?}");
}

/// Whether the system writes cores at all is up to the machine, and the same on both hosts.
#[test]
fn a_rank_of_another_host_dumps_core_where_one_of_this_host_does() {
    let test = "ends::a_rank_of_another_host_dumps_core_where_one_of_this_host_does";
    let Some(cluster) = cluster(test, 2) else { return };
    let crash = "cd /run; kill -SEGV $$";
    let crashes = |host: &str, options: &str| {
        let ended = start_script(&cluster, host, options, crash).finish();
        assert_eq!(ended.code, 128 + Signal::SIGSEGV as i32, "{ended:?}");
        let host = host.trim_end_matches(":1");
        names_first(&ended, 0, host, "sh was killed by SIGSEGV (signal 11)");
        ended.err.contains("SIGSEGV (signal 11), core dumped")
    };
    let [near, far] = ["h0:1", "h1:1"].map(|host| crashes(host, "--core-dumps"));
    assert_eq!(near, far);
    assert!(!crashes("h1:1", ""));
    if !near {
        skip(&format!("cluster::{test}"), "the system writes no cores, as core_pattern says");
    }
}

#[test]
fn a_second_ctrl_c_kills_the_ranks_of_all_hosts() {
    let test = "ends::a_second_ctrl_c_kills_the_ranks_of_all_hosts";
    let Some(cluster) = cluster(test, 2) else { return };
    let body = "trap 'echo no' TERM; echo up; while :; do sleep 1000 & wait; done";
    let mut running = start_script(&cluster, FOUR, "", body);
    running.await_lines("up", 4);
    running.signal(Signal::SIGINT);
    running.await_lines("no", 4);
    running.signal(Signal::SIGINT);
    let ended = running.finish_within(GONE);
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.err.contains("ranks 0-3 had not ended "), "{ended:?}");
}

#[test]
fn the_time_limit_holds_for_all_hosts() {
    let Some(cluster) = cluster("ends::the_time_limit_holds_for_all_hosts", 2) else { return };
    let running = start_script(&cluster, FOUR, "--timeout 5", "exec sleep 1000");
    let ended = running.finish_within(PROMPT);
    assert_eq!(ended.code, 124, "{ended:?}");
    assert!(ended.err.contains("still running: ranks 0-3"), "{ended:?}");
}

#[test]
fn processes_that_outlive_their_rank_are_killed_on_all_hosts() {
    let test = "ends::processes_that_outlive_their_rank_are_killed_on_all_hosts";
    let Some(cluster) = cluster(test, 2) else { return };
    let ended = script(&cluster, "", "setsid sleep 1000 & sleep 1000 & exit 0");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("that outlived their rank"), "{ended:?}");
}

/// A process of a job that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Launcher,
    Ssh,
    Agent,
}

impl Victim {
    fn pid(self, running: &Running<'_>) -> u32 {
        match self {
            Self::Launcher => running.pid(),
            Self::Ssh => running.process(0, "ssh", "h1"),
            Self::Agent => running.process(1, "ringrun", "--agent"),
        }
    }
}

#[test]
fn the_death_of_ringrun_of_ssh_or_of_an_agent_leaves_nothing() {
    let test = "ends::the_death_of_ringrun_of_ssh_or_of_an_agent_leaves_nothing";
    let Some(cluster) = cluster(test, 2) else { return };
    for victim in [Victim::Launcher, Victim::Ssh, Victim::Agent] {
        let mut running = start_script(&cluster, FOUR, "--kill-after 1", FAMILY);
        running.await_lines("up", 16);
        send(victim.pid(&running), Signal::SIGKILL);
        match victim {
            Victim::Launcher => {
                running.nothing_is_left(|process| process.pid != running.pid());
                assert_eq!(running.finish().code, -9);
            }
            Victim::Ssh => {
                running.signal(Signal::SIGTERM);
                assert_eq!(running.finish_within(PROMPT).code, 143);
            }
            Victim::Agent => {
                let ended = running.finish_within(PROMPT);
                assert!(ended.code > 0 && ended.err.contains("host h1 was lost"), "{ended:?}");
                assert!(ended.err.contains("and start the job again"), "{ended:?}");
            }
        }
    }
}

/// The agent has a connection of its own.
#[test]
fn the_death_of_ssh_costs_nothing() {
    let Some(cluster) = cluster("ends::the_death_of_ssh_costs_nothing", 2) else { return };
    let script = "trap 'echo told' USR2; echo up; while :; do sleep 1000 & wait; done";
    let mut running = start_script(&cluster, FOUR, "", script);
    running.await_lines("up", 4);
    let goes_on_without_ssh = || {
        // A handshake has fewer messages than these; signs of life go over it after that alone.
        let seen = RefCell::new(BTreeSet::new());
        until("the agent goes on over a connection of its own", || {
            seen.borrow_mut().extend(sent_bytes_beside_ssh(&cluster, 1));
            seen.borrow().len() > 4
        });
    };
    goes_on_without_ssh();
    send(Victim::Ssh.pid(&running), Signal::SIGKILL);
    running.signal(Signal::SIGUSR2);
    running.await_lines("told", 4);
    // Nor does the end of that connection: it is made anew, as where ssh still runs.
    goes_on_without_ssh();
    cluster.cut(1);
    std::thread::sleep(BREAKS);
    cluster.mend(1);
    running.signal(Signal::SIGUSR2);
    running.await_lines("told", 4);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish_within(PROMPT).code, 143);
}

/// The bytes that connections of this host have sent, as text, but for those of ssh.
fn sent_bytes_beside_ssh(cluster: &Cluster, host: usize) -> Vec<String> {
    let output = cluster.on(host, Command::new("ss").args(["-tiHO"])).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let own = said.lines().filter(|line| !line.contains(":22 ") && !line.contains(":ssh "));
    let sent = own.flat_map(|line| line.split(' ').find(|word| word.starts_with("bytes_sent:")));
    sent.map(str::to_owned).collect()
}

#[test]
fn status_of_a_job_shows_the_ranks_of_all_hosts() {
    let test = "ends::status_of_a_job_shows_the_ranks_of_all_hosts";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut running = start_body(&cluster, "--prometheus 0 --ras 0", "late 3");
    let port = metrics::address(&mut running).port();
    let ras_port = ras::address(&mut running).port();
    let pids = running.pids::<4>("up ");
    let mut status = Command::new(RINGRUN);
    status.args(["status", &pid_on_host(running.pid()).to_string()]);
    until("status shows all ranks in a call", || {
        let output = cluster.on(0, &status).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        ["h0", "h0", "h1", "h1"].iter().zip(pids).enumerate().all(|(rank, (host, pid))| {
            let label = format!("rank {rank} (host {host}, pid {pid})");
            let of_rank = |line: &&str| line.starts_with(&label) && line.contains("all_reduce");
            text.lines().any(|line| of_rank(&line))
        })
    });
    // The metrics, which only h0 has at its loopback address, show them too.
    let mut scrape = Command::new("bash");
    let get = "printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3";
    scrape.args(["-c", &format!("exec 3<> /dev/tcp/127.0.0.1/{port}; {get}; cat <&3")]);
    until("the metrics name the rank of the other host", || {
        let answer = String::from_utf8(cluster.on(0, &scrape).output().unwrap().stdout).unwrap();
        let samples = metrics::samples(&answer);
        let of =
            |name, rank, host| metrics::value(&samples, name, &[("rank", rank), ("host", host)]);
        of("awaited_seconds", "3", "h1") > 0.0 && of("call_seconds", "2", "h1") > 0.0
    });
    // The answer to a client of NCCL's RAS shows the same.
    let mut client = Command::new("bash");
    client
        .args(["-c", &format!("exec 3<> /dev/tcp/127.0.0.1/{ras_port}; echo status >&3; cat <&3")]);
    let text = String::from_utf8(cluster.on(0, &client).output().unwrap().stdout).unwrap();
    let late = format!("  Rank 3 -- process {} on node h1 (rank 3 of the job)", pids[3]);
    let table = "    0         1         2         2         4         4   RUNNING  MISMATCH";
    for line in [table, &late, "      2          2          4"] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish_within(PROMPT).code, 143);
}

/// The agent's connection stands a short outage; in a longer one it breaks and is made anew. No
/// byte of the ranks is lost.
#[test]
fn a_network_that_comes_back_costs_nothing() {
    let test = "ends::a_network_that_comes_back_costs_nothing";
    let Some(cluster) = cluster(test, 2) else { return };
    // The ranks write all the time, and more than the connection can hold.
    let script = "echo up; for part in $(seq 80); do seq 1000; sleep 0.1; done; echo end";
    let numbers: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    let expected = format!("up\n{}end\n", numbers.repeat(80));
    for outage in [Duration::from_secs(1), BREAKS] {
        let mut running = start_script(&cluster, FOUR, "--output-filename /run/copies", script);
        running.await_lines("up", 4);
        cluster.cut(1);
        std::thread::sleep(outage);
        cluster.mend(1);
        let ended = running.finish();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{outage:?}");
        for rank in 0..4 {
            let file = cluster.hosts[0].path(&format!("/run/copies/rank.{rank}/stdout"));
            assert!(std::fs::read_to_string(file).unwrap() == expected, "{outage:?}: {rank}");
        }
    }
}

/// The ranks of each host lose those of the other one, and the launcher its agent.
#[test]
fn a_network_that_is_cut_ends_the_job_on_both_sides() {
    let test = "ends::a_network_that_is_cut_ends_the_job_on_both_sides";
    let Some(cluster) = cluster(test, 2) else { return };
    let options = "-x RINGREDUCE_PEER_TIMEOUT=4";
    // Ranks that exchange data notice it themselves; others know nothing of the network.
    let mut busy = start_body(&cluster, options, "calls 100000 1000000000");
    busy.pids::<4>("up ");
    let mut idle = start_script(&cluster, FOUR, options, "echo up; exec sleep 1000");
    idle.await_lines("up", 4);
    cluster.cut(1);
    for mut running in [busy, idle] {
        let ended = running.end(PROMPT + Duration::from_secs(10));
        assert!(ended.code > 0 && ended.err.contains("h1"), "{ended:?}");
        // sshd waits for its client for as long as TCP does.
        let deadline = std::time::Instant::now() + PROMPT;
        until("the ranks have ended", || {
            assert!(std::time::Instant::now() < deadline, "{:#?}", cluster.processes());
            running.job.processes().is_empty()
        });
    }
    let left = || cluster.processes().into_iter().filter(|one| !one.command.starts_with("sshd: "));
    until("the agents have ended", || left().count() == 0);
}
