//! The living processes of a world and their store, which a launcher serves.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use nix::sys::signal::Signal;
use ringreduce::bootstrap::{Progress, Server, StartupStage};
use tempfile::TempDir;

use super::rank::{ARGUMENT, CLEAN, JOINING, WORKS};
use harness::process::{Process, patience};

/// The prefix of a notice of a joiner, which waits in the join queue alone for so long.
const WAITED: &str = "ringreduce: warning: waited ";

pub(crate) struct World {
    store: Server,
    folder: TempDir,
    transport: &'static str,
    /// The path of the function that each process runs.
    body: &'static str,
    /// The number of ranks at the start.
    size: usize,
    /// The processes, with a place for one more than at the start.
    ranks: Vec<Option<Rank>>,
}

struct Rank {
    process: Process,
    progress: Progress,
}

impl Rank {
    /// Waits until the last line with the prefix `kind` begins with `wanted`.
    fn says(&mut self, kind: &str, wanted: &str) -> Result<(), String> {
        let until = Instant::now() + patience();
        loop {
            let last = self.process.lines.iter().rfind(|line| line.starts_with(kind));
            if last.is_some_and(|line| line.starts_with(wanted)) {
                return Ok(());
            }
            self.process.next_line(until).map_err(|why| format!("{wanted:?}: {why}"))?;
        }
    }
}

impl World {
    pub(crate) fn start(n: usize, transport: &'static str) -> Self {
        Self::of("elastic::rank::rank", n, transport)
    }

    /// A world whose processes run `body`.
    pub(crate) fn of(body: &'static str, n: usize, transport: &'static str) -> Self {
        let (store, folder) = (Server::new().unwrap(), TempDir::new().unwrap());
        let ranks = (0..=n).map(|_| None).collect();
        let mut world = Self { store, folder, transport, body, size: n, ranks };
        (0..n).for_each(|number| world.launch(number, false, ("RUST_BACKTRACE", "0")));
        world
    }

    fn launch(&mut self, number: usize, is_new: bool, more: (&str, &str)) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let progress = self.store.adopt(ours).unwrap();
        let mut command = harness::process(self.body);
        command.env(ARGUMENT, format!("{number} {}", self.over().display()));
        // A process beyond the members joins with a rank of its own.
        command.env("RINGREDUCE_RANK", number.to_string()).env("RINGREDUCE_STORE", "fd:0");
        command.env("RINGREDUCE_SIZE", self.size.max(number + 1).to_string());
        command
            .env("RINGREDUCE_TRANSPORT", self.transport)
            .env("RINGREDUCE_CACHE", self.folder.path());
        if is_new {
            command.env("RINGREDUCE_JOIN", "1");
        }
        command.env("RUST_BACKTRACE", "0").env(more.0, more.1);
        // The store is the standard input of the process.
        command.stdin(OwnedFd::from(theirs));
        assert!(self.ranks[number].is_none());
        self.ranks[number] = Some(Rank { process: Process::start(command), progress });
    }

    fn over(&self) -> PathBuf {
        self.folder.path().join("over")
    }

    fn rank(&mut self, number: usize) -> &mut Rank {
        self.ranks[number].as_mut().unwrap()
    }

    /// Waits until all living processes, and no others, are members of one communicator.
    pub(crate) fn all_work(&mut self) {
        let lives = |number: &usize| self.ranks[*number].is_some();
        let mask: u64 = (0..self.ranks.len()).filter(lives).map(|number| 1 << number).sum();
        for number in 0..self.ranks.len() {
            let Some(rank) = &mut self.ranks[number] else { continue };
            if let Err(why) = rank.says(WORKS, &format!("{WORKS}{mask:b} ")) {
                let all = self.ranks.iter_mut().flatten();
                let lines = |rank: &mut Rank| {
                    while rank.process.next_line(Instant::now()).is_ok() {}
                    rank.process.lines.clone()
                };
                panic!("{number} {why}: {:#?}", all.map(lines).collect::<Vec<_>>());
            }
            // The rank has told the store first, which may not have read the message yet.
            self.store.process_pending();
            assert_eq!(rank.progress.stage(), StartupStage::Member);
        }
    }

    pub(crate) fn waits_to_join(&mut self, number: usize) {
        self.rank(number).says(JOINING, JOINING).unwrap();
    }

    /// Waits until a joiner says what it waits for.
    pub(crate) fn waits_for_grow(&mut self, number: usize) {
        self.rank(number).says(WAITED, WAITED).unwrap();
    }

    /// Waits until a process prints a line with this prefix; gives the line.
    pub(crate) fn line_of(&mut self, number: usize, prefix: &str) -> String {
        let rank = self.rank(number);
        if let Err(why) = rank.says(prefix, prefix) {
            panic!("{number} {why}: {:#?}", rank.process.lines);
        }
        rank.process.lines.iter().rfind(|line| line.starts_with(prefix)).unwrap().clone()
    }

    /// Stops a process, and waits until the system says so.
    pub(crate) fn stop(&mut self, number: usize) {
        let rank = self.rank(number);
        rank.process.signal(Signal::SIGSTOP);
        rank.process.is_stopped();
    }

    pub(crate) fn pid(&mut self, number: usize) -> u32 {
        self.rank(number).process.pid()
    }

    /// Makes the file that the processes look for.
    pub(crate) fn tell(&self) {
        std::fs::write(self.over(), "").unwrap();
    }

    pub(crate) fn signal(&mut self, number: usize, signal: Signal) {
        self.rank(number).process.signal(signal);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        drop(self.ranks[number].take().unwrap());
    }

    pub(crate) fn restart(&mut self, number: usize) {
        self.launch(number, true, ("RUST_BACKTRACE", "0"));
    }

    pub(crate) fn restart_with(&mut self, number: usize, setting: (&str, &str)) {
        self.launch(number, true, setting);
    }

    /// Waits for the end of a process that fails; gives its lines.
    pub(crate) fn fails(&mut self, number: usize) -> String {
        let (well, lines) = self.ranks[number].take().unwrap().process.end();
        assert!(!well, "{lines}");
        lines
    }

    /// Lets all living processes end, which must leak no resource.
    pub(crate) fn end(self) {
        self.tell();
        for rank in self.ranks.into_iter().flatten() {
            let lines = rank.process.succeeds("the end");
            assert!(lines.lines().any(|line| line == CLEAN), "{lines}");
        }
    }
}
