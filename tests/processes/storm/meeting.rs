//! A host that is cut off while ranks meet: who waits for its store is told so, long before the
//! timeout.

use std::io::stdin;
use std::process::Stdio;
use std::time::Instant;

use ringreduce::Communicator;
use ringreduce::bootstrap::Server;

use super::rank::{AT_WORK, TOLD, now};
use super::{LATER, START, UNREACHABLE};
use harness::hosts::Hosts;
use harness::processes::Process;

const STORE: &str = "10.77.0.1:2000";

/// Not a test of its own: rank 0, which says when rank 1 has come, and waits for the others.
pub(crate) fn keeps_the_store() {
    let server = Server::new().unwrap();
    server.listen_tcp(STORE.parse().unwrap()).unwrap();
    let mut store = server.connect().unwrap();
    store.get("record/1", Instant::now() + START).unwrap().unwrap();
    eprintln!("{AT_WORK}");
    let _ = stdin().read_line(&mut String::new());
}

/// Not a test of its own: rank 1 of 3.
pub(crate) fn meets() {
    let builder = Communicator::builder().rank(1).size(3).store(STORE);
    eprintln!("{TOLD}{} {}", now(), builder.build().unwrap_err());
}

#[test]
fn a_host_that_is_cut_off_while_ranks_meet() {
    let hosts = match Hosts::with_loss() {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "storm::meeting::a_host_that_is_cut_off_while_ranks_meet";
            return harness::skip(test, &why);
        }
    };
    let mut keeps = hosts.process(0, "storm::meeting::keeps_the_store");
    keeps.stdin(Stdio::piped());
    let mut first = Process::start(keeps);
    let mut second = Process::start(hosts.process(1, "storm::meeting::meets"));
    let met = first.says_by(AT_WORK, Instant::now() + START);
    assert!(met, "{:?}, {:?}", first.said, second.said);
    let since = now();
    hosts.drop_longer(1).unwrap();
    let ended = second.ends_by(Instant::now() + START).is_some();
    let told = second.said(TOLD).and_then(|told| told.split_once(' '));
    let Some((at, error)) = told.filter(|_| ended) else { panic!("{:?}", second.said) };
    assert!(error.contains("its host is unreachable"), "{error}");
    let after = at.parse::<u64>().unwrap().saturating_sub(since);
    assert!(u128::from(after) < (UNREACHABLE + LATER).as_micros(), "{after} us: {error}");
}
