//! A job of three ranks that runs while a document asks about it.

use std::env::current_exe;
use std::io::{self, Read};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::output::compare;

/// How long the job's ranks wait for each other: long enough to ask.
const TIMEOUT_SECONDS: &str = "3";

/// Where the servers of a job listen.
pub(crate) struct Addresses {
    pub(crate) metrics: String,
    pub(crate) ras: String,
}

/// Runs the job whose ranks are the test `docs::recipes::NAME`, and asks about it by the command
/// that `command` makes of the process number of its ringrun and the addresses of its servers,
/// until the answer is the one shown. Then the job has to end with the output shown, if any.
pub(crate) fn ask(
    name: &str,
    command: impl Fn(u32, &Addresses) -> Command,
    answer: &[String],
    output: Option<&[String]>,
) -> Result<(), String> {
    let mut job = start(name).map_err(|e| format!("{name} did not start: {e}"))?;
    let addresses = addresses(&mut job).map_err(|e| format!("{name}: its first messages: {e}"))?;
    let mut command = command(job.id(), &addresses);
    let answered = until(Instant::now() + Duration::from_secs(20), || {
        compare(answer, &text(&command.output().map_err(|e| e.to_string())?))
    });
    // The job ends at its timeout, so that nothing is left of it whatever was answered.
    let ended = job.wait_with_output().map_err(|e| e.to_string())?;
    answered.and_then(|()| output.map_or(Ok(()), |output| compare(output, &text(&ended))))
}

/// The addresses of a job's servers, which its first messages have.
fn addresses(job: &mut Child) -> io::Result<Addresses> {
    let metrics = next_line(job)?;
    let address = metrics.strip_prefix("ringrun: metrics: http://");
    let address = address.and_then(|rest| rest.strip_suffix("/metrics"));
    let metrics = address.map(str::to_owned).ok_or_else(|| io::Error::other(metrics.clone()))?;
    let ras = next_line(job)?;
    let address = ras.strip_prefix("ringrun: RAS status: ");
    let ras = address.map(str::to_owned).ok_or_else(|| io::Error::other(ras.clone()))?;
    Ok(Addresses { metrics, ras })
}

/// The next line of a job's errors.
fn next_line(job: &mut Child) -> io::Result<String> {
    let mut line = vec![];
    // Bytes behind the line are of the next one, or of the job's output.
    for byte in job.stderr.as_mut().into_iter().flat_map(Read::bytes) {
        match byte? {
            b'\n' => break,
            byte => line.push(byte),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn start(name: &str) -> io::Result<Child> {
    let mut job = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    harness::forget_launcher(&mut job);
    job.args(["-n", "3", "--prometheus", "0", "--ras", "0"])
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
