//! `ringrun status`: asks a running job for its status.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, socket,
};
use ringreduce::codec::printable;

use super::server::{AnswerFormat, is_same_user, question, socket_name, socket_prefix};
use crate::failure::Failure;

/// A job may take so long to answer: its launcher competes with many ranks for CPUs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any job's answer has.
const MAX_ANSWER_BYTES: u64 = 1 << 22;

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
    /// exit_status or signal of one that ended, call: null or {collective, communicator: null or
    /// its name, number, is_message, uneven, count, type, op, root, state: entered, at_step, done
    /// or failed, seconds: since it began, or since it ended, step, toward: null or {how, rank: of
    /// its communicator}}}]}
    #[arg(long, verbatim_doc_comment)]
    json: bool,
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "expected the number of a ringrun process".into())
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let job = options.job.map_or_else(only_job, Ok)?;
    let format = if options.json { AnswerFormat::Json } else { AnswerFormat::Text };
    let lines = ask(job, format).map_err(|cause| match cause.kind() {
        io::ErrorKind::ConnectionRefused => {
            Failure::NotRunning(format!("no job of yours runs here as process {job}"))
        }
        io::ErrorKind::WouldBlock => Failure::NotRunning(format!(
            "job {job} does not answer: its ringrun is stopped, or another user has its name"
        )),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Failure::NotRunning(format!(
            "job {job} does not answer as expected: it has just ended, or another version of \
             ringrun runs it, which must be the one to ask"
        )),
        _ => Failure::system(format!("ask job {job}"))(cause),
    })?;
    let mut out = io::stdout().lock();
    for line in lines {
        // A closed output is ignored.
        let _ = writeln!(out, "{line}");
    }
    Ok(0)
}

/// The jobs of this user on this host, by the numbers of their launchers.
pub(crate) fn jobs() -> io::Result<Vec<u32>> {
    let names = fs::read_to_string("/proc/net/unix")?;
    let ours = format!("@{}", socket_prefix());
    let number = |line: &str| line.rsplit(' ').next()?.strip_prefix(&ours)?.parse().ok();
    let mut jobs: Vec<u32> = names.lines().filter_map(number).collect();
    jobs.sort_unstable();
    jobs.dedup();
    // Another user can take such names too, and then accept nothing.
    jobs.retain(|&job| connect(job, Duration::ZERO).is_ok());
    Ok(jobs)
}

/// The only job of this user on this host.
fn only_job() -> Result<u32, Failure> {
    let jobs = jobs().map_err(Failure::system("look for jobs"))?;
    match jobs[..] {
        [job] => Ok(job),
        [] => Err(Failure::NotRunning("no job of yours runs here".into())),
        _ => Err(Failure::usage("status", &format!("which JOB? There are {jobs:?}"))),
    }
}

/// A connection to the launcher of a job of this user, which has so long to accept.
fn connect(job: u32, patience: Duration) -> io::Result<UnixStream> {
    let (kind, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
    let stream = UnixStream::from(socket(AddressFamily::Unix, kind, flags, None)?);
    stream.set_nonblocking(patience.is_zero())?;
    stream.set_write_timeout(Some(patience).filter(|patience| !patience.is_zero()))?;
    connect_to(stream.as_raw_fd(), &UnixAddr::new_abstract(socket_name(job).as_bytes())?)?;
    stream.set_nonblocking(false)?;
    if !is_same_user(&stream) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn ask(job: u32, format: AnswerFormat) -> io::Result<Vec<String>> {
    let mut stream = connect(job, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&question(format))?;
    let mut answer = vec![];
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let lines: Vec<String> = serde_json::from_slice(&answer)?;
    Ok(lines.iter().map(|line| printable(line)).collect())
}
