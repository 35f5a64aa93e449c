//! Worlds of ranks that are processes.

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use ringreduce::{Builder, Communicator, Transport};

use crate::hosts::Hosts;
pub use crate::process::Process;

/// What tells a process which rank it is: rank, size, store and transport.
const SEAT: &str = "TEST_RANKS_SEAT";

/// The rank that this process was started as, if [`run`] did.
pub fn this_rank() -> Option<Communicator> {
    let (builder, size, transport) = this_seat()?;
    let comm = builder.build().unwrap();
    assert!(size == 1 || comm.transports() == [transport]);
    Some(comm)
}

/// The same before it meets the others; how many there are, and over what.
pub fn this_seat() -> Option<(Builder, usize, String)> {
    let seat = std::env::var(SEAT).ok()?;
    let [rank, size, store, transport] = seat.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{seat}");
    };
    let (rank, size) = (rank.parse().unwrap(), size.parse().unwrap());
    let forced = if transport == "tcp" { Transport::Tcp } else { Transport::Shm };
    let builder = Communicator::builder().rank(rank).size(size).store(store);
    Some((builder.transport(forced), size, transport.to_owned()))
}

/// Starts `n` ranks, each of which does what `body` names; all must end well.
pub fn run(body: &str, n: usize, transport: &str) {
    let mut failed = String::new();
    let world = World::start(body, n, transport, |_| Vec::new());
    for (rank, process) in world.0.into_iter().enumerate() {
        let (ended, says) = process.end();
        if !ended {
            failed += &format!("rank {rank} of {n} by {transport}: {says}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Ranks, in order.
pub struct World(pub Vec<Process>);

impl World {
    /// Starts `n` ranks that do what `body` names, each with these settings.
    pub fn start(
        body: &str,
        n: usize,
        transport: &str,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let store = format!("unix:@{body}-{n}-{transport}-{}-{}", std::process::id(), number());
        let start = |rank| {
            let mut command = crate::process(body);
            command.envs(settings(rank)).stdin(Stdio::piped());
            command.env(SEAT, format!("{rank} {n} {store} {transport}"));
            Process::start(command)
        };
        Self((0..n).map(start).collect())
    }

    /// The same on two hosts, the first of them for the first so many ranks. Over TCP.
    pub fn on(
        hosts: &Hosts,
        first: usize,
        body: &str,
        n: usize,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let store = hosts.store();
        let start = |rank| {
            let mut command = hosts.process(usize::from(rank >= first), body);
            command.envs(settings(rank)).stdin(Stdio::piped());
            command.env(SEAT, format!("{rank} {n} {store} tcp"));
            Process::start(command)
        };
        Self((0..n).map(start).collect())
    }

    /// Waits until all are at work.
    pub fn is_at_work(&mut self) {
        self.0.iter_mut().for_each(Process::is_at_work);
    }
}

/// Worlds may be started side by side.
pub fn number() -> u32 {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    WORLDS.fetch_add(1, Ordering::Relaxed)
}
