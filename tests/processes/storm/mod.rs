//! A storm: real processes make random calls, and to one of them something happens. Nobody hangs,
//! no answer is wrong, every survivor's error names the cause, and nothing is left behind.
//!
//! `RINGREDUCE_STORM=1000` sets how many trials there are, `RINGREDUCE_STORM_SEED` the first one's
//! seed, or else the share of the tests (`harness::share`); so one that failed is made again with
//! `RINGREDUCE_STORM=1 RINGREDUCE_STORM_SEED=its`.

pub(crate) mod calls;
pub(crate) mod meeting;
pub(crate) mod rank;
pub(crate) mod table;
pub(crate) mod trial;
pub(crate) mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::hosts::Hosts;
use harness::processes::Process;
use harness::share;
use nix::sys::signal::Signal;
use rank::{ALL_RIGHT, CLEAN, FAULT_AT, TOLD, now};
use table::Table;
use trial::{Fault, Trial};

/// Trials in a share and in a run of all; worlds at a time.
const FEW: u64 = 30;
const ALL: u64 = 1000;
const SIDE_BY_SIDE: usize = 3;
/// For all to be at work, where there is one CPU for many.
const START: Duration = Duration::from_secs(40);
/// How much later than the timeout everybody has ended: who can do without the victim goes on for
/// as long as it can, as when it makes a group, and that takes its time where CPUs are few.
const GRACE: Duration = Duration::from_secs(6);

/// Many times what may take no whole timeout; the table says what it does take. Who has nothing to
/// say on a connection may be long in finding out that it has ended.
const FAR: Duration = Duration::from_secs(5);
/// Without a sign of it for so long a host counts as lost, if nobody says.
const UNREACHABLE: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_secs(2);

/// What took so long is said by itself.
const SLOW: Duration = Duration::from_secs(1);

/// Are the others told of it only after they have waited for a sign?
fn waits(fault: Fault) -> bool {
    matches!(fault, Fault::Stop | Fault::Cut)
}

/// Does it to the victims; when?
fn strike(trial: &Trial, ranks: &[Process], hosts: Option<&Hosts>) -> u64 {
    let all = |signal| trial.victims.iter().for_each(|&rank| ranks[rank].signal(signal));
    std::thread::sleep(trial.after);
    let since = now();
    match trial.fault {
        Fault::Kill | Fault::TwoKills => all(Signal::SIGKILL),
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

/// Runs one; the time until the last survivor was told, if anything was to tell.
fn run(trial: &Trial, hosts: Option<&Hosts>) -> Result<Option<Duration>, String> {
    let told = run_on(trial, hosts);
    if trial.fault == Fault::Cut {
        hosts.unwrap().drop_none().unwrap();
    }
    told
}

fn run_on(trial: &Trial, hosts: Option<&Hosts>) -> Result<Option<Duration>, String> {
    let mut ranks = world::start(trial, hosts, Instant::now() + START);
    let mut since = strike(trial, &ranks, hosts);
    let until = Instant::now() + trial.timeout + GRACE;
    let lives = |rank: &usize| {
        let dies = matches!(trial.fault, Fault::Kill | Fault::TwoKills | Fault::Stop | Fault::Exit);
        !(dies && trial.victims.contains(rank))
    };
    if matches!(trial.fault, Fault::Pause | Fault::Drops) {
        ranks[0].is_over();
    }
    if trial.fault == Fault::Close {
        // A connection may have had nothing to carry: then all is right to the end.
        let victim = trial.victims[0];
        ranks[victim].says_by(FAULT_AT, until);
        ranks[victim].says_by(TOLD, Instant::now() + GRACE);
        ranks[0].is_over();
    }
    for rank in (0..trial.n).filter(lives) {
        if ranks[rank].ends_by(until).is_none() {
            return Err(format!("rank {rank} hangs: {}", state(&ranks)));
        }
    }
    if !lives(&trial.victims[0]) {
        trial.victims.iter().for_each(|&rank| {
            if trial.fault != Fault::Exit {
                ranks[rank].kill();
            }
            ranks[rank].ends_by(until);
        });
    }
    if let Some(at) = ranks[trial.victims[0]].said(FAULT_AT) {
        since = at.parse().unwrap();
    }
    let survivors: Vec<usize> = (0..trial.n).filter(lives).collect();
    let judged = judge(trial, &ranks, &survivors);
    let latest = judged.map_err(|what| format!("{what}: {}", state(&ranks)))?;
    let time = latest.map(|at| Duration::from_micros(at.saturating_sub(since)));
    let most = match trial.fault {
        Fault::Stop | Fault::Close => Duration::MAX,
        Fault::Cut => UNREACHABLE + LATER,
        // What ends at the timeout alone was not found out.
        _ => FAR,
    };
    match time {
        Some(time) if time > most => Err(format!("told after {time:.1?}: {}", state(&ranks))),
        time => Ok(time),
    }
}

/// What each has said, and what the threads of those do that still live.
fn state(ranks: &[Process]) -> String {
    let one = |(number, rank): (usize, &Process)| {
        let pid = rank.pid();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let at = |task: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            format!("{} in {}", read("comm").trim(), read("wchan"))
        };
        let at: Vec<_> = tasks.map(at).collect();
        format!("\n  {number} (pid {pid}, {at:?}): {}", rank.said.join("\n    "))
    };
    ranks.iter().enumerate().map(one).collect()
}

/// What a rank was told: when, of which kind, and whom it names.
struct Told {
    at: u64,
    kind: String,
    names: Vec<usize>,
}

fn told(ranks: &[Process], rank: usize) -> Option<Told> {
    let mut words = ranks[rank].said(TOLD)?.splitn(4, ' ');
    let (at, kind) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    let pids: Vec<u32> = words.next()?.split(',').map_while(|pid| pid.parse().ok()).collect();
    let names = (0..ranks.len()).filter(|&rank| pids.contains(&ranks[rank].pid())).collect();
    Some(Told { at, kind, names })
}

/// Has everybody been told the right thing? The latest, when?
fn judge(trial: &Trial, ranks: &[Process], survivors: &[usize]) -> Result<Option<u64>, String> {
    let victim = trial.victims[0];
    let mut causes = trial.victims.clone();
    if trial.fault == Fault::Close {
        // Both ends see it.
        causes.extend(told(ranks, victim).into_iter().flat_map(|it| it.names));
    }
    for &rank in survivors {
        if trial.fault == Fault::Cut {
            let is_far = |&other: &usize| trial.host(other) != trial.host(rank);
            causes = (0..trial.n).filter(is_far).collect();
        }
        if ranks[rank].said(CLEAN).is_none() {
            return Err(format!("rank {rank} leaves something"));
        }
        let Some(Told { kind, names, .. }) = told(ranks, rank) else {
            // Who needed nothing more of the others has gone on to the end.
            let may_be_right = matches!(trial.fault, Fault::Pause | Fault::Drops | Fault::Close);
            if may_be_right && ranks[rank].said(ALL_RIGHT).is_some() {
                continue;
            }
            return Err(format!("rank {rank} was told nothing"));
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
            return Err(format!("rank {rank} was told {kind}"));
        }
        // The victim of what both ends see names the other one.
        let other = rank == victim && trial.fault == Fault::Close;
        if !other && !names.iter().any(|name| causes.contains(name)) {
            return Err(format!("rank {rank} names {names:?}, not one of {causes:?}"));
        }
    }
    Ok(survivors.iter().filter_map(|&rank| told(ranks, rank)).map(|it| it.at).max())
}

/// Named things of ours that outlive processes.
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
    let told = |name: &str| std::env::var(name).ok().map(|it| it.parse().unwrap());
    let count = told("RINGREDUCE_STORM").unwrap_or_else(|| share::count(FEW, ALL));
    let first = told("RINGREDUCE_STORM_SEED").unwrap_or_else(|| share::seed() * ALL);
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
                    if let Some(time) = latest.filter(|&time| !waits(trial.fault) && time > SLOW) {
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
    assert_eq!(table.late(), [""; 0], "what is usual is later than is aimed at");
}
