//! The processes of a world with their store, as a launcher keeps it; who of them lives.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use nix::sys::signal::Signal;
use ringreduce::bootstrap::{Progress, Server, Stage};
use tempfile::TempDir;

use super::rank::{CLEAN, OUTSIDE, SEAT, WORKS};
use harness::process::{PATIENCE, Process};

pub(crate) struct World {
    store: Server,
    folder: TempDir,
    transport: &'static str,
    ranks: Vec<Option<Rank>>,
}

struct Rank {
    process: Process,
    progress: Progress,
}

impl Rank {
    /// Waits until what it said last of these is this.
    fn says(&mut self, kind: &str, wanted: &str) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let last = self.process.said.iter().rfind(|line| line.starts_with(kind));
            if last.is_some_and(|line| line.starts_with(wanted)) {
                return Ok(());
            }
            self.process.hears(until).map_err(|why| format!("{wanted:?}: {why}"))?;
        }
    }
}

impl World {
    pub(crate) fn empty(n: usize, transport: &'static str) -> Self {
        let (store, folder) = (Server::new().unwrap(), TempDir::new().unwrap());
        Self { store, folder, transport, ranks: (0..n).map(|_| None).collect() }
    }

    pub(crate) fn start(n: usize, transport: &'static str) -> Self {
        let mut world = Self::empty(n, transport);
        (0..n).for_each(|seat| world.launch(seat, false, ("RUST_BACKTRACE", "0")));
        world
    }

    fn launch(&mut self, seat: usize, is_new: bool, more: (&str, &str)) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let progress = self.store.adopt_rank(ours).unwrap();
        let mut command = harness::process("elastic::rank::body");
        command.env(SEAT, format!("{seat} {}", self.over().display()));
        command.env("RINGREDUCE_RANK", seat.to_string()).env("RINGREDUCE_STORE", "fd:0");
        command.env("RINGREDUCE_SIZE", self.ranks.len().to_string());
        command
            .env("RINGREDUCE_TRANSPORT", self.transport)
            .env("RINGREDUCE_CACHE", self.folder.path());
        if is_new {
            command.env("RINGREDUCE_JOIN", "1");
        }
        command.env("RUST_BACKTRACE", "0").env(more.0, more.1);
        // The store is what it reads.
        command.stdin(OwnedFd::from(theirs));
        assert!(self.ranks[seat].is_none());
        self.ranks[seat] = Some(Rank { process: Process::start(command), progress });
    }

    fn over(&self) -> PathBuf {
        self.folder.path().join("over")
    }

    fn rank(&mut self, seat: usize) -> &mut Rank {
        self.ranks[seat].as_mut().unwrap()
    }

    /// Waits until all that live work together, and nobody else.
    pub(crate) fn all_work(&mut self) {
        let lives = |seat: &usize| self.ranks[*seat].is_some();
        let mask: u64 = (0..self.ranks.len()).filter(lives).map(|seat| 1 << seat).sum();
        for seat in 0..self.ranks.len() {
            let Some(rank) = &mut self.ranks[seat] else { continue };
            if let Err(why) = rank.says(WORKS, &format!("{WORKS}{mask:b} ")) {
                let all = self.ranks.iter_mut().flatten();
                let said = |rank: &mut Rank| {
                    while rank.process.hears(Instant::now()).is_ok() {}
                    rank.process.said.clone()
                };
                panic!("{seat} {why}: {:#?}", all.map(said).collect::<Vec<_>>());
            }
            // It has told the store before, which may not have heard it yet.
            self.store.hear();
            assert_eq!(rank.progress.stage(), Stage::Member);
        }
    }

    pub(crate) fn waits_outside(&mut self, seat: usize) {
        self.rank(seat).says(OUTSIDE, OUTSIDE).unwrap();
    }

    pub(crate) fn signal(&mut self, seat: usize, signal: Signal) {
        self.rank(seat).process.signal(signal);
    }

    pub(crate) fn kill(&mut self, seat: usize) {
        drop(self.ranks[seat].take().unwrap());
    }

    pub(crate) fn comes_back(&mut self, seat: usize) {
        self.launch(seat, true, ("RUST_BACKTRACE", "0"));
    }

    pub(crate) fn comes_back_with(&mut self, seat: usize, setting: (&str, &str)) {
        self.launch(seat, true, setting);
    }

    /// Waits for the end of one that does not end well; what it said.
    pub(crate) fn fails(&mut self, seat: usize) -> String {
        let (well, said) = self.ranks[seat].take().unwrap().process.end();
        assert!(!well, "{said}");
        said
    }

    /// All that are left are told to end: they end well and hold nothing any more.
    pub(crate) fn end(self) {
        std::fs::write(self.over(), "").unwrap();
        for rank in self.ranks.into_iter().flatten() {
            let (well, said) = rank.process.end();
            assert!(well && said.lines().any(|line| line == CLEAN), "{said}");
        }
    }
}
