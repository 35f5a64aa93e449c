//! ringrun: starts the ranks of a job on this host, carries their input, output and signals,
//! ends them together, and says who failed first.
//!
//! `spellings` turns every launcher's words into ours, `cli` reads them, `spawn` starts the ranks,
//! `job` (a pure state machine) decides what each event means and `elastic` which rank is started
//! again, `launch` is the loop that feeds them, `output` prints whole lines, and `watch` is the
//! process that cleans up if this one is killed. When ringrun is gone, so is everything it started.
//! `flight` reads what the ranks record of their calls, for the last message and for `status`;
//! `plan` starts nothing. A library, so that ringbench launches itself; both use `names`, `page`,
//! `pages`, `sizes` and `spellings`.
#![deny(unsafe_code)]

mod cli;
mod commands;
mod elastic;
mod environment;
mod failure;
mod flight;
mod help;
mod hosts;
mod input;
mod job;
mod launch;
pub mod names;
mod output;
pub mod page;
pub mod pages;
mod plan;
mod proc;
mod program;
mod report;
mod signals;
pub mod sizes;
mod spawn;
pub mod spellings;
mod sys;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

/// Does what ringrun does when it is called with `words` behind its name. For a program that
/// launches itself; it must pass the words of [`is_watcher`] on before it looks at them.
#[must_use]
pub fn main(words: Vec<OsString>) -> ExitCode {
    if let Some(job) = watch::asked_for(&words) {
        return watch::run(&job);
    }
    let done = match commands::begin(&words) {
        true => commands::run(words),
        false => cli::read(words).and_then(|request| launch::run(&request)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report::say(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Is the program called as the watcher that it has started for its job?
#[must_use]
pub fn is_watcher(words: &[OsString]) -> bool {
    watch::asked_for(words).is_some()
}
