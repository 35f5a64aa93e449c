//! Ranks that are processes. They meet over TCP alone.

use std::process::{Command, Stdio};

use harness::processes::Process;

use super::*;

/// What tells a process which rank it is: rank, size and store.
pub(crate) const SEAT: &str = "TEST_STRANGERS_SEAT";

/// Not a test of its own: what ranks do. They meet, wait for a word before they open their links,
/// and their descriptors are in the end what they were.
pub(crate) fn a_rank() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let [me, size, store] = seat.split(' ').collect::<Vec<_>>()[..] else { panic!("{seat}") };
    let store = store.parse().unwrap();
    let process = alone();
    let before = process.descriptors();
    let config = rank(me.parse().unwrap(), size.parse().unwrap(), store, Some(SECRET));
    let meeting = meet(&config).unwrap();
    eprintln!("door {}", meeting.peers[meeting.rank].tcp.unwrap());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    all_links(meeting);
    assert_eq!(process.descriptors(), before, "descriptors left open");
    eprintln!("right");
}

/// A process that is a rank.
pub(crate) struct Rank(Process);

impl Rank {
    /// Starts one, with `limits` set by the shell before.
    pub(crate) fn start(rank: usize, size: usize, store: SocketAddr, limits: &str) -> Self {
        Self::body("strangers::world::a_rank", &format!("{rank} {size} {store}"), limits)
    }

    /// Starts another process, which does what `body` names.
    pub(crate) fn body(body: &str, seat: &str, limits: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits} exec \"$0\" \"$@\"")]);
        command.arg(harness::program()).arg(body).env(SEAT, seat).stdin(Stdio::piped());
        Self(Process::start(command))
    }

    /// Waits until it has met the others; gives where it listens for them.
    pub(crate) fn door(&mut self) -> SocketAddr {
        self.0.says("door ").unwrap().parse().unwrap()
    }

    /// Lets it open its links.
    pub(crate) fn go_on(&mut self) {
        self.0.tell(b"\n");
    }

    /// Waits until it says so.
    pub(crate) fn says(&mut self, wanted: &str) {
        assert!(self.0.says(wanted).is_some(), "{:#?}", self.0.said);
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn ends_well(&mut self) {
        self.says("right");
        assert!(self.0.ends().success());
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.pid())).unwrap().count()
    }

    /// KiB of memory that it has.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}
