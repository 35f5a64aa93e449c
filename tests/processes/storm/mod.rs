//! A storm: processes, or threads of one, make random calls, and a fault hits one of them. No rank
//! hangs, no result is wrong, every survivor's error names the cause, and nothing is left behind.
//!
//! `TEST_STORM=1000` sets the number of trials and `TEST_STORM_SEED` the first seed, which else
//! follow from the share of the tests (`harness::share`). A trial that failed is repeated with
//! `TEST_STORM=1 TEST_STORM_SEED=`_seed_.

pub(crate) mod bootstrap;
pub(crate) mod calls;
pub(crate) mod latencies;
pub(crate) mod rank;
pub(crate) mod trial;
pub(crate) mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::hosts::Hosts;
use harness::share;
use latencies::Table;
use rank::{ALL_RIGHT, CLEAN, FAILED, FAULT_AT};
use trial::{Fault, Links, Trial};
use world::{Failure, World};

/// Trials in a share and in a full run; worlds at a time.
const FEW: u64 = 50;
const ALL: u64 = 1000;
const SIDE_BY_SIDE: usize = 4;
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

/// True if a fault is detected by silence alone.
fn is_silent(fault: Fault) -> bool {
    matches!(fault, Fault::Stop | Fault::Cut)
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
    let mut world = World::start(trial, hosts)?;
    let mut since = world.inject();
    let until = Instant::now() + trial.timeout + GRACE;
    let dies = trial.fault.ends_victims() || trial.fault == Fault::Stop;
    let survivors: Vec<usize> =
        (0..trial.n).filter(|rank| !(dies && trial.victims.contains(rank))).collect();
    if matches!(trial.fault, Fault::Pause | Fault::Drops) {
        world.ends_calls();
    }
    let victim = trial.victims[0];
    if trial.fault == Fault::Close {
        // If the closed connection carries nothing, the trial ends without an error.
        world.says_by(victim, FAULT_AT, until);
        world.says_by(victim, FAILED, Instant::now() + GRACE);
        world.ends_calls();
    }
    for &rank in &survivors {
        if !world.ends_by(rank, until) {
            return Err(format!("rank {rank} hangs: {}", world.state()));
        }
    }
    if dies {
        world.remove_victims(until);
    }
    if let Some(at) = world.line(victim, FAULT_AT) {
        since = at.parse().unwrap();
    }
    let judged = judge(trial, &world, &survivors);
    let latest = judged.map_err(|what| format!("{what}: {}", world.state()))?;
    let time = latest.map(|at| Duration::from_micros(at.saturating_sub(since)));
    let most = match trial.fault {
        Fault::Stop | Fault::Close => Duration::MAX,
        Fault::Cut => UNREACHABLE + LATER,
        _ => LONGEST_DETECTION,
    };
    match time {
        Some(time) if time > most => Err(format!("detected after {time:.1?}: {}", world.state())),
        time => Ok(time),
    }
}

/// Checks every survivor's error; gives the time of the latest one.
fn judge(trial: &Trial, world: &World<'_>, survivors: &[usize]) -> Result<Option<u64>, String> {
    let victim = trial.victims[0];
    let mut causes = trial.victims.clone();
    if trial.fault == Fault::Close {
        // Both ends of the connection see it.
        causes.extend(world.failure(victim).into_iter().flat_map(|it| it.names));
    }
    for &rank in survivors {
        if trial.fault == Fault::Cut {
            let is_far = |&other: &usize| trial.host(other) != trial.host(rank);
            causes = (0..trial.n).filter(is_far).collect();
        }
        if world.line(rank, CLEAN).is_none() {
            return Err(format!("rank {rank} leaves something"));
        }
        let Some(Failure { kind, names, .. }) = world.failure(rank) else {
            // A rank that needed nothing more of its peers has completed the trial.
            let may_be_right = matches!(trial.fault, Fault::Pause | Fault::Drops | Fault::Close);
            if may_be_right && world.line(rank, ALL_RIGHT).is_some() {
                continue;
            }
            return Err(format!("rank {rank} has no error"));
        };
        let kinds: &[&str] = match trial.fault {
            // A rank that waits for a thread in a message does not see what the thread does.
            Fault::Stop if trial.links == Links::Threads => &["absent", "late"],
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
    Ok(survivors.iter().filter_map(|&rank| world.failure(rank)).map(|it| it.at).max())
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
