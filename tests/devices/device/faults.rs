//! Ranks that are killed or stopped while streams of other ranks wait for them: every survivor gets
//! an error that leads to the victim, its streams end, and its device stays usable.

use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cudarc::driver::CudaStream;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, ReduceOp, Result};

use super::super::standin::{self, DEVICES, PEERS, on_standin};
use super::fixture::{attach_direct, finish, stream};
use super::p2p_domains::{self, LAYOUTS};
use harness::processes::{Process, World, this_rank};
use harness::share::random_range;

/// The path of calls ("staged", "direct", or the number of a layout of P2P domains), the timeout in
/// milliseconds, and the rounds of calls.
const PATH: &str = "TEST_FAULTS_PATH";
const TIMEOUT: &str = "TEST_FAULTS_TIMEOUT";
const ROUNDS: &str = "TEST_FAULTS_ROUNDS";
/// The start of the line that a rank prints with its error, followed by the time in microseconds.
const ERROR: &str = "error at ";
/// The limit from a death to the errors of all survivors, which may have to wait for a CPU. It is
/// far below the timeout.
const LIMIT: Duration = Duration::from_secs(4);
/// A timeout that no call reaches by itself, also where CPUs are few.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

fn setting<T: FromStr<Err = ParseIntError>>(name: &str) -> T {
    std::env::var(name).unwrap().parse().unwrap()
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Staged,
    Direct,
    /// By the number of the layout.
    Domains(usize),
}

impl Path {
    fn setting(self) -> String {
        match self {
            Self::Staged => "staged".into(),
            Self::Direct => "direct".into(),
            Self::Domains(layout) => layout.to_string(),
        }
    }

    /// The path of this process's calls.
    fn of_process() -> Self {
        match &*std::env::var(PATH).unwrap() {
            "staged" => Self::Staged,
            "direct" => Self::Direct,
            layout => Self::Domains(layout.parse().unwrap()),
        }
    }

    fn attach(self, comm: &mut Communicator) -> Arc<CudaStream> {
        match self {
            Self::Staged => stream(comm),
            Self::Direct => attach_direct(comm),
            Self::Domains(layout) => p2p_domains::attach(comm, LAYOUTS[layout]),
        }
    }

    fn work(self, comm: &mut Communicator, stream: &Arc<CudaStream>, rounds: usize) -> Result<()> {
        match self {
            Self::Domains(_) => work_of_domains(comm, stream),
            _ => work(comm, stream, rounds),
        }
    }
}

/// Rounds of calls between two that are waited for.
const BATCH: u32 = 16;

/// Makes calls of several kinds, few of which are waited for, until one fails.
fn work(comm: &mut Communicator, stream: &Arc<CudaStream>, rounds: usize) -> Result<()> {
    let (n, len) = (comm.size() as i64, 1000 * comm.size());
    let mut shared = comm.alloc_device::<i64>(stream, len)?;
    let mut other = stream.clone_htod(&vec![1_i64; len]).unwrap();
    let mut into = stream.clone_htod(&vec![0_i64; len]).unwrap();
    stream.synchronize().unwrap();
    comm.barrier()?;
    Process::works();
    for _ in 0..rounds {
        stream.memcpy_htod(&vec![1; len], &mut shared.view_mut()).unwrap();
        for _ in 0..BATCH {
            let mut on = comm.on_stream(stream);
            on.all_reduce(&mut shared, ReduceOp::Sum)?;
            on.all_reduce(&mut shared, ReduceOp::Avg)?;
            on.all_reduce(&mut other, ReduceOp::Max)?;
            on.all_to_all(&other, &mut into)?;
        }
        finish(comm, stream)?;
        let found = stream.clone_dtoh(&*shared).unwrap();
        assert!(found.into_iter().all(|it| it == n.pow(BATCH)));
        assert!(stream.clone_dtoh(&into).unwrap().into_iter().all(|it| it == 1));
    }
    Ok(())
}

/// Makes calls of all kinds that P2P domains have, and checks the results, until one fails.
fn work_of_domains(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let (n, rank, len) = (comm.size(), comm.rank(), 1000);
    let mut short = stream.clone_htod(&vec![1_i64; len]).unwrap();
    let mut long = stream.clone_htod(&vec![1_i64; n * len]).unwrap();
    comm.barrier()?;
    for round in 0.. {
        let (root, mut on) = (round % n, comm.on_stream(stream));
        on.all_reduce(&mut short, ReduceOp::Sum)?;
        on.all_gather(&short, &mut long)?;
        on.reduce_scatter(&long, &mut short, ReduceOp::Avg)?;
        on.reduce(&mut short, ReduceOp::Sum, root)?;
        on.broadcast(&mut short, root)?;
        on.gather(&short, &mut long, root)?;
        on.scatter(&long, &mut short, root)?;
        finish(comm, stream)?;
        let found = stream.clone_dtoh(&short).unwrap();
        let wanted = (n * n) as i64;
        assert!(found.into_iter().all(|it| it == wanted), "rank {rank}, round {round}");
        stream.memcpy_htod(&vec![1_i64; len], &mut short).unwrap();
        if round == 2 * n {
            Process::works();
        }
    }
    Ok(())
}

/// Copies and kernels on the device must still work.
fn is_usable(stream: &Arc<CudaStream>) {
    stream.synchronize().unwrap();
    let from = stream.clone_htod(&[7_i32; 1000]).unwrap();
    let mut to = stream.clone_htod(&[0_i32; 1000]).unwrap();
    let mut alone = Communicator::local(1).unwrap().remove(0);
    alone.use_device(stream.context()).unwrap();
    alone.on_stream(stream).all_reduce_into(&from, &mut to, ReduceOp::Sum).unwrap();
    alone.on_stream(stream).check().unwrap();
    assert_eq!(stream.clone_dtoh(&to).unwrap(), [7; 1000]);
}

const VERBS: [&str; 8] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
];

/// The peer that the error of a rank names. The error must name the rank, the call and the peer by
/// their numbers in the communicator.
fn named(rank: usize, error: &str, pids: &[u32]) -> usize {
    let (me, rest) = error.split_once(" in ").unwrap_or_else(|| panic!("{rank}: {error}"));
    assert!(me.starts_with(&format!("rank {rank} (host ")), "{rank}: {error}");
    let (verb, rest) = rest.split_once(" #").unwrap();
    assert!(VERBS.contains(&verb), "{rank}: {error}");
    let number = rest.split(',').next().unwrap();
    assert!(number.parse::<u64>().is_ok_and(|number| number > 0), "{rank}: {error}");
    let kinds = [": lost rank ", ": nothing from rank "];
    let peer = kinds.iter().find_map(|kind| Some(rest.split_once(kind)?.1));
    let peer = peer.unwrap_or_else(|| panic!("{rank}: {error}"));
    let digits: String = peer.chars().take_while(char::is_ascii_digit).collect();
    let number: usize = digits.parse().unwrap();
    assert!(peer.contains(&format!("pid {})", pids[number])), "{rank}: {error}, of {pids:?}");
    number
}

/// A world that works until a rank fails, or for some rounds.
#[derive(Clone, Copy)]
struct Trial {
    n: usize,
    transport: &'static str,
    path: Path,
    timeout: Duration,
    rounds: usize,
}

impl Trial {
    fn new(n: usize, path: Path) -> Self {
        Self { n, transport: "shm", path, timeout: LONG_TIMEOUT, rounds: usize::MAX }
    }

    fn start(&self) -> World {
        let (timeout, rounds) = (self.timeout.as_millis().to_string(), self.rounds.to_string());
        let settings = |_| {
            let path = (PATH, self.path.setting());
            vec![path, (TIMEOUT, timeout.clone()), (ROUNDS, rounds.clone())]
        };
        let body = standin::name_of(module_path!(), "rank");
        let mut world = World::start(&body, self.n, self.transport, settings);
        world.is_at_work();
        if !matches!(self.path, Path::Domains(_)) {
            sleep(Duration::from_micros(random_range(0..60_000)));
        }
        world
    }

    fn name(&self) -> String {
        format!("{} ranks, {:?} over {}", self.n, self.path, self.transport)
    }

    /// Every survivor must get an error within `limit`, if there is one. Direct calls name the
    /// victim. Otherwise each rank names the peer that it waited for, up to the victim, which the
    /// ranks of its P2P domain name at once if it `is_killed`.
    fn survives(
        &self,
        world: World,
        victim: usize,
        since: Duration,
        limit: Option<Duration>,
        is_killed: bool,
    ) {
        let pids: Vec<_> = world.0.iter().map(Process::pid).collect();
        let mut peers = Vec::new();
        for (rank, process) in world.0.into_iter().enumerate() {
            let (succeeded, prints) = process.end();
            if rank == victim {
                peers.push(victim);
                continue;
            }
            let name = format!("rank {rank} of {}, without {victim}", self.name());
            assert!(succeeded, "{name}: {prints}");
            let line = prints.lines().find_map(|line| line.strip_prefix(ERROR));
            let line = line.unwrap_or_else(|| panic!("{name}: {prints}"));
            let (at, error) = line.split_once(' ').unwrap();
            let took = Duration::from_micros(at.parse().unwrap()).saturating_sub(since);
            eprintln!("{name}: after {took:.1?}: {error}");
            assert!(limit.is_none_or(|limit| took < limit), "{name}: after {took:?}: {error}");
            peers.push(named(rank, error, &pids));
        }
        for (rank, _) in peers.iter().enumerate() {
            let names_victim = match self.path {
                Path::Direct => true,
                Path::Staged => false,
                Path::Domains(at) => is_killed && LAYOUTS[at][rank] == LAYOUTS[at][victim],
            };
            let steps = if names_victim { 1 } else { self.n };
            let last = (0..steps).fold(rank, |at, _| peers[at]);
            assert_eq!(last, victim, "rank {rank} of {}: {peers:?}", self.name());
        }
    }

    fn kill(&self, victim: usize) {
        let world = self.start();
        let since = now();
        world.0[victim].kill();
        let limit = (!matches!(self.path, Path::Domains(_))).then_some(LIMIT);
        self.survives(world, victim, since, limit, true);
    }

    /// Stops a rank until all others have their errors.
    fn stop(&self, victim: usize) {
        let mut world = self.start();
        let since = now();
        world.0[victim].signal(Signal::SIGSTOP);
        let others = world.0.iter_mut().enumerate().filter(|(rank, _)| *rank != victim);
        for (_, process) in others {
            process.says(ERROR);
        }
        match self.path {
            // The victim's kernels hold the streams of the others.
            Path::Domains(_) => world.0[victim].kill(),
            _ => world.0[victim].signal(Signal::SIGCONT),
        }
        self.survives(world, victim, since, Some(self.timeout + 2 * LIMIT), false);
    }
}

/// The first rank, and one of the others.
fn victims(n: usize) -> [usize; 2] {
    [0, random_range(1..n)]
}

/// A rank of a trial.
pub(crate) fn rank() {
    let mut comm = this_rank().unwrap();
    let (path, rounds) = (Path::of_process(), setting(ROUNDS));
    comm.set_timeout(Duration::from_millis(setting(TIMEOUT)));
    let stream = path.attach(&mut comm);
    let done = path.work(&mut comm, &stream, rounds);
    if rounds < usize::MAX {
        return done.unwrap();
    }
    eprintln!("{ERROR}{} {}", now().as_micros(), done.unwrap_err());
    is_usable(&stream);
    // The error stays, and no stream waits.
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let again = again.and_then(|()| comm.on_stream(&stream).check()).unwrap_err().to_string();
    assert!(matches!(path, Path::Domains(_)) || again.contains("failed before"), "{again}");
    drop(comm);
    is_usable(&stream);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    fn killed(path: Path, worlds: &[(usize, &'static str)]) {
        for &(n, transport) in worlds {
            let trial = Trial { transport, ..Trial::new(n, path) };
            victims(n).into_iter().for_each(|victim| trial.kill(victim));
        }
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!names.contains(&format!("-{}-", std::process::id())), "{names}");
    }

    pub(crate) fn killed_direct() {
        killed(Path::Direct, &[(2, "shm"), (3, "shm"), (4, "shm")]);
    }

    /// Devices on a ring: some calls go around it, some by way of the host.
    pub(crate) fn killed_on_a_ring() {
        killed(Path::Direct, &[(4, "shm"); 3]);
    }

    pub(crate) fn killed_staged() {
        killed(Path::Staged, &[(2, "shm"), (3, "tcp"), (4, "shm")]);
    }

    /// Leaders, other ranks, and a rank that is alone in its domain.
    pub(crate) fn killed_in_domains() {
        for (layout, victim) in [(0, 0), (0, 1), (0, 2), (4, 0), (4, 3)] {
            Trial::new(LAYOUTS[layout].len(), Path::Domains(layout)).kill(victim);
        }
    }

    pub(crate) fn stopped_in_domains() {
        for (layout, victim) in [(0, 1), (4, 0)] {
            let trial = Trial::new(LAYOUTS[layout].len(), Path::Domains(layout));
            Trial { timeout: SHORT_TIMEOUT, ..trial }.stop(victim);
        }
    }

    /// Stopped for longer than the timeout.
    pub(crate) fn stopped() {
        for (n, path) in [(2, Path::Direct), (3, Path::Direct), (2, Path::Staged)] {
            let trial = Trial { timeout: SHORT_TIMEOUT, ..Trial::new(n, path) };
            victims(n).into_iter().for_each(|victim| trial.stop(victim));
        }
    }

    /// Stopped for less than the timeout.
    pub(crate) fn paused() {
        for (n, path) in [(2, Path::Direct), (4, Path::Direct), (3, Path::Staged)] {
            let trial = Trial { rounds: 5, ..Trial::new(n, path) };
            let (world, victim) = (trial.start(), random_range(0..n));
            world.0[victim].signal(Signal::SIGSTOP);
            sleep(Duration::from_millis(300));
            world.0[victim].signal(Signal::SIGCONT);
            world.succeeds(&trial.name());
        }
    }
}

on_standin! {
    (rank)

    a_killed_rank_is_named_by_every_peer: killed_direct [];
    a_killed_rank_on_a_ring_of_devices_is_named: killed_on_a_ring [DEVICES = "4", PEERS = "ring"];
    a_killed_rank_is_named_by_way_of_the_host: killed_staged [];
    a_killed_rank_is_named_in_all_p2p_domains: killed_in_domains [DEVICES = "3", PEERS = "none"];
    a_stopped_rank_is_named_in_all_p2p_domains: stopped_in_domains [DEVICES = "3", PEERS = "none"];
    a_rank_that_is_stopped_too_long_is_named: stopped [];
    a_rank_that_is_stopped_for_a_while_is_waited_for: paused [];
}
