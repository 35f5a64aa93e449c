//! A job of three ranks that runs while a document asks about it.

use std::env::current_exe;
use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::output::compare;

/// How long the job's ranks wait for each other: long enough to ask.
const TIMEOUT_SECONDS: &str = "3";

/// Runs the job whose ranks are the test `docs::recipes::NAME`, and asks about it by `command`,
/// which gets the process number of the job's ringrun, until the answer is the one shown. Then the
/// job has to end with the output shown.
pub(crate) fn ask(
    name: &str,
    mut command: Command,
    answer: &[String],
    output: &[String],
) -> Result<(), String> {
    let job = start(name).map_err(|e| format!("{name} did not start: {e}"))?;
    command.arg(job.id().to_string());
    let answered = until(Instant::now() + Duration::from_secs(20), || {
        compare(answer, &text(&command.output().map_err(|e| e.to_string())?))
    });
    // The job ends at its timeout, so that nothing is left of it whatever was answered.
    let ended = job.wait_with_output().map_err(|e| e.to_string())?;
    answered.and_then(|()| compare(output, &text(&ended)))
}

fn start(name: &str) -> io::Result<Child> {
    let mut job = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    harness::forget_launcher(&mut job);
    job.args(["-n", "3"])
        .arg(current_exe()?)
        .args([&format!("docs::recipes::{name}"), "--exact", "--nocapture"])
        .env("RINGREDUCE_TIMEOUT", TIMEOUT_SECONDS)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// The first success of `try_it`, or its last failure before the deadline.
fn until(deadline: Instant, mut try_it: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    loop {
        match try_it() {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

/// Both streams.
pub(crate) fn text(output: &Output) -> String {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    said(&output.stdout) + &said(&output.stderr)
}
