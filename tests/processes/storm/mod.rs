//! A storm: processes make random calls, and a fault hits one of them. No rank hangs, no result is
//! wrong, every survivor's error names the cause, and nothing is left behind.
//!
//! `TEST_STORM=1000` sets the number of trials and `TEST_STORM_SEED` the first seed, which else
//! follow from the share of the tests (`harness::share`). A trial that failed is repeated with
//! `TEST_STORM=1 TEST_STORM_SEED=`_seed_.

pub(crate) mod bootstrap;
pub(crate) mod calls;
pub(crate) mod latencies;
pub(crate) mod rank;
pub(crate) mod trial;

use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::hosts::Hosts;
use harness::processes::{Process, number};
use harness::share;
use latencies::Table;
use nix::sys::signal::Signal;
use rank::{ALL_RIGHT, ARGUMENT, AT_WORK, CLEAN, FAILED, FAULT_AT, now};
use trial::{Fault, Links, Trial};

/// Trials in a share and in a full run; worlds at a time.
const FEW: u64 = 20;
const ALL: u64 = 1000;
const SIDE_BY_SIDE: usize = 3;
/// The longest start of a world, with one CPU for many ranks.
const START: Duration = Duration::from_secs(40);
/// The time after the timeout by which every rank has ended. A rank that does not need the victim,
/// for instance in a subgroup, goes on meanwhile.
const GRACE: Duration = Duration::from_secs(6);

/// The longest detection of a fault that must not take the whole timeout. The table reports actual
/// times.
const LONGEST_DETECTION: Duration = Duration::from_secs(5);
/// A silent host counts as lost after this time.
const UNREACHABLE: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_secs(2);

/// A slower detection is reported by itself.
const SLOW: Duration = Duration::from_secs(1);

/// Starts the ranks of a trial and waits until all are at work.
fn start(trial: &Trial, hosts: Option<&Hosts>, until: Instant) -> Vec<Process> {
    let two = hosts.filter(|_| trial.links == Links::Mixed);
    let store = match two {
        Some(hosts) => hosts.store(),
        None => format!("unix:@storm-{}-{}", std::process::id(), number()),
    };
    let start = |rank| {
        let mut command = match two {
            Some(hosts) => hosts.process(trial.host(rank), "storm::rank::rank"),
            None => harness::process("storm::rank::rank"),
        };
        let argument = format!("{} {} {rank} {store}", trial.seed, hosts.is_some());
        command.env(ARGUMENT, argument).env("RINGREDUCE_CACHE", "off").stdin(Stdio::piped());
        command.env("RINGREDUCE_ALL_PAIRS", trial.all_pairs.to_string());
        Process::start(command)
    };
    let mut ranks: Vec<_> = (0..trial.n).map(start).collect();
    for rank in 0..trial.n {
        let began = ranks[rank].says_by(AT_WORK, until);
        let lines: Vec<_> = ranks.iter().map(|rank| &rank.lines).collect();
        assert!(began, "rank {rank} did not begin: {lines:#?}");
    }
    ranks
}

/// True if a fault is detected by silence alone.
fn is_silent(fault: Fault) -> bool {
    matches!(fault, Fault::Stop | Fault::Cut)
}

/// Causes the fault; gives its time.
fn inject(trial: &Trial, ranks: &[Process], hosts: Option<&Hosts>) -> u64 {
    let all = |signal| trial.victims.iter().for_each(|&rank| ranks[rank].signal(signal));
    std::thread::sleep(trial.after);
    let since = now();
    match trial.fault {
        Fault::Kill | Fault::KillParent | Fault::TwoKills => all(Signal::SIGKILL),
        Fault::Terminate => all(Signal::SIGTERM),
        Fault::Stop => all(Signal::SIGSTOP),
        Fault::Pause => {
            all(Signal::SIGSTOP);
            std::thread::sleep(trial.pause);
            all(Signal::SIGCONT);
        }
        Fault::Drops => {
            hosts.unwrap().drop_longer(trial.passes).unwrap();
            std::thread::sleep(trial.pause);
            hosts.unwrap().drop_none().unwrap();
        }
        Fault::Cut => hosts.unwrap().drop_longer(trial.passes).unwrap(),
        _ => (),
    }
    since
}

/// Runs a trial; the time until the last survivor has its error, if the fault causes one.
fn run(trial: &Trial, hosts: Option<&Hosts>) -> Result<Option<Duration>, String> {
    let latest = run_on(trial, hosts);
    if trial.fault == Fault::Cut {
        hosts.unwrap().drop_none().unwrap();
    }
    latest
}

fn run_on(trial: &Trial, hosts: Option<&Hosts>) -> Result<Option<Duration>, String> {
    let mut ranks = start(trial, hosts, Instant::now() + START);
    let mut since = inject(trial, &ranks, hosts);
    let until = Instant::now() + trial.timeout + GRACE;
    let lives = |rank: &usize| {
        let dies = trial.fault.ends_victims() || trial.fault == Fault::Stop;
        !(dies && trial.victims.contains(rank))
    };
    if matches!(trial.fault, Fault::Pause | Fault::Drops) {
        ranks[0].close_stdin();
    }
    if trial.fault == Fault::Close {
        // If the closed connection carries nothing, the trial ends without an error.
        let victim = trial.victims[0];
        ranks[victim].says_by(FAULT_AT, until);
        ranks[victim].says_by(FAILED, Instant::now() + GRACE);
        ranks[0].close_stdin();
    }
    for rank in (0..trial.n).filter(lives) {
        if ranks[rank].ends_by(until).is_none() {
            return Err(format!("rank {rank} hangs: {}", state(&ranks)));
        }
    }
    if !lives(&trial.victims[0]) {
        trial.victims.iter().for_each(|&rank| {
            if trial.fault == Fault::Stop {
                ranks[rank].kill();
            }
            ranks[rank].ends_by(until);
        });
    }
    if let Some(at) = ranks[trial.victims[0]].line_after(FAULT_AT) {
        since = at.parse().unwrap();
    }
    let survivors: Vec<usize> = (0..trial.n).filter(lives).collect();
    let judged = judge(trial, &ranks, &survivors);
    let latest = judged.map_err(|what| format!("{what}: {}", state(&ranks)))?;
    let time = latest.map(|at| Duration::from_micros(at.saturating_sub(since)));
    let most = match trial.fault {
        Fault::Stop | Fault::Close => Duration::MAX,
        Fault::Cut => UNREACHABLE + LATER,
        _ => LONGEST_DETECTION,
    };
    match time {
        Some(time) if time > most => Err(format!("detected after {time:.1?}: {}", state(&ranks))),
        time => Ok(time),
    }
}

/// The lines of each rank, and the states of the threads of living ones.
fn state(ranks: &[Process]) -> String {
    let one = |(number, rank): (usize, &Process)| {
        let pid = rank.pid();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let at = |task: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            format!("{} in {}", read("comm").trim(), read("wchan"))
        };
        let at: Vec<_> = tasks.map(at).collect();
        format!("\n  {number} (pid {pid}, {at:?}): {}", rank.lines.join("\n    "))
    };
    ranks.iter().enumerate().map(one).collect()
}

/// A rank's error: its time and kind, and the ranks that it names.
struct Failure {
    at: u64,
    kind: String,
    names: Vec<usize>,
}

fn failure(ranks: &[Process], rank: usize) -> Option<Failure> {
    let mut words = ranks[rank].line_after(FAILED)?.splitn(4, ' ');
    let (at, kind) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    let pids: Vec<u32> = words.next()?.split(',').map_while(|pid| pid.parse().ok()).collect();
    let names = (0..ranks.len()).filter(|&rank| pids.contains(&ranks[rank].pid())).collect();
    Some(Failure { at, kind, names })
}

/// Checks every survivor's error; gives the time of the latest one.
fn judge(trial: &Trial, ranks: &[Process], survivors: &[usize]) -> Result<Option<u64>, String> {
    let victim = trial.victims[0];
    let mut causes = trial.victims.clone();
    if trial.fault == Fault::Close {
        // Both ends of the connection see it.
        causes.extend(failure(ranks, victim).into_iter().flat_map(|it| it.names));
    }
    for &rank in survivors {
        if trial.fault == Fault::Cut {
            let is_far = |&other: &usize| trial.host(other) != trial.host(rank);
            causes = (0..trial.n).filter(is_far).collect();
        }
        if ranks[rank].line_after(CLEAN).is_none() {
            return Err(format!("rank {rank} leaves something"));
        }
        let Some(Failure { kind, names, .. }) = failure(ranks, rank) else {
            // A rank that needed nothing more of its peers has completed the trial.
            let may_be_right = matches!(trial.fault, Fault::Pause | Fault::Drops | Fault::Close);
            if may_be_right && ranks[rank].line_after(ALL_RIGHT).is_some() {
                continue;
            }
            return Err(format!("rank {rank} has no error"));
        };
        let kinds: &[&str] = match trial.fault {
            Fault::Stop => &["paused", "absent"],
            Fault::Cut => &["lost", "absent"],
            Fault::Mismatch => &["mismatch"],
            Fault::Abort => &["aborted"],
            Fault::Pause | Fault::Drops => &[],
            _ => &["lost"],
        };
        if !kinds.contains(&kind.as_str()) {
            return Err(format!("rank {rank} has the error {kind}"));
        }
        // The victim of a closed connection names the other end.
        let other = rank == victim && trial.fault == Fault::Close;
        if !other && !names.iter().any(|name| causes.contains(name)) {
            return Err(format!("rank {rank} names {names:?}, not one of {causes:?}"));
        }
    }
    Ok(survivors.iter().filter_map(|&rank| failure(ranks, rank)).map(|it| it.at).max())
}

/// Named files and sockets of ringreduce that would outlive processes.
fn names() -> Vec<String> {
    let files = ["/dev/shm", "/tmp"].iter().filter_map(|it| std::fs::read_dir(it).ok()).flatten();
    let names = files.filter_map(|it| Some(it.ok()?.file_name().to_string_lossy().into_owned()));
    let mut ours: Vec<_> = names.filter(|name| name.contains("ringreduce")).collect();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let store = format!("@storm-{}-", std::process::id());
    ours.extend(sockets.lines().filter(|line| line.contains(&store)).map(str::to_owned));
    ours.sort();
    ours
}

#[test]
fn storm() {
    let set = |name: &str| std::env::var(name).ok().map(|it| it.parse().unwrap());
    let count = set("TEST_STORM").unwrap_or_else(|| share::count(FEW, ALL));
    let first = set("TEST_STORM_SEED").unwrap_or_else(|| share::seed() * ALL);
    let hosts: Result<Vec<_>, _> = (0..SIDE_BY_SIDE).map(|_| Hosts::with_loss()).collect();
    let hosts = hosts.map_err(|why| harness::skip("storm::storm", &why)).ok();
    eprintln!("storm: {count} trials from seed {first}");
    let before = names();
    let (next, table, failed) = (AtomicU64::new(0), Mutex::new(Table::default()), Mutex::default());
    let work = |hosts: Option<&Hosts>| {
        loop {
            let seed = first + next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let trial = Trial::new(seed, hosts.is_some());
            match run(&trial, hosts) {
                Ok(latest) => {
                    if let Some(time) =
                        latest.filter(|&time| !is_silent(trial.fault) && time > SLOW)
                    {
                        eprintln!("slow, {time:.1?}: {trial:?}");
                    }
                    table.lock().unwrap().add(&trial, latest);
                }
                Err(what) => {
                    let what = format!("{trial:?}: {what}");
                    eprintln!("FAILED {what}");
                    let failed: &Mutex<Vec<u64>> = &failed;
                    failed.lock().unwrap().push(seed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..SIDE_BY_SIDE {
            let (work, hosts) = (&work, hosts.as_ref().map(|hosts| &hosts[number]));
            scope.spawn(move || work(hosts));
        }
    });
    let table = table.into_inner().unwrap();
    eprintln!("{table}");
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {count} failed, seeds {failed:?}", failed.len());
    assert_eq!(names(), before, "left behind");
    assert_eq!(table.late(), [""; 0], "the median is later than the goal");
}
