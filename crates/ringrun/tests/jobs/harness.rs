//! Starts processes so that a test sees all their output and their end, and that no process stays.
//!
//! The end of a process is the end of its standard output: waiting for that is waiting for an
//! event. All processes of a job that a script starts hold the standard output a second time, as
//! descriptor 9. A rank is this test program itself, which does what `RANKS_BODY` names (see
//! `ranks::bodies`).

use std::io::{self, BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ::harness::hosts::Host;
use ::harness::signals;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::job::Job;

/// The longest wait for an event before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The timeout of ranks.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Every rank must have ended so soon after one was lost, or after its timeout. On a busy machine a
/// rank looks at the clock and for its peer's death only after it has yielded a thousand times,
/// which takes seconds.
pub(crate) const PROMPT: Duration = Duration::from_secs(20);
/// The variable with a rank's body.
pub(crate) const BODY: &str = "RANKS_BODY";

pub(crate) const RINGRUN: &str = env!("CARGO_BIN_EXE_ringrun");
/// The arguments that make this program a rank.
pub(crate) const AS_RANK: [&str; 4] = ["--exact", "ranks::bodies::body", "--nocapture", "--quiet"];
/// The shell script that runs its arguments with the standard output as descriptor 9, too.
pub(crate) const AS_IS: &str = "exec \"$@\" 9>&1";

/// The words of a program that runs its arguments as a shell runs a job: the system stops only
/// programs that a shell could continue. bash may wait for ever for a job that was stopped.
pub(crate) const AS_JOB: [&str; 3] = [
    "perl",
    "-e",
    "my $job = fork // die; if (!$job) { setpgrp(0, 0); exec @ARGV or die }
    waitpid($job, 0); exit($? & 127 ? 128 + ($? & 127) : $? >> 8)",
];

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

/// A started process. It does not outlive the test.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<Vec<u8>>,
    errors: Receiver<Vec<u8>>,
    out: Vec<u8>,
    seen_errors: String,
    pub(crate) stdin: Option<ChildStdin>,
}

/// The end of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code, or the negative number of the signal.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    /// The errors before `err`, which the test has waited for.
    pub(crate) seen_err: String,
}

impl Ended {
    /// An end with exit code 1 and these errors.
    pub(crate) fn failed(err: &str) -> Self {
        Self { code: 1, out: String::new(), err: err.into(), seen_err: String::new() }
    }

    /// The lines of the standard output, sorted: ranks finish in any order.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl Process {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_blocking(command, SigSet::empty(), Stdio::null())
    }

    /// Starts a process on a host of a cluster, in a group of its own.
    pub(crate) fn start_on(host: &Host, command: &Command, stdin: Stdio) -> Self {
        let mut command = host.for_spawn(command);
        command.process_group(0);
        Self::start_by(|command| host.spawn(command), command, SigSet::empty(), stdin)
    }

    fn start_blocking(command: Command, blocked: SigSet, stdin: Stdio) -> Self {
        Self::start_by(Command::spawn, command, blocked, stdin)
    }

    fn start_by(
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
        mut command: Command,
        blocked: SigSet,
        stdin: Stdio,
    ) -> Self {
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        signals::default_but_blocked(&mut command, blocked);
        let mut child = spawn(&mut command).unwrap();
        let lines = read(child.stdout.take().unwrap());
        let errors = read(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Self { child, lines, errors, out: vec![], seen_errors: String::new(), stdin }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// The next line of the standard output.
    pub(crate) fn line(&mut self) -> String {
        let Ok(line) = self.lines.recv_timeout(PATIENCE) else { self.fail("no line came") };
        self.out.extend_from_slice(&line);
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// The numbers of the next line that begins so.
    pub(crate) fn numbers<const N: usize>(&mut self, start: &str) -> [u32; N] {
        loop {
            if let Some(rest) = self.line().strip_prefix(start) {
                let numbers: Vec<_> = rest.split(' ').map(|it| it.parse().unwrap()).collect();
                return numbers.try_into().unwrap();
            }
        }
    }

    /// The process numbers of the ranks whose lines have `start`, their rank and their process.
    pub(crate) fn pids<const N: usize>(&mut self, start: &str) -> [u32; N] {
        let mut pids = [0; N];
        for _ in 0..N {
            let [rank, pid] = self.numbers(start);
            pids[rank as usize] = pid;
        }
        pids
    }

    /// Waits until this line has come so many times.
    pub(crate) fn await_lines(&mut self, wanted: &str, mut times: usize) {
        while times > 0 {
            times -= usize::from(self.line() == wanted);
        }
    }

    /// The next line of the standard error that has these words.
    pub(crate) fn error_line(&mut self, words: &str) -> String {
        loop {
            let Ok(line) = self.errors.recv_timeout(PATIENCE) else {
                self.fail(&format!("no error came with {words:?}"))
            };
            let line = String::from_utf8(line).unwrap();
            self.seen_errors.push_str(&line);
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits until the process is stopped.
    pub(crate) fn stopped(&self) {
        let pid = Pid::from_raw(self.pid().cast_signed());
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Waits for the end of the output: no process holds it any more, `limit` from now.
    pub(crate) fn all_gone_within(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.out.extend_from_slice(&line),
                Err(Disconnected) => return,
                Err(Timeout) => self.fail("the output has not ended"),
            }
        }
    }

    /// Waits for the end, which must come within `limit`.
    pub(crate) fn end(&mut self, limit: Duration) -> Ended {
        self.stdin = None;
        self.all_gone_within(limit);
        let errors = std::iter::from_fn(|| self.errors.recv_timeout(PATIENCE).ok());
        let err = errors.flatten().collect::<Vec<_>>();
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let out = String::from_utf8(std::mem::take(&mut self.out)).unwrap();
        let err = String::from_utf8_lossy(&err).into_owned();
        Ended { code, out, err, seen_err: std::mem::take(&mut self.seen_errors) }
    }

    /// Fails with all that the process has said.
    pub(crate) fn fail(&mut self, why: &str) -> ! {
        let _ = self.child.kill();
        let err: Vec<_> = self.errors.try_iter().flatten().collect();
        let [out, err] = [&self.out, &err].map(|text| String::from_utf8_lossy(text));
        panic!("{why}; said {out:?} and {:?}", self.seen_errors.clone() + &err)
    }
}

impl Drop for Process {
    /// Only a test that failed leaves a process to end.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A started ringrun with a job of its own.
pub(crate) struct Running {
    process: Process,
    job: Job,
}

impl Running {
    /// Every process of this job but ringrun itself.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut all = self.job.processes();
        all.retain(|&pid| pid != self.pid());
        all
    }

    /// Waits for the end; fails if anything of the job outlives ringrun.
    pub(crate) fn finish(mut self) -> Ended {
        let ended = self.process.end(PATIENCE);
        self.job.left_nothing();
        ended
    }
}

impl Deref for Running {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Runs `ringrun WORDS` to its end, with nothing to read.
pub(crate) fn run(words: &[&str]) -> Ended {
    run_under(AS_IS, words)
}

/// Runs `ringrun OPTIONS sh -c SCRIPT`; options are separated by spaces.
pub(crate) fn script(options: &str, script: &str) -> Ended {
    start_script(options, script).finish()
}

/// Starts `ringrun OPTIONS sh -c SCRIPT`.
pub(crate) fn start_script(options: &str, script: &str) -> Running {
    let words: Vec<_> = options.split_whitespace().chain(["sh", "-c", script]).collect();
    start_under(AS_IS, &words, Stdio::null())
}

/// Runs `ringrun WORDS` from a shell script that says `"$@"` for it.
pub(crate) fn run_under(shell: &str, words: &[&str]) -> Ended {
    start_under(shell, words, Stdio::null()).finish()
}

/// Starts `ringrun WORDS` from such a shell script.
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
    let job = Job::new();
    let command = under_shell(&job, shell, words);
    Running { process: Process::start_blocking(command, blocked, stdin), job }
}

/// Runs `ringrun WORDS` to its end, with changes to its command.
pub(crate) fn run_changed(words: &[&str], change: impl FnOnce(&mut Command)) -> Ended {
    let job = Job::new();
    let mut command = under_shell(&job, AS_IS, words);
    change(&mut command);
    Running { process: Process::start(command), job }.finish()
}

/// `ringrun WORDS` from a shell script that says `"$@"` for it.
fn under_shell(job: &Job, shell: &str, words: &[&str]) -> Command {
    let mut command = job.command("sh");
    // In a group of its own, with its parent in the same session, ringrun can be stopped.
    command.args(["-c", shell, "sh", RINGRUN]).args(words).process_group(0);
    command
}

/// Waits until all ranks are in full swing.
pub(crate) fn all_up(ranks: &mut [Process]) {
    for rank in ranks {
        rank.numbers::<2>("up ");
    }
}

/// Waits until every process has ended, `limit` from now.
pub(crate) fn all_end(mut all: Vec<Process>, limit: Duration) -> Vec<Ended> {
    let deadline = Instant::now() + limit;
    let left = || deadline.saturating_duration_since(Instant::now());
    all.iter_mut().map(|process| process.end(left())).collect()
}

/// Waits until every rank has ended well.
pub(crate) fn all_right(all: Vec<Process>) -> Vec<Ended> {
    let ended = all_end(all, PATIENCE);
    for rank in &ended {
        assert!(rank.code == 0 && rank.out.contains("right\n"), "{rank:?}");
    }
    ended
}

/// Kills all processes. One that notices the death of another may exit before.
pub(crate) fn kill_all(all: Vec<Process>) {
    all.iter().for_each(|process| process.signal(Signal::SIGKILL));
    let codes: Vec<_> = all_end(all, PROMPT).iter().map(|ended| ended.code).collect();
    assert!(codes.iter().all(|code| [-9, 1].contains(code)), "{codes:?}");
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// Waits for a condition that comes without an event.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Makes a named pipe.
pub(crate) fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
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
