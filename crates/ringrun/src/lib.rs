//! ringrun: starts the ranks of a job on this host, passes on their input, output and signals, ends
//! them together, and names the rank that failed first. No process of a job outlives ringrun.
//!
//! `cli` reads the command line, with the flags of other launchers; `launch` starts the ranks and
//! runs the loop of the job, with pure state machines for the job and for restarts, the thread that
//! prints the ranks' output, the watcher process that cleans up if the launcher is killed, and PMI,
//! by which programs of MPICH start.
//! `status` reads the ranks' records, for the last message and for `ringrun status`. `plan`,
//! `secret`, `doctor` and `topo` start nothing, but for `host_links`, by which the last two look at
//! several hosts. A library, so that ringbench launches itself.
#![deny(unsafe_code)]

mod cli;
mod doctor;
mod document;
mod failure;
mod host_links;
mod launch;
mod plan;
mod secret;
mod status;
mod topo;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::subcommands;
use launch::{agents, message, watcher};

/// Runs ringrun with these arguments. A program that launches itself by this function must first
/// pass on the arguments for which [`is_own_process`] is true.
#[must_use]
pub fn main(words: Vec<OsString>) -> ExitCode {
    if let Some(job) = watcher::watched_job(&words) {
        return watcher::run(&job);
    }
    if is_agent(&words) {
        return agents::run(&words[1..]);
    }
    if host_links::is_rank(&words) {
        return host_links::run_rank();
    }
    let done = match subcommands::begins_with_subcommand(&words) {
        true => subcommands::run(words),
        false => cli::read(words).and_then(|request| launch::run(&request)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // The message must not wait for a thread that ends with this process.
            message::route(None);
            message::say(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// True for the arguments of the processes that a launcher starts beside the ranks: its watcher,
/// and the agents on other hosts.
#[must_use]
pub fn is_own_process(words: &[OsString]) -> bool {
    watcher::watched_job(words).is_some() || is_agent(words)
}

fn is_agent(words: &[OsString]) -> bool {
    matches!(words, [first, ..] if first == agents::FLAG)
}
