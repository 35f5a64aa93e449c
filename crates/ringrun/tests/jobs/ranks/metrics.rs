//! `--prometheus`: what a job serves, to whom, and what no client can do to it.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ::harness::openmetrics::{Sample, read};
use nix::sys::signal::Signal;

use super::bodies::SWING;
use super::served::{self, connect, end, rest, send_some};
use crate::harness::{PROMPT, Process, script, send, start_script, until};
use crate::job::Job;

/// A client has so long for its request, and as long again for the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The address that the job's ringrun has said.
pub(crate) fn address(running: &mut Process) -> SocketAddr {
    let line = running.error_line("ringrun: metrics: http://");
    let (_, url) = line.trim_end().split_once("http://").unwrap();
    url.strip_suffix("/metrics").unwrap().parse().unwrap()
}

/// All that the server answers to these bytes.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    send_some(&mut stream, request);
    rest(stream)
}

/// The samples of an answer that has the metrics.
pub(crate) fn samples(answer: &str) -> Vec<Sample> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(head.contains(&format!("\r\nContent-Type: {content}\r\n")), "{answer}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{answer}");
    read(body).unwrap_or_else(|why| panic!("{why}: {body}"))
}

/// The value of a rank's metric; 0 if the rank has none.
pub(crate) fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |sample: &&Sample| {
        let is = |(label, text): &(&str, &str)| {
            sample.labels.get(*label).is_some_and(|found| found == text)
        };
        sample.name == format!("ringreduce_rank_{name}") && labels.iter().all(is)
    };
    samples.iter().find(has).map_or(0.0, |sample| sample.value)
}

/// Three ranks of which one keeps the others waiting, their processes, and where to ask.
fn start(job: &Job) -> (Process, [u32; 3], SocketAddr) {
    let mut running = served::start(job, "--prometheus 0");
    let address = address(&mut running);
    let pids = running.pids("up ");
    (running, pids, address)
}

#[test]
fn a_scrape_names_the_rank_that_the_others_wait_for() {
    let job = Job::new();
    let (running, pids, address) = start(&job);
    let of = |samples: &[Sample], name, rank| value(samples, name, &[("rank", rank)]);
    until("rank 1 is named", || {
        let samples = samples(&ask(address, GET));
        of(&samples, "awaited_seconds", "1") > 0.0 && of(&samples, "call_seconds", "2") > 0.0
    });
    let got = samples(&ask(address, GET));
    for (rank, begun, is_waiting) in [("0", SWING + 1, true), ("1", SWING, false)] {
        assert_eq!(of(&got, "calls_begun_total", rank), begun as f64, "{got:#?}");
        assert_eq!(of(&got, "calls_finished_total", rank), SWING as f64, "{got:#?}");
        assert_eq!(of(&got, "call_bytes", rank), if is_waiting { 8.0 } else { 0.0 }, "{got:#?}");
        assert_eq!(of(&got, "call_seconds", rank) > 0.0, is_waiting, "{got:#?}");
        assert_eq!(of(&got, "awaited_seconds", rank) > 0.0, !is_waiting, "{got:#?}");
        let info = value(&got, "call_info", &[("rank", rank), ("call", "all_reduce")]);
        assert_eq!(info == 1.0, is_waiting, "{got:#?}");
    }
    send(pids[2], Signal::SIGSTOP);
    until("rank 2 is stopped", || {
        let stopped = [("rank", "2"), ("state", "stopped")];
        value(&samples(&ask(address, GET)), "state", &stopped) == 1.0
    });
    send(pids[2], Signal::SIGCONT);
    assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").contains("at /metrics"));
    end(job, running, address);
}

#[test]
fn no_request_does_harm() {
    let job = Job::new();
    let (running, _, address) = start(&job);
    for (request, status) in [
        (&b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd"[..], "405 "),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "405 "),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404 "),
        (b"\x16\x03\x01\x02\x00 / HTTP/1.1\r\n\r\n", "400 "),
        // The answer comes although more was sent than is read as a request.
        (&[b'a'; 1 << 20], "431 "),
        (&[b'a'; 8 << 10], "431 "),
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    // A client without a whole request is left, a slow one too.
    for request in [&b""[..], b"GET /metrics HTTP/1.1\r\nHost:"] {
        let began = Instant::now();
        assert_eq!(ask(address, request), "");
        assert!((CLIENT_TIMEOUT..PROMPT).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
    let mut slow = TcpStream::connect(address).unwrap();
    let began = Instant::now();
    while slow.write_all(b"a").is_ok() {
        assert!(began.elapsed() < PROMPT, "a client that sends a byte at a time is not left");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Many clients that ask nothing do not delay one that does.
    let mut idle: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let began = Instant::now();
    samples(&ask(address, GET));
    println!("answered beside 200 others after {:?}", began.elapsed());
    assert!(began.elapsed() < PROMPT);
    // Nor do many that ask and do not read.
    idle.iter_mut().for_each(|client| drop(client.write_all(GET)));
    samples(&ask(address, GET));
    drop(idle);
    end(job, running, address);
}

#[test]
fn restarts_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let body = format!(
        "[ $RINGREDUCE_RANK = 1 ] && mkdir {} 2> /dev/null && exit 4; exec sleep 1000",
        first.display()
    );
    let mut running = start_script("--elastic 1:2 --prometheus 127.0.0.1:0", &body);
    let address = address(&mut running);
    until("rank 1 was started again", || {
        let samples = samples(&ask(address, GET));
        let restarts = ["0", "1"].map(|rank| value(&samples, "restarts_total", &[("rank", rank)]));
        let is_up = value(&samples, "state", &[("rank", "1"), ("state", "running")]);
        (restarts, is_up) == ([0.0, 1.0], 1.0)
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().code, 143);
}

#[test]
fn an_address_that_cannot_be_taken_ends_the_job_before_it_begins() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    for (address, why) in [
        (port.to_string(), "another program has this port: choose another one, or 0"),
        ("192.0.2.1:0".into(), "choose an address of this host"),
    ] {
        let ran = script(&format!("-n 1 --prometheus {address}"), "echo ran");
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
        let said = format!("(--prometheus): {why}");
        let is_said = |line: &str| {
            line.starts_with("ringrun: cannot serve metrics at ") && line.contains(&said)
        };
        assert!(ran.err.lines().any(is_said), "{}", ran.err);
    }
}

#[test]
fn an_address_that_others_reach_is_warned_of() {
    let ran = script("-n 1 --prometheus 0.0.0.0:0", "echo ran");
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    assert!(ran.err.contains("--prometheus 0.0.0.0:0: there is no authentication"), "{}", ran.err);
    let ran = script("-n 1 --quiet --prometheus [::1]:0", "echo ran");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}
