//! The network is cut while ranks connect: a rank that waits for the store gets an error long
//! before the timeout.

use std::io::stdin;
use std::process::Stdio;
use std::time::Instant;

use ringreduce::Communicator;
use ringreduce::bootstrap::{self, Server};

use super::rank::{AT_WORK, FAILED, now};
use super::world::START;
use super::{LATER, UNREACHABLE};
use harness::hosts::Hosts;
use harness::processes::Process;

const STORE: &str = "10.77.0.1:2000";

/// A process: rank 0, which reports when rank 1 has connected, and waits.
pub(crate) fn store() {
    let server = Server::new().unwrap();
    server.listen_tcp(STORE.parse().unwrap()).unwrap();
    let mut store = server.connect().unwrap();
    store.get("record/1", bootstrap::Instant::now() + START).unwrap().unwrap();
    eprintln!("{AT_WORK}");
    let _ = stdin().read_line(&mut String::new());
}

/// A process: rank 1 of 3.
pub(crate) fn rank() {
    let builder = Communicator::builder().rank(1).size(3).store(STORE);
    eprintln!("{FAILED}{} {}", now(), builder.build().unwrap_err());
}

#[test]
fn a_cut_network_ends_the_bootstrap_with_an_error() {
    let hosts = match Hosts::with_loss() {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "storm::bootstrap::a_cut_network_ends_the_bootstrap_with_an_error";
            return harness::skip(test, &why);
        }
    };
    let mut command = hosts.process(0, "storm::bootstrap::store");
    command.stdin(Stdio::piped());
    let mut first = Process::start(command);
    let mut second = Process::start(hosts.process(1, "storm::bootstrap::rank"));
    let met = first.says_by(AT_WORK, Instant::now() + START);
    assert!(met, "{:?}, {:?}", first.lines, second.lines);
    let since = now();
    hosts.drop_longer(1).unwrap();
    let ended = second.ends_by(Instant::now() + START).is_some();
    let failed = second.line_after(FAILED).and_then(|line| line.split_once(' '));
    let Some((at, error)) = failed.filter(|_| ended) else { panic!("{:?}", second.lines) };
    assert!(error.contains("its host is unreachable"), "{error}");
    let after = at.parse::<u64>().unwrap().saturating_sub(since);
    assert!(u128::from(after) < (UNREACHABLE + LATER).as_micros(), "{after} us: {error}");
}
