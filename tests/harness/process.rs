//! Processes that tests start: what they say, line by line, and how they end. None outlives its
//! test, and no test waits for one for ever.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long a process may take for anything before a test fails instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// What a process says when it does what it was started for.
const AT_WORK: &str = "at work";

/// A process. What it says is what it writes to its error output.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    pub said: Vec<String>,
}

impl Process {
    /// Starts it with signals as a login shell does.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        crate::signals::default(&mut command);
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                crate::pass_on(&line);
                let _ = tx.send(line);
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Says so to the test that started this process.
    pub fn works() {
        eprintln!("{AT_WORK}");
    }

    /// Waits until it says so, or has ended.
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

    /// Waits until it is stopped.
    pub fn is_stopped(&self) {
        let pid = Pid::from_raw(self.pid() as i32);
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}: {:#?}", self.said);
    }

    /// Writes what it reads, if the command has piped that.
    pub fn tell(&mut self, words: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(words).unwrap();
    }

    /// Closes what it reads.
    pub fn is_over(&mut self) {
        self.child.stdin = None;
    }

    /// Hears one line more. It has said its last when all are gone that it may have started.
    pub fn hears(&mut self, until: Instant) -> Result<&str, RecvTimeoutError> {
        let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))?;
        self.said.push(line);
        Ok(&self.said[self.said.len() - 1])
    }

    /// Waits until it says what begins so: what follows these words, or nothing if it has ended.
    pub fn says(&mut self, wanted: &str) -> Option<&str> {
        let until = Instant::now() + PATIENCE;
        let says = self.says_by(wanted, until);
        assert!(says || Instant::now() < until, "it does not say {wanted:?}: {:#?}", self.said);
        self.said.last().filter(|_| says)?.strip_prefix(wanted)
    }

    /// Does it say what begins so by then? Not if it has ended.
    pub fn says_by(&mut self, wanted: &str, until: Instant) -> bool {
        while let Ok(line) = self.hears(until) {
            if line.starts_with(wanted) {
                return true;
            }
        }
        false
    }

    /// How it has ended by then, if it has.
    pub fn ends_by(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.hears(until) {
                Ok(_) => (),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(self.child.wait().unwrap()),
            }
        }
    }

    /// Waits for its end.
    pub fn ends(&mut self) -> ExitStatus {
        let ended = self.ends_by(Instant::now() + PATIENCE);
        ended.unwrap_or_else(|| panic!("it does not end: {:#?}", self.said))
    }

    /// Waits for its end: did it end well, and what has it said?
    pub fn end(mut self) -> (bool, String) {
        let ended = self.ends();
        (ended.success(), format!("{ended}\n{}\n", self.said.join("\n")))
    }

    /// What has followed these words where it said them first.
    pub fn said(&self, words: &str) -> Option<&str> {
        self.said.iter().find_map(|line| line.strip_prefix(words))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
