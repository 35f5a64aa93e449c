//! Ranks that are killed, stopped or late: the error of every survivor names the rank that is the
//! cause, whichever peer the survivor waited for, and the state of that rank.
#![allow(unsafe_code, reason = "forks")]

pub(crate) mod eviction;
pub(crate) mod mismatch;
pub(crate) mod partition;
pub(crate) mod recovery;
pub(crate) mod shrink;
pub(crate) mod single_copy;
pub(crate) mod suspended;
pub(crate) mod uniform;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::hosts::Hosts;
use harness::processes::{Process, World, this_rank};
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, alarm, fork, pause};
use ringreduce::{Communicator, Error, FoldOrder, ReduceOp, Registered, Result, Stall};

/// Tell a rank its task, the victim, and the timeout in milliseconds, or 0 for none.
const TASK: &str = "TEST_FAULTS_TASK";
const VICTIM: &str = "TEST_FAULTS_VICTIM";
const TIMEOUT: &str = "TEST_FAULTS_TIMEOUT";
/// The prefix of a line with the time of a rank's error, its kind and the rank that it names.
const FAILED: &str = "failed at ";
/// The prefix of a line with the pid of a copy that holds the rank's descriptors.
const HELD_BY: &str = "held by ";

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn variable<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    std::env::var(name).unwrap().parse().unwrap()
}

/// The largest world whose ranks have links between all pairs.
const ALL_PAIRS: &str = "RINGREDUCE_ALL_PAIRS";

/// The links of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Between all pairs of ranks.
    AllPairs,
    /// To the neighbours on the ring and to ranks at distances of powers of two, as in a world of
    /// more than 32 ranks.
    Few,
}

impl Links {
    fn settings(self) -> Vec<(&'static str, String)> {
        match self {
            Self::AllPairs => Vec::new(),
            Self::Few => vec![(ALL_PAIRS, "2".into())],
        }
    }
}

/// Registered memory of some pages, for [`work`].
fn alloc(comm: &mut Communicator) -> Registered<'static, i64> {
    comm.alloc(20_000).unwrap()
}

/// Makes calls of several lengths and kinds and checks their results, until one fails.
fn work(comm: &mut Communicator, shared: &mut [i64]) -> Result<()> {
    let (n, rank) = (comm.size(), comm.rank());
    for round in 0_usize.. {
        let len = [1, 1000, 40_000][round % 3];
        let mut buf = vec![rank as i64 + 1; len];
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        let sum = (n * (n + 1) / 2) as i64;
        assert!(buf.iter().all(|&it| it == sum), "round {round}");
        shared.fill(rank as i64 + 1);
        comm.all_reduce(shared, ReduceOp::Sum)?;
        assert!(shared.iter().all(|&it| it == sum), "round {round}");
        let mut all = vec![0; n * len];
        comm.all_gather(&buf, &mut all)?;
        assert!(all.iter().all(|&it| it == buf[0]), "round {round}");
        comm.broadcast(&mut buf, round % n)?;
        comm.barrier()?;
    }
    Ok(())
}

/// The line by which a rank reports its error.
fn report(error: &Error) -> String {
    let (kind, peer) = match error {
        Error::PeerLost { peer, .. } => ("lost", peer.rank),
        Error::Stalled { peer, state: Stall::Paused { .. }, .. } => ("paused", peer.rank),
        Error::Stalled { peer, state: Stall::NeverEntered { .. }, .. } => ("absent", peer.rank),
        Error::Stalled { peer, state: Stall::Silent { .. }, .. } => ("silent", peer.rank),
        Error::Timeout { peer, .. } => ("late", peer.rank),
        _ => ("other", usize::MAX),
    };
    format!("{FAILED}{} {kind} {peer} {error}", now().as_micros())
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    let (task, victim) = (variable::<String>(TASK), variable::<usize>(VICTIM));
    let me = comm.rank();
    match &*task {
        "is held" if me == victim => eprintln!("{HELD_BY}{}", copy_process()),
        "has children" if me == victim => eprintln!("{HELD_BY}{}", fork_family()),
        _ => {}
    }
    let mut shared = alloc(&mut comm);
    match variable(TIMEOUT) {
        0 => comm.set_timeout(Duration::MAX),
        millis => comm.set_timeout(Duration::from_millis(millis)),
    }
    Process::works();
    if task == "absent" && me == victim {
        // The test closes the standard input when the others have reported.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let done = match &*task {
        single_copy::TASK => single_copy::work(&mut comm),
        "busy" => be_busy(&mut comm, victim),
        _ => work(&mut comm, &mut shared),
    };
    let error = done.unwrap_err();
    eprintln!("{}", report(&error));
}

/// Makes a call in which the victim folds until the test closes its standard input, and ends then.
fn be_busy(comm: &mut Communicator, victim: usize) -> Result<()> {
    let is_victim = comm.rank() == victim;
    comm.all_reduce_by(&mut vec![1_i64; 40_000], FoldOrder::Any, |one, other| {
        if is_victim {
            let _ = std::io::stdin().read_line(&mut String::new());
            std::process::exit(0);
        }
        one + other
    })
}

/// Makes an idle copy of this process, which keeps all descriptors open when this process dies: a
/// fork by the system call alone, of which the C library knows nothing.
fn copy_process() -> i64 {
    // SAFETY: the copy only waits for signals and ends by one.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        0 => idle(),
        copy => copy,
    }
}

fn idle() -> ! {
    alarm::set(100);
    loop {
        pause();
    }
}

/// Forks a child that has a child of its own, as data loaders are; both are idle.
fn fork_family() -> i64 {
    let fork = || {
        // SAFETY: the children only wait for signals and end by one.
        unsafe { fork() }.unwrap()
    };
    let ForkResult::Parent { child } = fork() else {
        if matches!(fork(), ForkResult::Child) {
            prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
        }
        idle()
    };
    child.as_raw().into()
}

/// A world and its victim.
struct Trial {
    n: usize,
    transport: &'static str,
    victim: usize,
    timeout: Duration,
}

impl Trial {
    fn start(&self, task: &str) -> World {
        self.begin(World::start("faults::rank", self.n, self.transport, self.settings(task)))
    }

    fn settings(&self, task: &str) -> impl Fn(usize) -> Vec<(&'static str, String)> {
        let (task, victim) = (task.to_owned(), self.victim.to_string());
        let timeout = self.timeout.as_millis().to_string();
        move |_| vec![(TASK, task.clone()), (VICTIM, victim.clone()), (TIMEOUT, timeout.clone())]
    }

    fn begin(&self, mut world: World) -> World {
        world.is_at_work();
        std::thread::sleep(Duration::from_micros(harness::share::random_range(0..50_000)));
        world
    }

    /// All others name the victim in an error of one of these kinds; gives the latest time.
    fn all_name(&self, ranks: Vec<Process>, kinds: &[&str], since: Duration) -> Duration {
        let Self { n, transport, victim, .. } = self;
        let mut latest = Duration::ZERO;
        for rank in ranks {
            let context = format!("{n} by {transport}, without {victim}");
            let lines = rank.succeeds(&context);
            let line = lines.lines().find_map(|line| line.strip_prefix(FAILED)).unwrap();
            let words: Vec<_> = line.splitn(4, ' ').collect();
            assert!(kinds.contains(&words[1]), "{context}: {lines}");
            assert_eq!(words[2], victim.to_string(), "{context}: {lines}");
            let at = Duration::from_micros(words[0].parse().unwrap());
            latest = latest.max(at.saturating_sub(since));
        }
        latest
    }

    /// Ends the victim by a signal; gives the time until the last survivor has its error.
    fn kill(&self, task: &str, signal: Signal) -> Duration {
        self.kill_in(self.start(task), signal)
    }

    fn kill_in(&self, mut world: World, signal: Signal) -> Duration {
        let victim = world.0.remove(self.victim);
        let copy = victim.line_after(HELD_BY).map(|pid| Pid::from_raw(pid.parse().unwrap()));
        let since = now();
        victim.signal(signal);
        let latest = self.all_name(world.0, &["lost"], since);
        if let Some(copy) = copy {
            kill(copy, Signal::SIGKILL).unwrap();
        }
        latest
    }
}

const LONG: Duration = Duration::from_secs(60);
/// Longer than any call takes by itself, also where CPUs are scarce.
const SHORT: Duration = Duration::from_secs(3);

/// docs/failures.md promises milliseconds where CPUs are free. On a busy machine a survivor waits
/// for a CPU first, but detects the death before five seconds of silence would show it.
const PROMPTLY: Duration = Duration::from_secs(4);

#[test]
fn a_killed_rank_is_named_by_every_peer() {
    for n in [2, 3, 4, 8] {
        for transport in ["shm", "tcp"] {
            for victim in [0, n - 1] {
                let trial = Trial { n, transport, victim, timeout: LONG };
                // One of the signals may be caught.
                let signal = if n == 3 { Signal::SIGTERM } else { Signal::SIGKILL };
                let latest = trial.kill("works", signal);
                eprintln!("{n} by {transport}: the last error after {latest:.1?}");
                assert!(latest < PROMPTLY, "{n} by {transport}, without {victim}: {latest:.1?}");
            }
        }
    }
}

/// The kernel closes sockets only after it has released the memory of a killed process, which may
/// take long; here a copy of the process holds them.
#[test]
fn a_killed_rank_is_named_while_its_sockets_are_open() {
    for victim in [0, 2] {
        let trial = Trial { n: 3, transport: "shm", victim, timeout: LONG };
        let latest = trial.kill("is held", Signal::SIGKILL);
        assert!(latest < PROMPTLY, "without {victim}: {latest:.1?}");
    }
}

/// A forked child has a copy of each socket, without which peers would see the death at once.
#[test]
fn a_killed_rank_is_named_while_its_forked_children_live() {
    for victim in [0, 2] {
        let trial = Trial { n: 3, transport: "tcp", victim, timeout: LONG };
        let latest = trial.kill("has children", Signal::SIGKILL);
        eprintln!("tcp, without {victim}: the last error after {latest:.1?}");
        assert!(latest < PROMPTLY, "without {victim}: {latest:.1?}");
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "faults::a_killed_rank_is_named_while_its_forked_children_live";
            return harness::skip(test, &why);
        }
    };
    let trial = Trial { n: 4, transport: "two hosts", victim: 2, timeout: LONG };
    let world = World::on((&hosts, 2), "faults::rank", 4, "tcp", trial.settings("has children"));
    let latest = trial.kill_in(trial.begin(world), Signal::SIGKILL);
    eprintln!("two hosts: the last error after {latest:.1?}");
    assert!(latest < PROMPTLY, "{latest:.1?}");
}

/// A stopped rank may be continued, so nobody gives it up; its death ends the wait.
#[test]
fn without_a_deadline_a_stopped_rank_is_warned_of_and_a_dead_one_is_named() {
    let trials = ["shm", "tcp"].map(|transport| {
        let trial = Trial { n: 3, transport, victim: 1, timeout: Duration::ZERO };
        let world = trial.start("works");
        world.0[trial.victim].signal(Signal::SIGSTOP);
        (trial, world)
    });
    for (trial, mut world) in trials {
        // The ranks that wait for the stopped one warn after five seconds.
        let warning = "ringreduce: warning: rank ";
        let warned = world.0[0].says(warning).unwrap_or_default().to_owned();
        assert!(warned.contains("rank 1"), "{warned}");
        let latest = trial.kill_in(world, Signal::SIGKILL);
        assert!(latest < PROMPTLY, "by {}: {latest:.1?}", trial.transport);
    }
}

#[test]
fn an_absent_rank_is_named_by_every_peer() {
    for (n, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let trial = Trial { n, transport, victim: 1, timeout: SHORT };
        let mut world = trial.start("absent");
        let mut absent = world.0.remove(trial.victim);
        trial.all_name(world.0, &["absent", "silent", "lost"], now());
        absent.close_stdin();
        absent.succeeds("absent");
    }
}

/// The others wait for each other too, and each of them tells that it waits.
#[test]
fn a_rank_that_is_busy_in_its_call_is_named_by_every_peer() {
    let worlds = [(3, "shm", 1), (3, "shm", 2), (4, "shm", 1), (4, "shm", 3), (3, "tcp", 1)];
    let trials = worlds.map(|(n, transport, victim)| {
        let trial = Trial { n, transport, victim, timeout: SHORT };
        let world = trial.start("busy");
        (trial, world)
    });
    for (trial, mut world) in trials {
        let mut busy = world.0.remove(trial.victim);
        trial.all_name(world.0, &["silent", "late"], now());
        busy.close_stdin();
        busy.succeeds("busy");
    }
}

#[test]
fn threads_name_an_absent_or_lost_rank() {
    let named = harness::on_ranks(4, |comm| {
        let mut shared = alloc(comm);
        comm.set_timeout(Duration::from_secs(1));
        if comm.rank() == 2 {
            // The other ranks wait for a shorter time, and are gone afterwards.
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        let error = work(comm, &mut shared).unwrap_err();
        Some(report(&error).split(' ').skip(3).take(2).map(str::to_owned).collect::<Vec<_>>())
    });
    for (rank, words) in named.into_iter().enumerate() {
        let Some(words) = words else { continue };
        let is_named = ["absent", "lost"].contains(&&*words[0]) && words[1] == "2";
        assert!(is_named, "rank {rank}: {words:?}");
    }
}
