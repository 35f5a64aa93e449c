//! `ringrun status`: asks a job that runs how it is.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;

use super::desk::{address, is_own, prefix};
use super::frame::{FRAME, Form, Frame, question};
use crate::failure::Failure;

/// How long a job may take to answer: it may have to be scheduled among many ranks.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any job says.
const MOST: usize = 1 << 22;

/// Say which call each rank of a running job is in, and which rank keeps the others waiting.
///
/// SIGUSR1 makes the job's own ringrun say the same.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The number of the ringrun process; may be left out if only one job of yours runs here
    #[arg(value_name = "JOB", value_parser = number)]
    job: Option<u32>,

    /// Say it as JSON
    ///
    /// {format, summary, ranks: [{rank, host, pid, state: running, stopped or ended,
    /// exit_status or signal of one that ended, call: null or {collective, number, is_message,
    /// uneven, count, type, op, root, state: entered, at_step, done or failed, seconds: since it
    /// began, or since it ended, step, toward: null or {how, rank: of its communicator}}}]}
    #[arg(long, verbatim_doc_comment)]
    json: bool,
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "expected the number of a ringrun process".into())
}

/// Prints what the job says.
///
/// # Errors
/// If there is no such job of this user, or it does not answer.
pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let job = options.job.map_or_else(only_job, Ok)?;
    let form = if options.json { Form::Json } else { Form::Words };
    let lines = ask(job, form).map_err(|cause| match cause.kind() {
        io::ErrorKind::ConnectionRefused => {
            Failure::NotRunning(format!("no job of yours runs here as process {job}"))
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Failure::NotRunning(format!(
            "job {job} does not answer as expected: it has just ended, or another version of \
             ringrun runs it, which must be the one to ask"
        )),
        _ => Failure::system(format!("ask job {job}"))(cause),
    })?;
    let mut out = io::stdout().lock();
    for line in lines {
        // A closed output is nothing to fail for.
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
        _ => Err(Failure::usage("status", &format!("which JOB? There are {jobs:?}"))),
    }
}

fn ask(job: u32, form: Form) -> io::Result<Vec<String>> {
    let mut stream = UnixStream::connect_addr(&address(job)?)?;
    if !is_own(&stream) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&question(form))?;
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
