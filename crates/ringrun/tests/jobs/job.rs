//! A job of a test: its processes carry a mark, and its store and folder are its own.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::{AS_RANK, BODY, LONG, Process, RINGRUN, myself, send};
use crate::procfs;

/// Set in every process of a job; the value is the job's own.
const MARKER: &str = "RINGRUN_TEST";

/// Processes that belong together, with a store and a folder of their own.
pub(crate) struct Job {
    number: u32,
    marker: String,
    folder: TempDir,
}

impl Job {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // No marker is the beginning of another one: names of sockets are searched for it.
        let marker = format!("ranks-{}-{number}-", std::process::id());
        Self { number, marker, folder: TempDir::new().unwrap() }
    }

    /// The address of a store on a Unix socket.
    pub(crate) fn unix(&self) -> String {
        format!("unix:@{}", self.marker)
    }

    /// The address of a store on TCP: a free port of a loopback address of this job's own.
    pub(crate) fn tcp(&self) -> String {
        let ([_, _, high, low], [.., job]) =
            (std::process::id().to_be_bytes(), self.number.to_be_bytes());
        let host = std::net::Ipv4Addr::new(127, job, high, low);
        let listener = std::net::TcpListener::bind((host, 0)).unwrap();
        listener.local_addr().unwrap().to_string()
    }

    /// A program of this job, without the variables of an outer launcher, and with the timeout
    /// [`LONG`].
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        ::harness::forget_launcher(&mut command);
        command.env(MARKER, &self.marker).env("TMPDIR", self.folder.path());
        command.env("RINGREDUCE_TIMEOUT", LONG.as_secs().to_string());
        command
    }

    /// `ringrun OPTIONS` with ranks that do `body`; options are separated by spaces.
    pub(crate) fn launch(&self, options: &str, body: &str) -> Command {
        let mut command = self.command(RINGRUN);
        command.args(options.split_whitespace()).arg(myself()).args(AS_RANK).env(BODY, body);
        command
    }

    /// One rank without a launcher.
    pub(crate) fn rank(&self, program: &str, rank: usize, size: usize, store: &str) -> Command {
        let mut command = self.command(program);
        command.env("RINGREDUCE_RANK", rank.to_string()).env("RINGREDUCE_SIZE", size.to_string());
        command.env("RINGREDUCE_STORE", store);
        command
    }

    /// `size` ranks that do `body`, without a launcher: over TCP alone, the store included, or over
    /// shared memory without any TCP.
    pub(crate) fn world(&self, size: usize, transport: &str, body: &str) -> Vec<Process> {
        self.world_with(size, transport, body, |_| ())
    }

    /// [`Self::world`] with changes to each rank's command.
    pub(crate) fn world_with(
        &self,
        size: usize,
        transport: &str,
        body: &str,
        change: impl Fn(&mut Command),
    ) -> Vec<Process> {
        let store = if transport == "tcp" { self.tcp() } else { self.unix() };
        let start = |rank| {
            let mut command = self.rank(&myself(), rank, size, &store);
            command.args(AS_RANK).env(BODY, body).env("RINGREDUCE_TRANSPORT", transport);
            change(&mut command);
            Process::start(command)
        };
        (0..size).map(start).collect()
    }

    /// Every process of this job.
    pub(crate) fn processes(&self) -> Vec<u32> {
        procfs::processes_with(&format!("{MARKER}={}", self.marker))
    }

    /// Checks that no process, file or socket of the job is left.
    pub(crate) fn left_nothing(self) {
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes left behind");
        let files: Vec<_> = fs::read_dir(self.folder.path()).unwrap().flatten().collect();
        assert!(files.is_empty(), "left behind: {files:?}");
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!sockets.contains(&self.marker), "a socket was left behind");
    }
}

impl Drop for Job {
    /// Only a test that failed leaves processes to end.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.processes().into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
        }
    }
}
