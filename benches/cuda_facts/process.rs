//! This program again: an experiment, or a process that an experiment needs beside it. What it says
//! comes over its output, line by line. May touch: processes.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::driver::Answer;

/// What tells a process what it is.
const ROLE: &str = "CUDA_FACTS_ROLE";
/// Before all that is meant for who started it; others may print as well.
const MARK: &str = "#cuda_facts ";

/// What this process was started as.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Tells it to who started this process, at once.
pub(crate) fn say(text: &str) {
    // Who does not listen any more has ended.
    let _ = std::io::stdout().write_all(format!("{MARK}{text}\n").as_bytes());
}

/// Something measured.
pub(crate) fn figure(what: &str, value: f64, unit: &str, note: &str) {
    say(&format!("{what}\t{value:e}\t{unit}\t{note}"));
}

/// Something found out.
pub(crate) fn fact(what: &str, note: &str) {
    say(&format!("{what}\t\t\t{note}"));
}

/// The same of something that may have failed.
pub(crate) fn tried(what: &str, found: Answer<impl AsRef<str>>) {
    match found {
        Ok(note) => fact(what, note.as_ref()),
        Err(why) => fact(what, &format!("failed: {why}")),
    }
}

/// The next line that who started this process told it.
pub(crate) fn told() -> Answer<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err("nobody is there".into()),
        Ok(_) => Ok(line.trim_end().into()),
        Err(error) => Err(error.to_string()),
    }
}

/// A process of ours; dropping it kills it.
pub(crate) struct Child {
    child: std::process::Child,
    to: ChildStdin,
    from: Receiver<String>,
}

/// What [`Child::line`] has.
pub(crate) enum Heard {
    Line(String),
    Nothing,
    End,
}

impl Child {
    /// As a process that is one of ours starts another.
    pub(crate) fn beside(role: &str) -> Answer<Self> {
        let args: Vec<_> = env::args_os().skip(1).collect();
        Self::start(role, &args)
    }

    pub(crate) fn start(role: &str, args: &[impl AsRef<OsStr>]) -> Answer<Self> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(args).env(ROLE, role);
        // Nothing compiled before is found, and nothing is loaded before it is needed.
        command.env("CUDA_CACHE_DISABLE", "1").env("CUDA_MODULE_LOADING", "LAZY");
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| error.to_string())?;
        let to = child.stdin.take().ok_or("no input")?;
        let from = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let text = line.split_once(MARK).map(|(_, text)| text.to_owned());
                if text.is_some_and(|text| sender.send(text).is_err()) {
                    break;
                }
            }
        });
        Ok(Self { child, to, from: receiver })
    }

    /// What it says next.
    pub(crate) fn line(&self, limit: Duration) -> Heard {
        match self.from.recv_timeout(limit) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) -> Answer {
        writeln!(self.to, "{line}").map_err(|error| format!("told it {line}: {error}"))
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
    }

    /// How it ended. One that is stuck in the driver may not end even when killed.
    pub(crate) fn ended(&mut self) -> Answer<ExitStatus> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("the process does not end".into())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.ended();
    }
}
