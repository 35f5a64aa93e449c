//! `ringrun status`: asks a job that runs how it is.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::desk::{address, is_own, prefix};
use super::frame::{FRAME, Frame, question};
use crate::failure::Failure;

/// How long a job may take to answer: it may have to be scheduled among many ranks.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any job says.
const MOST: usize = 1 << 22;

const HELP: &str = "\
Say which call each rank of a running job is in, and who keeps the others waiting.

Usage: ringrun status [JOB]

JOB is the number of the ringrun process; it may be left out if only one job of yours runs here.
SIGUSR1 makes ringrun say the same.";

/// Prints what the job says.
///
/// # Errors
/// If there is no such job of this user, or it does not answer.
pub(crate) fn run(words: &[OsString]) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    let job = match words {
        [word] if word == "--help" || word == "-h" => {
            // A closed output is nothing to fail for.
            let _ = writeln!(out, "{HELP}");
            return Ok(0);
        }
        [word] => word.to_str().and_then(|word| word.parse().ok()).ok_or_else(|| {
            let word = word.to_string_lossy();
            Failure::Usage(format!("status {word}: expected the number of a ringrun process"))
        })?,
        [] => only_job()?,
        _ => return Err(Failure::Usage("status: expected at most one JOB".into())),
    };
    let lines = ask(job).map_err(|cause| match cause.kind() {
        io::ErrorKind::ConnectionRefused => {
            Failure::NotRunning(format!("no job of yours runs here as process {job}"))
        }
        _ => Failure::system(format!("ask job {job}"))(cause),
    })?;
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    Ok(0)
}

/// The only job of this user in sight.
fn only_job() -> Result<u32, Failure> {
    let names = fs::read_to_string("/proc/net/unix").map_err(Failure::system("look for jobs"))?;
    let ours = format!("@{}", prefix());
    let number = |line: &str| line.rsplit(' ').next()?.strip_prefix(&ours)?.parse().ok();
    let mut jobs: Vec<u32> = names.lines().filter_map(number).collect();
    jobs.sort_unstable();
    jobs.dedup();
    match jobs[..] {
        [job] => Ok(job),
        [] => Err(Failure::NotRunning("no job of yours runs here".into())),
        _ => Err(Failure::Usage(format!("status: which JOB? There are {jobs:?}"))),
    }
}

fn ask(job: u32) -> io::Result<Vec<String>> {
    let mut stream = UnixStream::connect_addr(&address(job)?)?;
    if !is_own(&stream) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&question())?;
    let (mut lines, mut line, mut bytes, mut total) = (vec![], vec![], [0; FRAME], 0);
    while total < MOST {
        stream.read_exact(&mut bytes)?;
        let frame = Frame::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        line.extend_from_slice(frame.text);
        total += FRAME;
        if frame.ends_line {
            // Nothing that a terminal would obey.
            let text = String::from_utf8_lossy(&line).replace(char::is_control, "?");
            lines.push(text);
            line.clear();
        }
        if frame.ends {
            return Ok(lines);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}
