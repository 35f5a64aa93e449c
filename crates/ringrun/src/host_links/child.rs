//! A job that a subcommand starts: ringrun as a child process, whose output is read.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::launch::sys;

/// The time that a job has to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of output and of errors that are kept.
const MAX_BYTES: u64 = 64 << 20;

/// A job that has ended.
pub(super) struct EndedJob {
    pub(super) output: String,
    /// The messages of the job's ringrun and what ranks have written to their standard error.
    errors: String,
    has_succeeded: bool,
    /// The time that the job had, if it did not end by itself.
    limit: Option<Duration>,
}

impl EndedJob {
    /// The reason why the job failed, on one line; none if it succeeded.
    pub(super) fn failure(&self) -> Option<String> {
        if self.has_succeeded {
            return None;
        }
        let said = on_one_line(&self.errors);
        Some(match (self.limit, said.is_empty()) {
            (Some(limit), true) => format!("no answer within {} s", limit.as_secs()),
            (Some(limit), false) => format!("no answer within {} s: {said}", limit.as_secs()),
            (None, true) => "ringrun ended without a word".into(),
            (None, false) => said,
        })
    }
}

/// Runs ringrun with these arguments to its end, or ends it after so long. Blocks, and must run on
/// a thread that lives as long as the job: the job ends with that thread.
pub(super) fn run(words: &[OsString], limit: Duration) -> io::Result<EndedJob> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The words say which hosts there are.
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PET_"))
    {
        command.env_remove(name);
    }
    // The job ends with this process, however that ends.
    sys::before_exec(&mut command, || Ok(set_pdeathsig(Signal::SIGTERM)?));
    let mut child = command.spawn()?;
    let output = read(child.stdout.take().map(OwnedFd::from))?;
    let errors = read(child.stderr.take().map(OwnedFd::from))?;
    let mut text = output.recv_timeout(limit).ok();
    let is_late = text.is_none();
    if is_late {
        text = end(&child, &output);
    }
    // Without its output, the job's ringrun can't be told to end.
    if text.is_none() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let errors = errors.recv_timeout(END_LIMIT).unwrap_or_default();
    Ok(EndedJob {
        output: text.unwrap_or_default(),
        errors,
        has_succeeded: status.success() && !is_late,
        limit: is_late.then_some(limit),
    })
}

/// Ends a job, and gives its output.
fn end(child: &Child, output: &Receiver<String>) -> Option<String> {
    // A process that nobody has waited for keeps its number.
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
    output.recv_timeout(END_LIMIT).ok()
}

/// Reads a stream to its end on a thread of its own.
fn read(stream: Option<OwnedFd>) -> io::Result<Receiver<String>> {
    let (sender, text) = channel();
    let Some(stream) = stream else { return Ok(text) };
    thread::Builder::new().name("job output".into()).spawn(move || {
        let mut bytes = vec![];
        // The output that came before an error counts.
        let _ = std::fs::File::from(stream).take(MAX_BYTES).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(text)
}

/// Messages of ringrun as one line, without its name.
fn on_one_line(errors: &str) -> String {
    let lines = errors.lines().map(|line| line.trim().trim_start_matches("ringrun: "));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("Try `ringrun"));
    let mut lines: Vec<_> = lines.collect();
    // Ranks fail for the same reason.
    lines.dedup();
    lines.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let ended = |errors: &str, limit| EndedJob {
            output: String::new(),
            errors: errors.into(),
            has_succeeded: false,
            limit,
        };
        let errors = "ringrun: cannot start ranks on host a: ssh ended\n  no route\n";
        let failure = ended(errors, None).failure().unwrap();
        assert_eq!(failure, "cannot start ranks on host a: ssh ended: no route");
        let limit = Some(Duration::from_secs(7));
        assert_eq!(ended("", limit).failure().unwrap(), "no answer within 7 s");
        assert_eq!(ended("a", limit).failure().unwrap(), "no answer within 7 s: a");
        let fine = EndedJob { has_succeeded: true, ..ended("a warning", None) };
        assert_eq!(fine.failure(), None);
    }
}
