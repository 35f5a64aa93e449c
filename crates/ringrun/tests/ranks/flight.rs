//! What ringrun says of a job's calls, while it runs and when it ends; and what ranks write down
//! for those who look later.

use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, gethostname};
use serde_json::Value;

use crate::bodies::{SWING, TIMEOUT};
use crate::harness::{AS_RANK, BODY, Ended, Job, LONG, PATIENCE, PROMPT, Process, RINGRUN};
use crate::harness::{all_end, myself, until};
use crate::system;
use ::harness::skip;

/// What `knock` is told: the name to knock at.
const DOOR: &str = "RANKS_DOOR";

/// A job of ringrun's whose ranks do `body`, once all are in full swing; and their numbers.
fn start(job: &Job, size: usize, body: &str, timeout: u64) -> (Process, Vec<u32>) {
    let mut command = job.command(RINGRUN);
    command.args(["-n", &size.to_string(), &myself()]).args(AS_RANK);
    command.env(BODY, body).env(TIMEOUT, timeout.to_string());
    let mut running = Process::start(command);
    let mut up: Vec<_> = (0..size).map(|_| running.line("up ")).collect();
    up.sort_by_key(|line| number(line, 1));
    (running, up.iter().map(|line| number(line, 2)).collect())
}

fn number(line: &str, word: usize) -> u32 {
    line.split_whitespace().nth(word).unwrap().parse().unwrap()
}

/// "rank 1 (host a, pid 5)".
fn who(rank: usize, pids: &[u32]) -> String {
    let host = gethostname().unwrap().into_string().unwrap();
    format!("rank {rank} (host {host}, pid {})", pids[rank])
}

fn verdict(ended: &Ended) -> &str {
    let line = ended.err.lines().find_map(|line| line.strip_prefix("  verdict: "));
    line.unwrap_or_else(|| panic!("no verdict: {ended:#?}"))
}

fn status(job: u32, options: &[&str]) -> Output {
    Command::new(RINGRUN).args(["status", &job.to_string()]).args(options).output().unwrap()
}

/// The lines of a job that has been asked.
fn asked(job: u32) -> Vec<String> {
    let output = status(job, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

#[test]
fn who_never_enters_is_named_while_it_hangs_and_at_the_end() {
    let job = Job::new();
    let (running, pids) = start(&job, 3, "late 1", 3);
    let call = format!("all_reduce #{}", SWING + 1);
    let expected = format!("{} never entered {call}; the others have waited ", who(1, &pids));
    let began = Instant::now();
    until("status names it", || asked(running.pid())[0].starts_with(&expected));
    println!("named after {:?}", began.elapsed());
    let lines = asked(running.pid());
    assert_eq!(lines.len(), 4, "{lines:#?}");
    let waits = format!("{}: in {call} (2 x float, sum) for ", who(0, &pids));
    assert!(lines[1].starts_with(&waits), "{lines:#?}");
    let idle = format!("{}: after all_reduce #{SWING} (2 x float, sum), ", who(1, &pids));
    assert!(lines[2].starts_with(&idle), "{lines:#?}");
    // The same when ringrun is signalled, which ends no rank.
    running.signal(Signal::SIGUSR1);
    let ended = all_end(vec![running], PROMPT).remove(0);
    let said = |line: &str| line.starts_with(&format!("ringrun: {expected}"));
    assert!(ended.err.lines().any(said), "{ended:#?}");
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    let (_, waited) = verdict(&ended).rsplit_once(" waited ").unwrap();
    let seconds: f64 = waited.strip_suffix(" s").unwrap().parse().unwrap();
    assert!((2.9..LONG.as_secs_f64()).contains(&seconds), "{ended:#?}");
    job.left_nothing();
}

#[test]
fn who_is_stopped_is_named() {
    let job = Job::new();
    let (running, pids) = start(&job, 3, "late 7", 60);
    send(pids[2], Signal::SIGSTOP);
    let expected = format!("{} is stopped ", who(2, &pids));
    until("status names it", || {
        let lines = asked(running.pid());
        lines[0].starts_with(&expected) && lines[0].contains("; the others have waited ")
    });
    running.signal(Signal::SIGINT);
    let ended = all_end(vec![running], PROMPT + Duration::from_secs(10)).remove(0);
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    job.left_nothing();
}

#[test]
fn who_is_killed_is_named_with_its_call() {
    let job = Job::new();
    let (running, pids) = start(&job, 3, "late 2", 60);
    // The call in which it waits for the one that is late.
    let waits = format!("{}: in all_reduce #{}", who(1, &pids), SWING + 1);
    until("it waits", || asked(running.pid())[2].starts_with(&waits));
    send(pids[1], Signal::SIGKILL);
    let ended = all_end(vec![running], PROMPT + Duration::from_secs(5)).remove(0);
    let call = format!("was killed by SIGKILL in all_reduce #{}", SWING + 1);
    let expected = format!("{} {call}, step ", who(1, &pids));
    assert!(verdict(&ended).starts_with(&expected), "{ended:#?}");
    assert!(verdict(&ended).contains(" rank 0") || verdict(&ended).contains(" rank 2"));
    job.left_nothing();
}

#[test]
fn calls_that_differ_are_named() {
    let job = Job::new();
    let mut command = job.command(RINGRUN);
    command.args(["-n", "3", &myself()]).args(AS_RANK).env(BODY, "differs count 1");
    let ended = all_end(vec![Process::start(command)], PATIENCE).remove(0);
    let said = verdict(&ended);
    assert!(said.contains(" called all_reduce #1 (1000 x float, sum), but rank 1 "), "{ended:#?}");
    assert!(said.ends_with(" all_reduce #1 (1001 x float, sum)"), "{ended:#?}");
    job.left_nothing();
}

#[test]
fn a_job_that_runs_tells_its_user_alone_and_who_asks_as_it_should() {
    const TEST: &str = "flight::a_job_that_runs_tells_its_user_alone_and_who_asks_as_it_should";
    if let Ok(door) = std::env::var(DOOR) {
        // Another user, whom this test starts.
        return println!("answer: {:?}", knock_at(&door, b"RINGSTAT\x01\0\0\0\0\0\0\0"));
    }
    let job = Job::new();
    let (running, pids) = start(&job, 2, "calls 2 1000000000", 60);
    let lines = asked(running.pid());
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (rank, line) in lines[1..].iter().enumerate() {
        assert!(line.starts_with(&format!("{}: ", who(rank, &pids))), "{lines:#?}");
        assert!(line.contains(" all_reduce #"), "{lines:#?}");
    }
    let document = status(running.pid(), &["--json"]).stdout;
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert!(document["format"] == 1 && document["summary"].is_string(), "{document}");
    for (rank, seen) in document["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&seen["rank"], &seen["pid"]), (&rank.into(), &pids[rank].into()), "{document}");
        assert_eq!(
            (&seen["state"], &seen["call"]["collective"]),
            (&"running".into(), &"all_reduce".into())
        );
        assert!(seen["call"]["number"].as_u64() > Some(0), "{document}");
    }
    let door = format!("ringrun-status-{}-{}", geteuid(), running.pid());
    // Nonsense, too little, too much of a question: no answer, and the next one gets one.
    for question in [&b"RINGSTAT\x02\0\0\0\0\0\0\0"[..], b"GET / HTTP/1.0\r\n\r\n", b"RING", b""] {
        assert_eq!(knock_at(&door, question), "", "{question:?}");
    }
    let right = b"RINGSTAT\x01\0\0\0\0\0\0\0";
    assert!(knock_at(&door, right).starts_with("RSTA"));
    if geteuid().is_root() {
        let mut stranger = Command::new(myself());
        stranger.args([
            "--exact",
            "flight::a_job_that_runs_tells_its_user_alone_and_who_asks_as_it_should",
            "--nocapture",
            "--quiet",
        ]);
        stranger.env(DOOR, &door).uid(65534).gid(65534);
        match stranger.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.contains("answer: \"\""), "{output:?}");
            }
            Err(cause) => skip(TEST, &cause.to_string()),
        }
    } else {
        skip(TEST, "only root can be another user");
    }
    assert_eq!(asked(running.pid()).len(), 3);
    let pid = running.pid();
    running.signal(Signal::SIGTERM);
    all_end(vec![running], PROMPT);
    let output = status(pid, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("no job of yours runs here"), "{text}");
    job.left_nothing();
}

/// What a job answers to these bytes.
fn knock_at(door: &str, question: &[u8]) -> String {
    let mut stream =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(door).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may have hung up already.
    let _ = stream.write_all(question);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
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
    for ended in all_end(ranks, PATIENCE) {
        assert_eq!(ended.code, 0, "{ended:?}");
    }
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
    for rank in &mut ranks {
        rank.line("up");
    }
    let waits = ranks.remove(0);
    assert_eq!(all_end(vec![waits], PROMPT)[0].code, 1);
    ranks[0].signal(Signal::SIGKILL);
    all_end(ranks, PROMPT);
    let failed = events(folder.path(), 0);
    let last = failed.iter().rfind(|event| event["cat"] == "call").unwrap();
    assert_eq!(last["args"]["failed"], true, "{last}");
    assert_eq!(last["args"]["call"], (SWING + 1) as u64);
    // And the last operations, a line each.
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
fn a_record_is_where_nobody_else_finds_it() {
    let job = Job::new();
    let (running, pids) = start(&job, 2, "late 1", 60);
    // Mapped, and by no descriptor that a child could inherit.
    for &pid in &pids {
        assert!(system::state(pid).is_some());
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
