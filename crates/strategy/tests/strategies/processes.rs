//! Ranks that are processes of the test program itself, which execute the test `rank` of a module.

use std::process::{Command, Stdio};

use harness::process::Process;
use harness::processes::number;

/// The arguments that make this program a rank, by the `module_path!()` of its test.
pub(crate) fn as_rank(module: &str) -> [String; 4] {
    let (_, module) = module.split_once("::").unwrap();
    ["--exact".into(), format!("{module}::rank"), "--nocapture".into(), "--quiet".into()]
}

/// Starts `n` ranks and waits for their ends: whether each ended well, and its lines.
pub(crate) fn ends(
    module: &str,
    n: usize,
    transport: &str,
    plan: (&str, &str),
) -> Vec<(bool, String)> {
    start(module, n, transport, plan).into_iter().map(Process::end).collect()
}

/// Starts `n` ranks, which find `plan` in this variable.
pub(crate) fn start(
    module: &str,
    n: usize,
    transport: &str,
    (variable, plan): (&str, &str),
) -> Vec<Process> {
    let store = format!("unix:@strategy-{}-{}", std::process::id(), number());
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(as_rank(module)).env(variable, plan).stdin(Stdio::null());
        command.env("TEST_RANK", format!("{rank} {n} {store} {transport}"));
        Process::start(command)
    };
    (0..n).map(start).collect()
}
