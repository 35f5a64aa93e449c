//! Processes that tests start: their lines on the error output, and how they end. No process
//! outlives its test, and no test waits for one for ever.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The longest wait for a process with a share of the cases, and with all of them; a test then
/// fails instead of hanging.
const PATIENCE: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(3600)];
/// The longest wait for the last lines of a killed process.
const LAST_LINES: Duration = Duration::from_secs(5);
/// The line by which a process reports that its work has begun.
const AT_WORK: &str = "at work";

/// The longest wait for a process.
pub fn patience() -> Duration {
    let [share, all] = PATIENCE;
    crate::share::count(share, all)
}

/// Runs the function listed under this name in `tests/process.rs` in a process of its own, which
/// must end well.
pub fn in_own_process(body: &str) {
    Process::start(crate::process(body)).succeeds(body);
}

/// A process, and the lines that it has written to its error output.
pub struct Process {
    child: Child,
    incoming: Receiver<String>,
    pub lines: Vec<String>,
}

impl Process {
    /// Starts the process with signals as a login shell sets them.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        crate::signals::default(&mut command);
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tx, incoming) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                crate::pass_on(&line);
                let _ = tx.send(line);
            }
        });
        Self { child, incoming, lines: Vec::new() }
    }

    /// Reports to the test which started this process that its work has begun.
    pub fn works() {
        eprintln!("{AT_WORK}");
    }

    /// Waits for that report, or for the end of the process.
    pub fn is_at_work(&mut self) {
        self.says(AT_WORK);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Waits until a signal has stopped the process.
    pub fn is_stopped(&self) {
        let pid = Pid::from_raw(self.pid() as i32);
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}: {:#?}", self.lines);
    }

    /// Writes to the standard input, which the command must have piped.
    pub fn write_stdin(&mut self, bytes: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Closes the standard input.
    pub fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    /// Waits for one more line. There are no more when the process and all that it started are
    /// gone.
    pub fn next_line(&mut self, until: Instant) -> Result<&str, RecvTimeoutError> {
        let line = self.incoming.recv_timeout(until.saturating_duration_since(Instant::now()))?;
        self.lines.push(line);
        Ok(&self.lines[self.lines.len() - 1])
    }

    /// Waits for a line that begins with `wanted`: the rest of that line, or none if the process
    /// has ended.
    pub fn says(&mut self, wanted: &str) -> Option<&str> {
        let until = Instant::now() + patience();
        let found = self.says_by(wanted, until);
        assert!(found || Instant::now() < until, "no line {wanted:?}: {:#?}", self.lines);
        self.lines.last().filter(|_| found)?.strip_prefix(wanted)
    }

    /// Waits for a line that begins with `wanted`; false if the process ends or the time is over.
    pub fn says_by(&mut self, wanted: &str, until: Instant) -> bool {
        while let Ok(line) = self.next_line(until) {
            if line.starts_with(wanted) {
                return true;
            }
        }
        false
    }

    /// Waits for the end of the process; none if the time is over first.
    pub fn ends_by(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.next_line(until) {
                Ok(_) => (),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(self.child.wait().unwrap()),
            }
        }
    }

    /// Waits for the end of the process.
    pub fn ends(&mut self) -> ExitStatus {
        let ended = self.ends_by(Instant::now() + patience());
        ended.unwrap_or_else(|| panic!("it does not end: {:#?}", self.lines))
    }

    /// Waits for the end of the process: whether it ended well, and its lines.
    pub fn end(mut self) -> (bool, String) {
        let ended = self.ends();
        (ended.success(), format!("{ended}\n{}\n", self.lines.join("\n")))
    }

    /// Waits for the end of the process, which must be a good one; gives its lines.
    pub fn succeeds(self, context: &str) -> String {
        let (well, lines) = self.end();
        assert!(well, "{context}: {lines}");
        lines
    }

    /// The rest of the first line that begins with `prefix`.
    pub fn line_after(&self, prefix: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(prefix))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The reader closes its descriptor first, which later tests must not count; a process that
        // this one started may hold the other end for longer.
        while self.incoming.recv_timeout(LAST_LINES).is_ok() {}
    }
}
