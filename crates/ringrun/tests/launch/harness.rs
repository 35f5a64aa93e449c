//! Starts ringrun so that a test sees all that comes of it.
//!
//! Every process of a job holds the job's standard output a second time, as descriptor 9. So its
//! end is an event that says "all of them are gone", and waiting for it needs no clock.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ::harness::signals;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// How long anything may take before the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(300);
/// In every process of a job; its value tells tests apart.
const MARKER: &str = "RINGRUN_TEST";

/// The program under test.
pub(crate) const RINGRUN: &str = env!("CARGO_BIN_EXE_ringrun");

/// The benchmark, of another package: cargo builds it beside ringrun only if it is told to.
pub(crate) fn ringbench() -> String {
    let path = Path::new(RINGRUN).with_file_name("ringbench");
    assert!(path.exists(), "{} is not built: cargo build -p ringbench", path.display());
    path.into_os_string().into_string().unwrap()
}

/// A started ringrun.
pub(crate) struct Running {
    child: Child,
    marker: String,
    lines: Receiver<Vec<u8>>,
    errors: Receiver<Vec<u8>>,
    seen: Vec<u8>,
    pub(crate) stdin: Option<ChildStdin>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code.
    pub(crate) code: i32,
    /// The standard output.
    pub(crate) out: Vec<u8>,
    /// The standard error.
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// The lines of the standard output, sorted: ranks finish in any order.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

/// Runs `ringrun WORDS` to its end, with nothing to read.
pub(crate) fn run(words: &[&str]) -> Ran {
    start(words).finish()
}

/// Runs `ringrun OPTIONS sh -c SCRIPT`; options are separated by spaces.
pub(crate) fn script(options: &str, script: &str) -> Ran {
    start_script(options, script).finish()
}

/// Starts `ringrun OPTIONS sh -c SCRIPT`.
pub(crate) fn start_script(options: &str, script: &str) -> Running {
    let words: Vec<_> = options.split_whitespace().chain(["sh", "-c", script]).collect();
    start(&words)
}

/// Starts `ringrun WORDS` with nothing to read.
pub(crate) fn start(words: &[&str]) -> Running {
    start_under("exec \"$@\" 9>&1", words, Stdio::null())
}

/// Starts `ringrun WORDS` from a shell script that says `"$@"` for it.
pub(crate) fn start_under(shell: &str, words: &[&str], stdin: Stdio) -> Running {
    start_blocking(SigSet::empty(), shell, words, stdin)
}

/// [`start_under`] with these signals blocked in the shell.
pub(crate) fn start_blocking(
    blocked: SigSet,
    shell: &str,
    words: &[&str],
    stdin: Stdio,
) -> Running {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let marker = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new("sh");
    command.args(["-c", shell, "sh", RINGRUN]).args(words).env(MARKER, &marker);
    // In a group of its own, with its parent in the same session: then it can be stopped.
    command.process_group(0);
    signals::default_but_blocked(&mut command, blocked);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = read(child.stdout.take().unwrap());
    let errors = read(child.stderr.take().unwrap());
    let stdin = child.stdin.take();
    Running { child, marker, lines, errors, seen: vec![], stdin }
}

/// Lines as they come, from a thread of their own.
fn read(from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = vec![];
        while from.read_until(b'\n', &mut line).unwrap_or(0) > 0 {
            if send.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    receive
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The next line of the standard output.
    pub(crate) fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(PATIENCE).expect("ringrun printed no further line");
        self.seen.extend_from_slice(&line);
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// The numbers of the next line that begins with this.
    pub(crate) fn line_with<const N: usize>(&mut self, words: &str) -> [u32; N] {
        loop {
            if let Some(rest) = self.line().strip_prefix(words) {
                let numbers: Vec<_> = rest.split(' ').map(|it| it.parse().unwrap()).collect();
                return numbers.try_into().unwrap();
            }
        }
    }

    /// Waits until this line has come so many times.
    pub(crate) fn await_lines(&mut self, wanted: &str, mut times: usize) {
        while times > 0 {
            times -= usize::from(self.line() == wanted);
        }
    }

    /// The next line of the standard error.
    pub(crate) fn error_line(&mut self) -> String {
        let line = self.errors.recv_timeout(PATIENCE).expect("ringrun reported no further line");
        String::from_utf8(line).unwrap()
    }

    /// Every process of this job but ringrun itself.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut all = marked(&self.marker);
        all.retain(|&pid| pid != self.pid());
        all
    }

    /// Fails unless every process that holds the output is gone after `limit`.
    pub(crate) fn all_gone_within(&mut self, limit: Duration) {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        let deadline = std::time::Instant::now() + limit;
        loop {
            match self
                .lines
                .recv_timeout(deadline.saturating_duration_since(std::time::Instant::now()))
            {
                Ok(line) => self.seen.extend_from_slice(&line),
                Err(Disconnected) => break,
                Err(Timeout) => panic!("still there: {:?}", marked(&self.marker)),
            }
        }
    }

    /// Waits for the end; fails if anything of the job outlives ringrun.
    pub(crate) fn finish(mut self) -> Ran {
        self.stdin = None;
        self.all_gone_within(PATIENCE);
        let mut err = vec![];
        while let Ok(line) = self.errors.recv_timeout(PATIENCE) {
            err.extend_from_slice(&line);
        }
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        assert_eq!(marked(&self.marker), Vec::<u32>::new(), "left behind");
        Ran {
            code,
            out: std::mem::take(&mut self.seen),
            err: String::from_utf8_lossy(&err).into_owned(),
        }
    }
}

impl Drop for Running {
    /// Only a test that failed leaves something to end.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for pid in marked(&self.marker) {
                send(pid, Signal::SIGKILL);
            }
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// The state letter of a process; none if there is no such process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Waits for something that sends no event.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn marked(marker: &str) -> Vec<u32> {
    let line = format!("{MARKER}={marker}");
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|one| one == line.as_bytes())
    });
    ours.filter(|&pid| !matches!(state(pid), None | Some('Z'))).collect()
}
