//! Worlds of ranks that are processes.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ringreduce::{Builder, Communicator, Transport};

use crate::hosts::Hosts;
pub use crate::process::Process;

/// Tells a process its rank, the world size, the store and the transport.
const RANK: &str = "TEST_RANK";

/// The rank that this process was started as, if [`World`] did.
pub fn this_rank() -> Option<Communicator> {
    let (builder, size, transport) = this_builder()?;
    let comm = builder.build().unwrap();
    assert!(size == 1 || transport == "auto" || comm.transports() == [transport]);
    Some(comm)
}

/// The builder of this process's rank before it is used, the world size and the transport.
pub fn this_builder() -> Option<(Builder, usize, String)> {
    let rank = std::env::var(RANK).ok()?;
    let [rank, size, store, transport] = rank.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{rank}");
    };
    let (rank, size) = (rank.parse().unwrap(), size.parse().unwrap());
    let forced = match transport {
        "tcp" => Transport::Tcp,
        "auto" => Transport::Auto,
        _ => Transport::Shm,
    };
    let builder = Communicator::builder().rank(rank).size(size).store(store);
    Some((builder.transport(forced), size, transport.to_owned()))
}

/// Runs a world of `n` ranks that execute `body`; all must end well.
pub fn run(body: &str, n: usize, transport: &str) {
    let mut failed = String::new();
    let world = World::start(body, n, transport, |_| Vec::new());
    for (rank, (ended, lines)) in world.ends().into_iter().enumerate() {
        if !ended {
            failed += &format!("rank {rank} of {n} by {transport}: {lines}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Ranks, in order.
pub struct World(pub Vec<Process>);

impl World {
    /// Starts `n` ranks that execute `body`, each with its own environment variables. If one needs
    /// settings of the stand-in, and the driver is another one, the process ends with a SKIP.
    pub fn start(
        body: &str,
        n: usize,
        transport: &str,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let of_standin = |rank| settings(rank).iter().any(|(name, _)| name.starts_with("STANDIN_"));
        if crate::has_own_driver() && (0..n).any(of_standin) {
            crate::skip_without_standin(body);
            std::process::exit(0);
        }
        let store = format!("unix:@{body}-{n}-{transport}-{}-{}", std::process::id(), number());
        Self::spawn(n, &store, transport, settings, |_| crate::process(body))
    }

    /// As [`Self::start`], on two hosts; ranks below `first` are on the first one.
    pub fn on(
        (hosts, first): (&Hosts, usize),
        body: &str,
        n: usize,
        transport: &str,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let command = |rank| hosts.process(usize::from(rank >= first), body);
        Self::spawn(n, &hosts.store(), transport, settings, command)
    }

    fn spawn(
        n: usize,
        store: &str,
        transport: &str,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
        command: impl Fn(usize) -> Command,
    ) -> Self {
        let start = |rank| {
            let mut command = command(rank);
            command.envs(settings(rank)).stdin(Stdio::piped());
            command.env(RANK, format!("{rank} {n} {store} {transport}"));
            Process::start(command)
        };
        Self((0..n).map(start).collect())
    }

    /// Waits until all are at work.
    pub fn is_at_work(&mut self) {
        self.0.iter_mut().for_each(Process::is_at_work);
    }

    /// Waits for the end of all: whether each ended well, and its lines.
    pub fn ends(self) -> Vec<(bool, String)> {
        self.0.into_iter().map(Process::end).collect()
    }

    /// Waits for the end of all, which must be a good one; gives the lines of each.
    pub fn succeeds(self, context: &str) -> Vec<String> {
        self.0.into_iter().map(|rank| rank.succeeds(context)).collect()
    }
}

/// A number that no other world of this process has: several may run at a time.
pub fn number() -> u32 {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    WORLDS.fetch_add(1, Ordering::Relaxed)
}
