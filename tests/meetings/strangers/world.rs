//! Ranks that are processes. They meet over TCP alone.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::*;

/// What tells a process which rank it is: rank, size and store.
pub(crate) const SEAT: &str = "TEST_STRANGERS_SEAT";

/// Not a test of its own: what ranks do. They meet, wait for a word before they open their links,
/// and their descriptors are in the end what they were.
pub(crate) fn a_rank() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let [me, size, store] = seat.split(' ').collect::<Vec<_>>()[..] else { panic!("{seat}") };
    let store = store.parse().unwrap();
    let before = descriptors();
    let config = rank(me.parse().unwrap(), size.parse().unwrap(), store, Some(SECRET));
    let meeting = meet(&config).unwrap();
    println!("door {}", meeting.peers[meeting.rank].tcp.unwrap());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    all_links(meeting);
    assert_eq!(descriptors(), before, "descriptors left open");
    println!("right");
}

/// A process that is a rank.
pub(crate) struct Rank {
    child: Child,
    word: ChildStdin,
    out: BufReader<ChildStdout>,
}

impl Rank {
    /// Starts one, with `limits` set by the shell before.
    pub(crate) fn start(rank: usize, size: usize, store: SocketAddr, limits: &str) -> Self {
        Self::body("strangers::world::a_rank", &format!("{rank} {size} {store}"), limits)
    }

    /// Starts another process, which does what `body` names.
    pub(crate) fn body(body: &str, seat: &str, limits: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits} exec \"$0\" \"$@\"")]);
        command.arg(harness::program()).arg(body).env(SEAT, seat);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let word = child.stdin.take().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, word, out }
    }

    /// Waits until it has met the others; gives where it listens for them.
    pub(crate) fn door(&mut self) -> SocketAddr {
        self.says("door ").parse().unwrap()
    }

    /// Lets it open its links.
    pub(crate) fn go_on(&mut self) {
        self.word.write_all(b"\n").unwrap();
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn ends_well(&mut self) {
        self.says("right");
        assert!(self.child.wait().unwrap().success());
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// KiB of memory that it has.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn says(&mut self, start: &str) -> String {
        let mut lines = self.out.by_ref().lines().map_while(Result::ok);
        lines.find_map(|line| Some(line.strip_prefix(start)?.to_owned())).unwrap()
    }
}

impl Drop for Rank {
    /// Only a test that failed leaves something to end.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
