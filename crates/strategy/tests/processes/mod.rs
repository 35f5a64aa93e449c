//! Ranks that are processes of the test program itself, which execute its test `rank`.

use std::process::{Command, Stdio};

use harness::process::Process;
use harness::processes::number;

/// What makes this program a rank.
pub(crate) const AS_RANK: [&str; 4] = ["--exact", "rank", "--nocapture", "--quiet"];

/// Starts `n` ranks and waits for their ends: whether each ended well, and its lines.
pub(crate) fn ends(n: usize, transport: &str, plan: (&str, &str)) -> Vec<(bool, String)> {
    start(n, transport, plan).into_iter().map(Process::end).collect()
}

/// Starts `n` ranks, which find `plan` in this variable.
pub(crate) fn start(n: usize, transport: &str, (variable, plan): (&str, &str)) -> Vec<Process> {
    let store = format!("unix:@strategy-{}-{}", std::process::id(), number());
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(AS_RANK).env(variable, plan).stdin(Stdio::null());
        command.env("TEST_RANK", format!("{rank} {n} {store} {transport}"));
        Process::start(command)
    };
    (0..n).map(start).collect()
}
