//! The status of a job's calls, while the job runs and when it ends; and the traces and records
//! that ranks leave in files.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen};
use nix::unistd::{geteuid, gethostname};
use serde_json::Value;

use ::harness::hosts::Hosts;
use ::harness::skip;

use super::bodies::{SWING, TIMEOUT};
use crate::harness::{
    Ended, LONG, PATIENCE, PROMPT, Process, RINGRUN, all_end, all_right, all_up, myself, send,
    until,
};
use crate::job::Job;
use crate::procfs;

/// The variable with the name of the socket to ask, for the process of another user.
const SOCKET: &str = "RANKS_SOCKET";

/// A job of ranks in full swing, and their processes.
fn start<const N: usize>(job: &Job, body: &str, timeout: u64) -> (Process, [u32; N]) {
    let mut command = job.launch(&format!("-n {N}"), body);
    command.env(TIMEOUT, timeout.to_string());
    let mut running = Process::start(command);
    let pids = running.pids("up ");
    (running, pids)
}

/// "rank 1 (host a, pid 5)".
fn label(rank: usize, pids: &[u32]) -> String {
    let host = gethostname().unwrap().into_string().unwrap();
    format!("rank {rank} (host {host}, pid {})", pids[rank])
}

/// The right question for the status as text.
const QUESTION: &[u8] = b"RINGSTAT\x02\0\0\0\0\0\0\0";

fn verdict(ended: &Ended) -> &str {
    let line = ended.err.lines().find_map(|line| line.strip_prefix("  verdict: "));
    line.unwrap_or_else(|| panic!("no verdict: {ended:#?}"))
}

fn status(job: u32, options: &[&str]) -> Output {
    Command::new(RINGRUN).args(["status", &job.to_string()]).args(options).output().unwrap()
}

/// The lines of a job's status.
fn status_lines(job: u32) -> Vec<String> {
    let output = status(job, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_rank_that_never_enters_a_call_is_named_by_status_and_at_the_end() {
    let job = Job::new();
    let (running, pids) = start::<3>(&job, "late 1", 3);
    let call = format!("all_reduce #{}", SWING + 1);
    let expected = format!("{} never entered {call}; the others have waited ", label(1, &pids));
    let began = Instant::now();
    until("status names it", || status_lines(running.pid())[0].starts_with(&expected));
    println!("named after {:?}", began.elapsed());
    let lines = status_lines(running.pid());
    assert_eq!(lines.len(), 4, "{lines:#?}");
    let waits = format!("{}: in {call} (2 x float, sum) for ", label(0, &pids));
    assert!(lines[1].starts_with(&waits), "{lines:#?}");
    let idle = format!("{}: after all_reduce #{SWING} (2 x float, sum), ", label(1, &pids));
    assert!(lines[2].starts_with(&idle), "{lines:#?}");
    // SIGUSR1 to ringrun gives the same, and ends no rank.
    running.signal(Signal::SIGUSR1);
    let ended = all_end(vec![running], PROMPT).remove(0);
    let is_status = |line: &str| line.starts_with(&format!("ringrun: {expected}"));
    assert!(ended.err.lines().any(is_status), "{ended:#?}");
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    let (_, waited) = verdict(&ended).rsplit_once(" waited ").unwrap();
    let seconds: f64 = waited.strip_suffix(" s").unwrap().parse().unwrap();
    assert!((2.9..LONG.as_secs_f64()).contains(&seconds), "{ended:#?}");
    job.left_nothing();
}

#[test]
fn a_stopped_rank_is_named() {
    let job = Job::new();
    let (running, pids) = start::<3>(&job, "late 7", 60);
    send(pids[2], Signal::SIGSTOP);
    let expected = format!("{} is stopped ", label(2, &pids));
    until("status names it", || {
        let lines = status_lines(running.pid());
        lines[0].starts_with(&expected) && lines[0].contains("; the others have waited ")
    });
    running.signal(Signal::SIGINT);
    let ended = all_end(vec![running], PROMPT + Duration::from_secs(10)).remove(0);
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    job.left_nothing();
}

#[test]
fn a_killed_rank_is_named_with_its_call() {
    let job = Job::new();
    let (running, pids) = start::<3>(&job, "late 2", 60);
    // Rank 1 is in the call in which it waits for the idle rank.
    let waits = format!("{}: in all_reduce #{}", label(1, &pids), SWING + 1);
    until("it waits", || status_lines(running.pid())[2].starts_with(&waits));
    send(pids[1], Signal::SIGKILL);
    let ended = all_end(vec![running], PROMPT + Duration::from_secs(5)).remove(0);
    let call = format!("was killed by SIGKILL in all_reduce #{}", SWING + 1);
    let expected = format!("{} {call}, step ", label(1, &pids));
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    assert!(verdict(&ended).contains(" rank 0") || verdict(&ended).contains(" rank 2"));
    job.left_nothing();
}

#[test]
fn a_running_job_answers_right_questions_of_its_own_user_alone() {
    const TEST: &str = "ranks::status::a_running_job_answers_right_questions_of_its_own_user_alone";
    if let Ok(socket) = std::env::var(SOCKET) {
        // This is the process of the other user, which the test starts below.
        return println!("answer: {:?}", answer(&socket, QUESTION));
    }
    let job = Job::new();
    let (running, pids) = start::<2>(&job, "calls 2 1000000000", 60);
    let lines = status_lines(running.pid());
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (rank, line) in lines[1..].iter().enumerate() {
        assert!(line.starts_with(&format!("{}: ", label(rank, &pids))), "{lines:#?}");
        assert!(line.contains(" all_reduce #"), "{lines:#?}");
    }
    let document = status(running.pid(), &["--json"]).stdout;
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert!(document["format"] == 1 && document["summary"].is_string(), "{document}");
    for (rank, status) in document["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&status["rank"], &status["pid"]),
            (&rank.into(), &pids[rank].into()),
            "{document}"
        );
        assert_eq!(
            (&status["state"], &status["call"]["collective"]),
            (&"running".into(), &"all_reduce".into())
        );
        assert!(status["call"]["number"].as_u64() > Some(0), "{document}");
    }
    let socket = format!("ringrun-status-{}-{}", geteuid(), running.pid());
    // A wrong, short or long question gets no answer, and the next question gets one.
    for question in [&b"RINGSTAT\x01\0\0\0\0\0\0\0"[..], b"GET / HTTP/1.0\r\n\r\n", b"RING", b""] {
        assert_eq!(answer(&socket, question), "", "{question:?}");
    }
    assert!(answer(&socket, QUESTION).starts_with("[\""));
    if geteuid().is_root() {
        let mut other_user = Command::new(myself());
        other_user.args(["--exact", TEST, "--nocapture", "--quiet"]);
        other_user.env(SOCKET, &socket).uid(65534).gid(65534);
        match other_user.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.contains("answer: \"\""), "{output:?}");
            }
            Err(cause) => skip(TEST, &cause.to_string()),
        }
    } else {
        skip(TEST, "only root can be another user");
    }
    assert_eq!(status_lines(running.pid()).len(), 3);
    let pid = running.pid();
    running.signal(Signal::SIGTERM);
    all_end(vec![running], PROMPT);
    let output = status(pid, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("no job of yours runs here"), "{text}");
    job.left_nothing();
}

/// The answer of a job to these bytes.
fn answer(socket: &str, question: &[u8]) -> String {
    let mut stream =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The job may have closed the connection.
    let _ = stream.write_all(question);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_socket_of_another_user_is_no_job() {
    const TEST: &str = "ranks::status::a_socket_of_another_user_is_no_job";
    if let Ok(socket) = std::env::var(SOCKET) {
        // This is the process of the other user, which accepts no connection: the second one that
        // comes would wait for ever.
        let address = UnixAddr::new_abstract(socket.as_bytes()).unwrap();
        let (kind, flags) = (SockType::Stream, SockFlag::empty());
        let listener = nix::sys::socket::socket(AddressFamily::Unix, kind, flags, None).unwrap();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let address = SocketAddr::from_abstract_name(socket).unwrap();
        let _first = UnixStream::connect_addr(&address).unwrap();
        println!("\nholds it");
        loop {
            std::thread::park();
        }
    }
    // On another host no other test has a job.
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return skip(TEST, &reason),
    };
    let mut holder = Command::new("setpriv");
    holder.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(myself());
    holder.args(["--exact", TEST, "--nocapture", "--quiet"]);
    holder.env(SOCKET, format!("ringrun-status-{}-4242", geteuid()));
    let mut holder = Process::start(hosts.0[0].on(&holder));
    holder.await_lines("holds it", 1);
    for (job, said) in [(None, "no job of yours runs here"), (Some("4242"), "does not answer")] {
        let mut status = Command::new(RINGRUN);
        status.arg("status").args(job);
        let output = hosts.0[0].on(&status).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(said), "{output:?}");
    }
}

#[test]
fn a_trace_has_every_call_and_is_whole_after_a_failure() {
    let (job, folder) = (Job::new(), tempfile::TempDir::new().unwrap());
    let calls = 50;
    let trace = |command: &mut Command| {
        command.env("RINGREDUCE_TRACE", folder.path());
        command.env("RINGREDUCE_RECORD_DIR", folder.path());
        command.env(TIMEOUT, "2");
    };
    let ranks = job.world_with(2, "shm", &format!("calls 1000 {calls}"), trace);
    all_right(ranks);
    for rank in 0..2 {
        let events = events(folder.path(), rank);
        let called: Vec<_> = events.iter().filter(|event| event["cat"] == "call").collect();
        let numbers: Vec<_> = called.iter().map(|call| call["args"]["call"].as_u64()).collect();
        assert_eq!(numbers, (1..=calls).map(Some).collect::<Vec<_>>());
        assert!(called.iter().all(|call| call["name"] == "all_reduce" && call["pid"] == rank));
        assert!(events.iter().filter(|event| event["cat"] == "step").count() >= calls as usize);
    }
    let left = fs::read_dir(folder.path()).unwrap().flatten();
    assert!(left.into_iter().all(|file| file.file_name().to_string_lossy().ends_with(".json")));
    let mut ranks = job.world_with(2, "shm", "late 1", trace);
    all_up(&mut ranks);
    let waits = ranks.remove(0);
    assert_eq!(all_end(vec![waits], PROMPT)[0].code, 1);
    ranks[0].signal(Signal::SIGKILL);
    all_end(ranks, PROMPT);
    let failed = events(folder.path(), 0);
    let last = failed.iter().rfind(|event| event["cat"] == "call").unwrap();
    assert_eq!(last["args"]["failed"], true, "{last}");
    assert_eq!(last["args"]["call"], (SWING + 1) as u64);
    // The record has the last operations, a line each.
    let text = fs::read_to_string(folder.path().join("rank.0.jsonl")).unwrap();
    let ops: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ops.len(), SWING + 1);
    let last = ops.last().unwrap();
    assert_eq!((&last["state"], &last["collective"]), (&"failed".into(), &"all_reduce".into()));
    job.left_nothing();
}

fn events(folder: &std::path::Path, rank: u32) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(format!("rank.{rank}.json"))).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_record_is_not_inherited_by_children() {
    let job = Job::new();
    let (running, pids) = start::<2>(&job, "late 1", 60);
    // The descriptor of the record is closed on exec, so that no child inherits it.
    for &pid in &pids {
        assert!(procfs::state(pid).is_some());
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        let mut lines = environment.split('\0');
        let fd = lines.find_map(|line| line.strip_prefix("RINGREDUCE_RECORD_FD=")).unwrap();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & libc::O_CLOEXEC, 0, "{info}");
    }
    running.signal(Signal::SIGTERM);
    all_end(vec![running], PROMPT);
    job.left_nothing();
}
