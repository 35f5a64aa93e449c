//! Ranks that are killed, stopped or late: the error of every survivor names the rank that is the
//! cause, whichever peer the survivor waited for, and the state of that rank.
#![allow(unsafe_code, reason = "forks")]

pub(crate) mod eviction;
pub(crate) mod mismatch;
pub(crate) mod partition;
pub(crate) mod recovery;
pub(crate) mod shrink;
pub(crate) mod uniform;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::processes::{Process, World, this_rank};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, alarm, fork, pause};
use ringreduce::{Communicator, Error, ReduceOp, Result, Stall};

/// Tell a rank its task, the victim, the MiB of memory that the victim touches, and the timeout in
/// milliseconds.
const TASK: &str = "TEST_FAULTS_TASK";
const VICTIM: &str = "TEST_FAULTS_VICTIM";
const RESIDENT: &str = "TEST_FAULTS_RESIDENT";
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

/// Makes calls of several lengths and kinds and checks their results, until one fails.
fn work(comm: &mut Communicator) -> Result<()> {
    let (n, rank) = (comm.size(), comm.rank());
    for round in 0_usize.. {
        let len = [1, 1000, 40_000][round % 3];
        let mut buf = vec![rank as i64 + 1; len];
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it == (n * (n + 1) / 2) as i64), "round {round}");
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
    let mib = if me == victim { variable::<usize>(RESIDENT) } else { 0 };
    let resident = vec![1_u8; mib << 20];
    if task == "is held" && me == victim {
        eprintln!("{HELD_BY}{}", fork_copy());
    }
    // The first touch of much memory may take a minute.
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(variable(TIMEOUT)));
    Process::works();
    if task == "absent" && me == victim {
        // The test closes the standard input when the others have reported.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let error = work(&mut comm).unwrap_err();
    eprintln!("{}", report(&error));
    assert!(resident.iter().all(|&it| it == 1));
}

/// Forks an idle copy of this process, which keeps all descriptors open when this process dies.
fn fork_copy() -> Pid {
    // SAFETY: the copy only waits for signals and ends by one.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(100);
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => child,
    }
}

/// A world and its victim.
struct Trial {
    n: usize,
    transport: &'static str,
    victim: usize,
    resident: usize,
    timeout: Duration,
}

impl Trial {
    fn start(&self, task: &str) -> World {
        let settings = |_| {
            vec![
                (TASK, task.to_owned()),
                (VICTIM, self.victim.to_string()),
                (RESIDENT, self.resident.to_string()),
                (TIMEOUT, self.timeout.as_millis().to_string()),
            ]
        };
        let mut world = World::start("faults::rank", self.n, self.transport, settings);
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

    /// Kills the victim: the time until the last survivor has its error, and the time until the
    /// kernel has released the victim's memory.
    fn kill(&self) -> [Duration; 2] {
        let mut world = self.start("works");
        let since = now();
        world.0[self.victim].kill();
        let mut victim = world.0.remove(self.victim);
        let ended = std::thread::spawn(move || {
            victim.ends();
            now()
        });
        let latest = self.all_name(world.0, &["lost"], since);
        [latest, ended.join().unwrap().saturating_sub(since)]
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
                let trial = Trial { n, transport, victim, resident: 0, timeout: LONG };
                let [latest, _] = trial.kill();
                eprintln!("{n} by {transport}: the last error after {latest:.1?}");
                assert!(latest < PROMPTLY, "{n} by {transport}, without {victim}: {latest:.1?}");
            }
        }
    }
}

/// Available memory in GiB.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 20
}

/// The kernel closes sockets only after it has released the memory of a killed process.
#[test]
fn a_killed_rank_is_named_while_its_sockets_are_open() {
    for victim in [0, 2] {
        let trial = Trial { n: 3, transport: "shm", victim, resident: 0, timeout: LONG };
        let mut world = trial.start("is held");
        let copy = world.0[victim].line_after(HELD_BY).unwrap().parse().unwrap();
        let since = now();
        world.0[victim].kill();
        let killed = world.0.remove(victim);
        let latest = trial.all_name(world.0, &["lost"], since);
        kill(Pid::from_raw(copy), Signal::SIGKILL).unwrap();
        drop(killed);
        assert!(latest < PROMPTLY, "without {victim}: {latest:.1?}");
    }
}

#[test]
fn a_killed_rank_with_much_memory_is_named_before_the_kernel_releases_it() {
    for (victim, gib) in [(0, 1), (2, 2)] {
        if available() < 2 * gib {
            let test =
                "faults::a_killed_rank_with_much_memory_is_named_before_the_kernel_releases_it";
            harness::skip(test, &format!("{gib} GiB of memory are not available"));
            continue;
        }
        let resident = (gib << 10) as usize;
        let trial = Trial { n: 3, transport: "shm", victim, resident, timeout: LONG };
        let [latest, ended] = trial.kill();
        let text = format!("{gib} GiB, released after {ended:.1?}: named after {latest:.1?}");
        eprintln!("{text}");
        assert!(latest < PROMPTLY, "{text}");
    }
}

#[test]
fn a_stopped_rank_is_named_by_every_peer() {
    for (n, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let trial = Trial { n, transport, victim: 1, resident: 0, timeout: SHORT };
        let mut world = trial.start("works");
        world.0[trial.victim].signal(Signal::SIGSTOP);
        let stopped = world.0.remove(trial.victim);
        // A rank that waits for a peer with an error learns the cause from that peer.
        trial.all_name(world.0, &["paused", "silent", "lost"], now());
        drop(stopped);
    }
}

#[test]
fn an_absent_rank_is_named_by_every_peer() {
    for (n, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let trial = Trial { n, transport, victim: 1, resident: 0, timeout: SHORT };
        let mut world = trial.start("absent");
        let mut absent = world.0.remove(trial.victim);
        trial.all_name(world.0, &["absent", "silent", "lost"], now());
        absent.close_stdin();
        absent.succeeds("absent");
    }
}

#[test]
fn threads_name_an_absent_or_lost_rank() {
    let named = harness::on_ranks(4, |comm| {
        comm.barrier().unwrap();
        comm.set_timeout(Duration::from_secs(1));
        if comm.rank() == 2 {
            // The other ranks wait for a shorter time, and are gone afterwards.
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        let error = work(comm).unwrap_err();
        Some(report(&error).split(' ').skip(3).take(2).map(str::to_owned).collect::<Vec<_>>())
    });
    for (rank, words) in named.into_iter().enumerate() {
        let Some(words) = words else { continue };
        let is_named = ["absent", "lost"].contains(&&*words[0]) && words[1] == "2";
        assert!(is_named, "rank {rank}: {words:?}");
    }
}
