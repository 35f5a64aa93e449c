//! Starts processes so that a test sees all that comes of them, and that nothing stays.
//!
//! The end of a process is the end of its standard output: waiting for that is waiting for an
//! event. A rank is this very test program, told by `RANKS_BODY` what to do (see `bodies`).

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ::harness::signals;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::system;

/// How long anything may take before the test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// How long ranks wait for each other.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How soon every rank must have ended once one of them was lost, or its time is over. On a busy
/// machine a rank begins to look at the clock and for its peer's death only after it has given way
/// a thousand times, which takes seconds.
pub(crate) const PROMPT: Duration = Duration::from_secs(20);
/// In every process of a job; its value tells jobs apart.
const MARKER: &str = "RANKS_TEST";
/// What a rank does.
pub(crate) const BODY: &str = "RANKS_BODY";

pub(crate) const RINGRUN: &str = env!("CARGO_BIN_EXE_ringrun");
/// The arguments that make this program a rank.
pub(crate) const AS_RANK: [&str; 4] = ["--exact", "bodies::body", "--nocapture", "--quiet"];

/// The benchmark, of another package: cargo builds it beside ringrun only if it is told to.
pub(crate) fn ringbench() -> String {
    let path = Path::new(RINGRUN).with_file_name("ringbench");
    assert!(path.exists(), "{} is not built: cargo build -p ringbench", path.display());
    path.into_os_string().into_string().unwrap()
}

/// This program.
pub(crate) fn myself() -> String {
    std::env::current_exe().unwrap().into_os_string().into_string().unwrap()
}

/// Processes that belong together, and a place where they meet that nobody else knows.
pub(crate) struct Job {
    number: u32,
    marker: String,
    folder: TempDir,
}

impl Job {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // No marker begins another one: names of sockets are searched for it.
        let marker = format!("ranks-{}-{number}-", std::process::id());
        Self { number, marker, folder: TempDir::new().unwrap() }
    }

    /// Where ranks meet over Unix sockets.
    pub(crate) fn unix(&self) -> String {
        format!("unix:@{}", self.marker)
    }

    /// Where ranks meet over TCP: a port that is free on a loopback address of this job's own.
    pub(crate) fn tcp(&self) -> String {
        let ([_, _, high, low], [.., job]) =
            (std::process::id().to_be_bytes(), self.number.to_be_bytes());
        let host = std::net::Ipv4Addr::new(127, job, high, low);
        let listener = std::net::TcpListener::bind((host, 0)).unwrap();
        listener.local_addr().unwrap().to_string()
    }

    /// A program of this job, which hears of no other launcher and waits for no one longer than
    /// that.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RINGREDUCE_")) {
            command.env_remove(name);
        }
        command.env(MARKER, &self.marker).env("TMPDIR", self.folder.path());
        command.env("RINGREDUCE_TIMEOUT", LONG.as_secs().to_string());
        command
    }

    /// One rank without a launcher.
    pub(crate) fn rank(&self, program: &str, rank: usize, size: usize, store: &str) -> Command {
        let mut command = self.command(program);
        command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", size.to_string());
        command.env("RINGREDUCE_STORE", store);
        command
    }

    /// `size` ranks of this program that do `body`, without a launcher: over TCP alone, the
    /// store included, or over shared memory without any TCP.
    pub(crate) fn world(&self, size: usize, transport: &str, body: &str) -> Vec<Process> {
        self.world_with(size, transport, body, |_| ())
    }

    /// [`Self::world`] with something more in each rank's environment.
    pub(crate) fn world_with(
        &self,
        size: usize,
        transport: &str,
        body: &str,
        more: impl Fn(&mut Command),
    ) -> Vec<Process> {
        let store = if transport == "tcp" { self.tcp() } else { self.unix() };
        let start = |rank| {
            let mut command = self.rank(&myself(), rank, size, &store);
            command.args(AS_RANK).env(BODY, body).env("RINGREDUCE_TRANSPORT", transport);
            more(&mut command);
            Process::start(command)
        };
        (0..size).map(start).collect()
    }

    /// Every process of this job.
    pub(crate) fn processes(&self) -> Vec<u32> {
        system::processes_with(&format!("{MARKER}={}", self.marker))
    }

    /// All processes are gone, and there is no file and no socket of theirs.
    pub(crate) fn left_nothing(self) {
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes left behind");
        let files: Vec<_> = fs::read_dir(self.folder.path()).unwrap().flatten().collect();
        assert!(files.is_empty(), "left behind: {files:?}");
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!sockets.contains(&self.marker), "a socket was left behind");
    }
}

/// A started process. It does not outlive the test.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    out: String,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code, or the negative number of the signal.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        signals::default(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = read(child.stdout.take().unwrap());
        let errors = read(child.stderr.take().unwrap());
        Self { child, lines, errors, out: String::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Waits for the next line that starts so.
    pub(crate) fn line(&mut self, start: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with(start) => return line,
                Ok(line) => self.out += &line,
                Err(_) => {
                    let _ = self.child.kill();
                    let said: String = self.errors.iter().collect();
                    panic!("no line {start:?} came, but {:?} and {said:?}", self.out)
                }
            }
        }
    }

    /// Waits for the next line of its errors that has these words.
    pub(crate) fn error_line(&mut self, words: &str) -> String {
        let lines = || self.errors.recv_timeout(PATIENCE).unwrap();
        std::iter::repeat_with(lines).find(|line| line.contains(words)).unwrap()
    }

    /// Waits until it is stopped.
    pub(crate) fn stopped(&self) {
        let pid = Pid::from_raw(self.pid().cast_signed());
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Waits for the end, which must come before `deadline`.
    pub(crate) fn end(mut self, deadline: Instant) -> Ended {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.out += &line,
                Err(Disconnected) => break,
                Err(Timeout) => {
                    let _ = self.child.kill();
                    let said: String = self.errors.iter().collect();
                    panic!("had not ended in time; said {:?} and {said:?}", self.out)
                }
            }
        }
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let err = self.errors.iter().collect();
        Ended { code, out: std::mem::take(&mut self.out), err }
    }
}

impl Drop for Process {
    /// Only a test that failed leaves something to end.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until every one of them has ended, `limit` from now.
pub(crate) fn all_end(all: Vec<Process>, limit: Duration) -> Vec<Ended> {
    let deadline = Instant::now() + limit;
    all.into_iter().map(|process| process.end(deadline)).collect()
}

/// Ends what would never end by itself. (Who hears of the first one's death may be faster.)
pub(crate) fn kill_all(all: Vec<Process>) {
    all.iter().for_each(|process| process.signal(Signal::SIGKILL));
    let codes: Vec<_> = all_end(all, PROMPT).iter().map(|ended| ended.code).collect();
    assert!(codes.iter().all(|code| [-9, 1].contains(code)), "{codes:?}");
}

/// Waits for something that sends no event.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Lines as they come, from a thread of their own.
fn read(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).unwrap_or(0) > 0 {
            if send.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    receive
}
