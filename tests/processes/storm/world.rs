//! The processes of a trial.

use std::process::Stdio;
use std::time::Instant;

use super::rank::{AT_WORK, SEAT};
use super::trial::{Trial, Way};
use harness::hosts::Hosts;
use harness::processes::{Process, number};

/// What ranks do.
const BODY: &str = "storm::rank::body";

/// The ranks of a trial, at work.
pub(crate) fn start(trial: &Trial, hosts: Option<&Hosts>, until: Instant) -> Vec<Process> {
    let two = hosts.filter(|_| trial.way == Way::Mixed);
    let store = match two {
        Some(hosts) => hosts.store(),
        None => format!("unix:@storm-{}-{}", std::process::id(), number()),
    };
    let start = |rank| {
        let mut command = match two {
            Some(hosts) => hosts.process(trial.host(rank), BODY),
            None => harness::process(BODY),
        };
        let seat = format!("{} {} {rank} {store}", trial.seed, hosts.is_some());
        command.env(SEAT, seat).env("RINGREDUCE_CACHE", "off").stdin(Stdio::piped());
        command.env("RINGREDUCE_ALL_PAIRS", trial.all_pairs.to_string());
        Process::start(command)
    };
    let mut ranks: Vec<_> = (0..trial.n).map(start).collect();
    for rank in 0..trial.n {
        let began = ranks[rank].says_by(AT_WORK, until);
        let said: Vec<_> = ranks.iter().map(|rank| &rank.said).collect();
        assert!(began, "rank {rank} did not begin: {said:#?}");
    }
    ranks
}
