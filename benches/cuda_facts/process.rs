//! Processes of this program: an experiment, or a process that an experiment needs beside it. Each
//! reports by lines of its output. May touch: processes.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::driver::Answer;

/// The variable that tells a process its part and its experiment.
const ROLE: &str = "CUDA_FACTS_ROLE";
/// The start of each report; libraries may print other lines.
const MARK: &str = "#cuda_facts ";

pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Prints a line for the process that started this one, at once.
pub(crate) fn report(text: &str) {
    // A write fails if that process has ended.
    let _ = std::io::stdout().write_all(format!("{MARK}{text}\n").as_bytes());
}

/// Reports a measurement.
pub(crate) fn figure(what: &str, value: f64, unit: &str, note: &str) {
    report(&format!("{what}\t{value:e}\t{unit}\t{note}"));
}

/// Reports an observation.
pub(crate) fn fact(what: &str, note: &str) {
    report(&format!("{what}\t\t\t{note}"));
}

/// Reports an observation, or the failure of one.
pub(crate) fn fact_of(what: &str, found: Answer<impl AsRef<str>>) {
    failed(what, found.map(|note| fact(what, note.as_ref())));
}

/// Reports a failure, if there is one.
pub(crate) fn failed(what: &str, done: Answer) {
    if let Err(why) = done {
        fact(what, &format!("failed: {why}"));
    }
}

/// The next line from the process that started this one.
pub(crate) fn next_line() -> Answer<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err("the input has ended".into()),
        Ok(_) => Ok(line.trim_end().into()),
        Err(error) => Err(error.to_string()),
    }
}

/// A process of this program; dropping it kills it.
pub(crate) struct Child {
    child: std::process::Child,
    to: ChildStdin,
    from: Receiver<String>,
}

/// The next output of a child.
pub(crate) enum Output {
    Line(String),
    Timeout,
    End,
}

impl Child {
    /// Starts a process with the arguments of this one.
    pub(crate) fn beside(role: &str) -> Answer<Self> {
        let args: Vec<_> = env::args_os().skip(1).collect();
        Self::start(role, &args)
    }

    pub(crate) fn start(role: &str, args: &[impl AsRef<OsStr>]) -> Answer<Self> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(args).env(ROLE, role);
        // The driver finds no kernel compiled before, and loads each when it is needed.
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

    pub(crate) fn line(&self, limit: Duration) -> Output {
        match self.from.recv_timeout(limit) {
            Ok(line) => Output::Line(line),
            Err(RecvTimeoutError::Timeout) => Output::Timeout,
            Err(RecvTimeoutError::Disconnected) => Output::End,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) -> Answer {
        writeln!(self.to, "{line}").map_err(|error| format!("writing {line}: {error}"))
    }

    pub(crate) fn kill(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
    }

    /// The exit status. A process that is stuck in the driver may not end even when killed.
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
