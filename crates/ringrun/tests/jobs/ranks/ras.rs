//! `--ras`: what clients of NCCL's RAS are told, and what no client can do to a job.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::bodies::SWING;
use super::served::{self, connect, end, rest, send_some};
use crate::harness::{PATIENCE, PROMPT, Process, script, send, until};
use crate::job::Job;

/// The address that the job's ringrun has said.
pub(crate) fn address(running: &mut Process) -> SocketAddr {
    let line = running.error_line("ringrun: RAS status: ");
    let (_, address) = line.trim_end().split_once("status: ").unwrap();
    address.parse().unwrap()
}

/// All that the server answers to these bytes, after which the client sends no more.
fn ask(address: SocketAddr, commands: &[u8]) -> String {
    let mut stream = connect(address);
    send_some(&mut stream, commands);
    let _ = stream.shutdown(Shutdown::Write);
    rest(stream)
}

/// The document that a client of version 2 of the protocol gets.
fn document(address: SocketAddr) -> Value {
    let mut stream = connect(address);
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for (command, expected) in [
        ("CLIENT PROTOCOL 2\n", "SERVER PROTOCOL 2\n"),
        ("TIMEOUT 5\n", "OK\n"),
        ("SET FORMAT json\n", "OK\n"),
    ] {
        stream.write_all(command.as_bytes()).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, expected);
    }
    stream.write_all(b"STATUS\n").unwrap();
    serde_json::from_reader(answers).unwrap()
}

/// Three ranks of which rank 1 keeps the others waiting, their processes, and where to ask.
fn start(job: &Job) -> (Process, [u32; 3], SocketAddr) {
    let mut running = served::start(job, "--ras 0");
    let address = address(&mut running);
    let pids = running.pids("up ");
    (running, pids, address)
}

#[test]
fn a_stuck_rank_is_named_as_text_and_json() {
    let job = Job::new();
    let (running, pids, address) = start(&job);
    until("rank 1 is named", || document(address)["ringreduce"]["awaited_ranks"][0] == 1);
    let got = document(address);
    assert_eq!(got["communicators_count"], 1, "{got:#}");
    let one = &got["communicators"][0];
    assert_eq!((&one["size"], &one["missing_ranks_count"]), (&3.into(), &0.into()), "{got:#}");
    for (rank, pid) in pids.into_iter().enumerate() {
        let calls = if rank == 1 { SWING } else { SWING + 1 };
        let found = &one["ranks"][rank];
        assert_eq!((&found["rank"], &found["pid"]), (&rank.into(), &pid.into()), "{got:#}");
        assert_eq!(found["collective_counts"]["Collective"], calls, "{got:#}");
        assert_eq!(found["status"]["state"], "RUNNING", "{got:#}");
        assert_eq!(found["call"]["collective"], "all_reduce", "{got:#}");
    }
    let text = ask(address, b"status\r\n");
    let table = "    0         1         1         3         3         3   RUNNING  MISMATCH";
    for line in [table, "  2 ranks have launched up to operation "] {
        assert!(text.lines().any(|said| said.starts_with(line)), "{line}: {text}");
    }
    let late = format!("  Rank 1 -- process {} on node ", pids[1]);
    assert!(text.lines().any(|said| said.starts_with(&late)), "{text}");
    assert!(text.contains(" never entered all_reduce #"), "{text}");
    // A stopped process says nothing to NCCL's clients, and so is missing here.
    send(pids[2], Signal::SIGSTOP);
    until("rank 2 is missing", || {
        let missing = &document(address)["communicators"][0]["missing_ranks"];
        missing[0]["rank"] == 2 && missing[0]["status"]["state"] == "STOPPED"
    });
    let text = ask(address, b"VERBOSE STATUS\n");
    assert!(text.contains(&format!("process {} on node ", pids[2])), "{text}");
    assert!(text.contains("(rank 2 of the job) is stopped\n"), "{text}");
    assert!(text.contains("\nRanks\n=====\n\nrank 0 (host "), "{text}");
    send(pids[2], Signal::SIGCONT);
    end(job, running, address);
}

#[test]
fn no_command_does_harm() {
    if !::harness::share::makes_test(3) {
        return;
    }
    let job = Job::new();
    let (running, _, address) = start(&job);
    for (commands, expected) in [
        (&b"NONSENSE\nSTATUS \n"[..], "ERROR: Unknown command NONSENSE\nERROR: Unknown command "),
        (b"\x00\xff\x1b[2J\n", "ERROR: Unknown command ?\u{fffd}?[2J\n"),
        (b"GET / HTTP/1.1\r\n\r\n", "ERROR: Unknown command GET / HTTP/1.1\nERROR: "),
        (b"TIMEOUT soon\nTIMEOUT 0\n", "ERROR: Invalid timeout value soon\nOK\n"),
        (b"SET FORMAT xml\n", "ERROR: Invalid format xml\n"),
        (b"MONITOR\n", "ERROR: MONITOR is not supported by ringrun"),
        // A line without an end is no command.
        (b"STATUS", ""),
        (&[b'a'; 1 << 10], "ERROR: A command has 1 KiB at most\n"),
        // The answer comes although more was sent than is read as a command.
        (&[b'a'; 1 << 20], "ERROR: A command has 1 KiB at most\n"),
    ] {
        let answer = ask(address, commands);
        assert!(
            answer.starts_with(expected) && expected.is_empty() == answer.is_empty(),
            "{answer}"
        );
    }
    // A client that asks without end and does not read is left.
    let mut deaf = TcpStream::connect(address).unwrap();
    deaf.set_write_timeout(Some(PROMPT)).unwrap();
    let (began, many) = (Instant::now(), b"TIMEOUT 1\n".repeat(1 << 12));
    while deaf.write_all(&many).is_ok() {
        assert!(began.elapsed() < PATIENCE, "a client that does not read is not left");
    }
    // Many clients that ask nothing, that are slow or that leave do not delay one that asks.
    let mut idle: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    idle.iter_mut().step_by(3).for_each(|client| drop(client.write_all(b"STA")));
    idle.iter_mut().step_by(5).for_each(|client| drop(client.write_all(b"STATUS\n")));
    idle.iter().step_by(7).for_each(|client| drop(client.shutdown(Shutdown::Both)));
    let began = Instant::now();
    assert_eq!(document(address)["communicators_count"], 1);
    println!("answered beside 200 others after {:?}", began.elapsed());
    assert!(began.elapsed() < PROMPT);
    drop(idle);
    // A user may type: the connection stays, and ends with the status.
    let mut typed = TcpStream::connect(address).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    typed.write_all(b"STATUS\n").unwrap();
    let mut text = String::new();
    typed.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("ringreduce ") && text.contains("\nWarnings\n"), "{text}");
    end(job, running, address);
}

#[test]
fn a_port_in_use_is_named_and_both_servers_run_side_by_side() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let ran = script(&format!("-n 1 --prometheus 0 --ras {port}"), "echo ran");
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
    let why = format!(
        "ringrun: cannot serve RAS status at 127.0.0.1:{port} (--ras): another program has this \
         port: choose another one, or 0"
    );
    assert!(ran.err.lines().any(|line| line.starts_with(&why)), "{}", ran.err);
    let ran = script("-n 1 --prometheus 0 --ras [::1]:0", "echo ran");
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    for line in ["ringrun: metrics: http://127.0.0.1:", "ringrun: RAS status: [::1]:"] {
        assert!(ran.err.lines().any(|said| said.starts_with(line)), "{}", ran.err);
    }
    let ran = script("-n 1 --ras 0.0.0.0:0", "echo ran");
    assert!(ran.err.contains("--ras 0.0.0.0:0: there is no authentication"), "{}", ran.err);
}
