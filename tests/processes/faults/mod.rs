//! Ranks that are killed, stopped or late: every survivor's error names the one that is the cause,
//! whoever it waited for, and says what is known of it.
#![allow(unsafe_code, reason = "forks")]

pub(crate) mod council;
pub(crate) mod differ;
pub(crate) mod partition;
pub(crate) mod recovery;
pub(crate) mod shrink;
pub(crate) mod uniform;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::processes::{Process, World, this_rank};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, alarm, fork, pause};
use ringreduce::{Communicator, Error, ReduceOp, Result, Stall};

/// What ranks are told: what they do, who of them is the one, how much memory it touches in MiB,
/// and how long they wait in milliseconds.
const WHAT: &str = "TEST_FAULTS_WHAT";
const WHO: &str = "TEST_FAULTS_WHO";
const RESIDENT: &str = "TEST_FAULTS_RESIDENT";
const TIMEOUT: &str = "TEST_FAULTS_TIMEOUT";
/// What a rank says when it has an error: when, of which kind, and whom it names.
const TOLD: &str = "told at ";
/// The copy of a rank that has its descriptors.
const HELD_BY: &str = "held by ";

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn told<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    std::env::var(name).unwrap().parse().unwrap()
}

/// Calls of several lengths and kinds, whose results are looked at, for ever.
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

/// What a rank says of its error.
fn says(error: &Error) -> String {
    let (kind, peer) = match error {
        Error::PeerLost { peer, .. } => ("lost", peer.rank),
        Error::Stalled { peer, state: Stall::Paused { .. }, .. } => ("paused", peer.rank),
        Error::Stalled { peer, state: Stall::NeverEntered { .. }, .. } => ("absent", peer.rank),
        Error::Stalled { peer, state: Stall::Silent { .. }, .. } => ("silent", peer.rank),
        Error::Timeout { peer, .. } => ("late", peer.rank),
        _ => ("other", usize::MAX),
    };
    format!("{TOLD}{} {kind} {peer} {error}", now().as_micros())
}

/// Not a test of its own: a rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    let (what, who) = (told::<String>(WHAT), told::<usize>(WHO));
    let me = comm.rank();
    let mib = if me == who { told::<usize>(RESIDENT) } else { 0 };
    let resident = vec![1_u8; mib << 20];
    if what == "is held" && me == who {
        eprintln!("{HELD_BY}{}", a_copy());
    }
    // It may take a minute to touch much memory for the first time.
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(told(TIMEOUT)));
    Process::works();
    if what == "absent" && me == who {
        // Until the others have told, which closes what this one reads.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let error = work(&mut comm).unwrap_err();
    eprintln!("{}", says(&error));
    assert!(resident.iter().all(|&it| it == 1));
}

/// Starts a copy of this process that does nothing, and has all its descriptors: none of them is
/// closed by this one's death.
fn a_copy() -> Pid {
    // SAFETY: the copy waits for signals, and ends by one.
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

/// A world and what happens to one of its ranks.
struct Trial {
    n: usize,
    transport: &'static str,
    who: usize,
    resident: usize,
    timeout: Duration,
}

impl Trial {
    fn start(&self, what: &str) -> World {
        let settings = |_| {
            vec![
                (WHAT, what.to_owned()),
                (WHO, self.who.to_string()),
                (RESIDENT, self.resident.to_string()),
                (TIMEOUT, self.timeout.as_millis().to_string()),
            ]
        };
        let mut world = World::start("faults::rank", self.n, self.transport, settings);
        world.is_at_work();
        std::thread::sleep(Duration::from_micros(harness::share::random_range(0..50_000)));
        world
    }

    /// All others say so of it; the latest after which time?
    fn all_say(&self, ranks: Vec<Process>, kinds: &[&str], since: Duration) -> Duration {
        let Self { n, transport, who, .. } = self;
        let mut latest = Duration::ZERO;
        for rank in ranks {
            let (well, said) = rank.end();
            let name = format!("of {n} by {transport}, without {who}: {said}");
            assert!(well, "{name}");
            let line = said.lines().find_map(|line| line.strip_prefix(TOLD)).unwrap();
            let words: Vec<_> = line.splitn(4, ' ').collect();
            assert!(kinds.contains(&words[1]), "{name}");
            assert_eq!(words[2], who.to_string(), "{name}");
            let at = Duration::from_micros(words[0].parse().unwrap());
            latest = latest.max(at.saturating_sub(since));
        }
        latest
    }

    /// Kills it: after which time was the last of the others told, and after which had the kernel
    /// taken back its memory?
    fn kill(&self) -> [Duration; 2] {
        let mut world = self.start("works");
        let since = now();
        world.0[self.who].kill();
        let mut victim = world.0.remove(self.who);
        let ended = std::thread::spawn(move || {
            victim.ends();
            now()
        });
        let latest = self.all_say(world.0, &["lost"], since);
        [latest, ended.join().unwrap().saturating_sub(since)]
    }
}

const LONG: Duration = Duration::from_secs(60);
/// No call takes so long by itself, also where CPUs are few.
const SHORT: Duration = Duration::from_secs(3);

/// docs/failures.md promises milliseconds where CPUs are free. On a busy machine a survivor has to
/// get a CPU first; but a death is never found out by silence alone, which takes five seconds.
const PROMPTLY: Duration = Duration::from_secs(4);

/// Whoever waits for whom, all name the one that was killed.
#[test]
fn who_is_killed_is_named_by_all() {
    for n in [2, 3, 4, 8] {
        for transport in ["shm", "tcp"] {
            for who in [0, n - 1] {
                let trial = Trial { n, transport, who, resident: 0, timeout: LONG };
                let [latest, _] = trial.kill();
                eprintln!("{n} by {transport}: the last was told after {latest:.1?}");
                assert!(latest < PROMPTLY, "{n} by {transport}, without {who}: {latest:.1?}");
            }
        }
    }
}

/// GiB of memory that nobody uses.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 20
}

/// Long before its sockets are closed, which is when the kernel has taken back its memory.
#[test]
fn who_is_killed_is_named_by_all_while_its_sockets_are_open() {
    for who in [0, 2] {
        let trial = Trial { n: 3, transport: "shm", who, resident: 0, timeout: LONG };
        let mut world = trial.start("is held");
        let copy = world.0[who].said(HELD_BY).unwrap().parse().unwrap();
        let since = now();
        world.0[who].kill();
        let victim = world.0.remove(who);
        let latest = trial.all_say(world.0, &["lost"], since);
        kill(Pid::from_raw(copy), Signal::SIGKILL).unwrap();
        drop(victim);
        assert!(latest < PROMPTLY, "without {who}: {latest:.1?}");
    }
}

/// However long the kernel takes to take back its memory.
#[test]
fn who_is_killed_with_much_memory_is_named_soon() {
    for (who, gib) in [(0, 1), (2, 2)] {
        if available() < 2 * gib {
            let test = "faults::who_is_killed_with_much_memory_is_named_soon";
            harness::skip(test, &format!("{gib} GiB of memory are not left here"));
            continue;
        }
        let resident = (gib << 10) as usize;
        let trial = Trial { n: 3, transport: "shm", who, resident, timeout: LONG };
        let [latest, ended] = trial.kill();
        let said = format!("{gib} GiB, gone after {ended:.1?}: told after {latest:.1?}");
        eprintln!("{said}");
        assert!(latest < PROMPTLY, "{said}");
    }
}

#[test]
fn who_is_stopped_is_named_by_all() {
    for (n, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let timeout = SHORT;
        let trial = Trial { n, transport, who: 1, resident: 0, timeout };
        let mut world = trial.start("works");
        world.0[trial.who].signal(Signal::SIGSTOP);
        let stopped = world.0.remove(trial.who);
        // Who waits for one that has given up already hears it from there.
        trial.all_say(world.0, &["paused", "silent", "lost"], now());
        drop(stopped);
    }
}

#[test]
fn who_never_comes_is_named_by_all() {
    for (n, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let timeout = SHORT;
        let trial = Trial { n, transport, who: 1, resident: 0, timeout };
        let mut world = trial.start("absent");
        let mut absent = world.0.remove(trial.who);
        trial.all_say(world.0, &["absent", "silent", "lost"], now());
        absent.is_over();
        assert!(absent.end().0);
    }
}

/// Threads of one process: who never comes is named by all, whomever they wait for; so is who left.
#[test]
fn threads_name_the_cause() {
    let told = harness::on_ranks(4, |comm| {
        comm.barrier().unwrap();
        comm.set_timeout(Duration::from_secs(1));
        if comm.rank() == 2 {
            // Longer than the others wait; what it calls then finds them gone.
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        let error = work(comm).unwrap_err();
        Some(says(&error).split(' ').skip(3).take(2).map(str::to_owned).collect::<Vec<_>>())
    });
    for (rank, told) in told.into_iter().enumerate() {
        let Some(told) = told else { continue };
        assert!(["absent", "lost"].contains(&&*told[0]) && told[1] == "2", "rank {rank}: {told:?}");
    }
}
