//! Ranks that are processes and connect over TCP.

use std::process::{Command, Stdio};

use harness::processes::Process;

use super::*;

/// Tells a process its argument: a rank its number, the world size and the store.
pub(crate) const ARGUMENT: &str = "TEST_SECURITY_ARGUMENT";

/// A process: a rank that connects, waits for a line of input before it opens its links, and has
/// closed all their descriptors at the end.
pub(crate) fn rank_process() {
    let Ok(argument) = std::env::var(ARGUMENT) else { return };
    let [me, size, store] = argument.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let store = store.parse().unwrap();
    let before = descriptors();
    let config = rank(me.parse().unwrap(), size.parse().unwrap(), store, Some(SECRET));
    let meeting = rendezvous_and_release(&config).unwrap();
    eprintln!("listens at {}", meeting.peers[meeting.rank].tcp.first().unwrap());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    connect_all(meeting);
    assert_eq!(descriptors(), before, "descriptors left open");
    eprintln!("right");
}

/// A process that this program starts through a shell.
pub(crate) struct Rank(Process);

impl Rank {
    /// Starts a rank after the shell has run `limits`.
    pub(crate) fn start(rank: usize, size: usize, store: SocketAddr, limits: &str) -> Self {
        Self::body(
            "security::rank_process::rank_process",
            &format!("{rank} {size} {store}"),
            limits,
        )
    }

    /// Starts a process that executes `body` with an argument.
    pub(crate) fn body(body: &str, argument: &str, limits: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits} exec \"$0\" \"$@\"")]);
        command.arg(harness::program()).arg(body).env(ARGUMENT, argument).stdin(Stdio::piped());
        Self(Process::start(command))
    }

    /// Waits until the rank is connected to the others; gives the address that it listens at.
    pub(crate) fn listener(&mut self) -> SocketAddr {
        self.0.says("listens at ").unwrap().parse().unwrap()
    }

    /// Lets the process continue: a rank then opens its links.
    pub(crate) fn go_on(&mut self) {
        self.0.write_stdin(b"\n");
    }

    /// Waits for a line that begins with `wanted`.
    pub(crate) fn says(&mut self, wanted: &str) {
        assert!(self.0.says(wanted).is_some(), "{:#?}", self.0.lines);
    }

    /// Waits for the end of the process, which must be a good one.
    pub(crate) fn ends_well(&mut self) {
        self.says("right");
        assert!(self.0.ends().success());
    }

    /// The number of its open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.pid())).unwrap().count()
    }

    /// Its resident memory in KiB.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}
