//! Worlds of ranks that are processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use ringreduce::{Builder, Communicator, Transport};

/// What tells a process which rank it is: rank, size, store and transport.
const SEAT: &str = "TEST_RANKS_SEAT";
/// What a rank says when it does what it was started for.
const AT_WORK: &str = "at work";

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
    for (rank, child) in world.0.into_iter().enumerate() {
        let (ended, says) = child.end();
        if !ended {
            failed += &format!("rank {rank} of {n} by {transport}: {says}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Ranks, in order.
pub struct World(pub Vec<Rank>);

impl World {
    /// Starts `n` ranks that do what `body` names, each with these settings.
    pub fn start(
        body: &str,
        n: usize,
        transport: &str,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        // Worlds may be started side by side.
        static WORLDS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let (pid, world) =
            (std::process::id(), WORLDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let store = format!("unix:@{body}-{n}-{transport}-{pid}-{world}");
        let start = |rank| {
            let mut command = crate::process(body);
            command.envs(settings(rank));
            command.env(SEAT, format!("{rank} {n} {store} {transport}"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            super::signals::default(&mut command);
            let mut child = command.spawn().unwrap();
            let stderr = BufReader::new(child.stderr.take().unwrap());
            Rank { child, stderr, said: String::new() }
        };
        Self((0..n).map(start).collect())
    }
}

/// A process that is a rank.
pub struct Rank {
    pub child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Rank {
    /// Says so to whoever waits with [`Self::is_at_work`].
    pub fn works() {
        eprintln!("{AT_WORK}");
    }

    /// Waits until it says so; it may have ended instead.
    pub fn is_at_work(&mut self) {
        self.says(AT_WORK);
    }

    /// Waits until it says what begins so; it may have ended instead.
    pub fn says(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.starts_with(wanted) {
            line.clear();
            if self.stderr.read_line(&mut line).unwrap() == 0 {
                return;
            }
            crate::pass_on(&line);
            self.said.push_str(&line);
        }
    }

    /// Waits for its end: did it end well, and what has it said?
    pub fn end(mut self) -> (bool, String) {
        // What it prints besides is the harness's, and little.
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        rest.lines().for_each(crate::pass_on);
        self.said.push_str(&rest);
        let ended = self.child.wait_with_output().unwrap();
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        (ended.status.success(), format!("{}\n{out}\n{}", ended.status, self.said))
    }
}
