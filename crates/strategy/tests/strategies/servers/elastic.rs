//! Servers and workers that are processes, stopped by SIGSTOP, or killed by SIGKILL and started
//! again by `ringrun --elastic`. A rank is this program itself, which does what the variable `JOB`
//! says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use ringreduce::Communicator;
use strategy::{
    Groups, JobConfig, Layout, Member, Optimizer, Role, Server, ServerSettings, SnapshotFolder,
    Snapshots, Worker, share,
};

use super::elastic_job::{FATAL, Job, NONE, SYNCHRONOUS, output, run, run_in, write};
use crate::network::{Network, part};

const RATE: f32 = 0.1;
/// The steps after which workers whose membership is whole again at this step end.
const fn end_after(step: u64) -> u64 {
    // A worker that joins a group in the middle of its step may be one step behind.
    step.next_multiple_of(64) + 64
}

/// The loss of a victim.
#[derive(Clone, Copy)]
struct Loss {
    /// The step or update in which it is lost.
    at: u64,
    /// Whether it is stopped instead, until ringrun ends it.
    is_stopped: bool,
    /// The process that is lost with it.
    second: Option<Pid>,
}

impl Loss {
    /// Ends this process as an accident would.
    fn occur(self) -> ! {
        if self.is_stopped {
            // To this thread: another one would take a signal to the process, and this one go on.
            raise(Signal::SIGSTOP).unwrap();
        }
        // No membership begins between the two losses: this rank would have to take part in it.
        self.second.into_iter().for_each(|pid| kill(pid, Signal::SIGKILL).unwrap());
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        unreachable!("SIGKILL")
    }
}

/// The body of a rank.
#[test]
fn rank() {
    let (Ok(job), Ok(folder)) = (std::env::var("JOB"), std::env::var("JOB_FOLDER")) else { return };
    let job = Job::of(&job);
    let started_as: usize = std::env::var("RINGREDUCE_RANK").unwrap().parse().unwrap();
    let comm = Communicator::from_env().unwrap();
    let second = comm.peers().get(job.second).map(|it| Pid::from_raw(it.pid.cast_signed()));
    let loss = Loss { at: job.fatal, is_stopped: job.is_stopped, second };
    let loss = (job.victim == started_as && comm.epoch() == 0).then_some(loss);
    let groups = match job.groups {
        0 => Groups::Each,
        count => Groups::Number((started_as % count) as u64),
    };
    // A rank that is stopped does not come; the others may be slow.
    let patience = if job.is_stopped { 10 } else { 2 };
    let patience = Duration::from_secs(if job.is_restarted { 60 } else { patience });
    let patience = job.is_elastic.then_some(patience);
    let worker_timeout = Duration::from_secs(if job.is_stopped { 3 } else { 30 });
    let layout = Layout { servers: job.servers, groups, patience, worker_timeout };
    let config = JobConfig::default();
    let member = if job.saved > 0 && started_as == job.servers && comm.epoch() == 0 {
        Member::resume(comm, layout, config, job.saved).unwrap()
    } else {
        Member::new(comm, layout, config).unwrap()
    };
    if let Some(loss) = loss.filter(|it| it.at == 0) {
        loss.occur();
    }
    let folder = PathBuf::from(folder);
    match member.role() {
        Role::Server(part) => serve(job, member, part, loss, &folder),
        Role::Worker(_) => work(job, member, loss, &folder),
    }
}

fn serve(job: Job, member: Member, part: usize, loss: Option<Loss>, folder: &Path) {
    let store = Box::new(SnapshotFolder::new(folder.join("snapshots")).unwrap());
    let snapshots = Some(Snapshots { store, every: job.every, is_resumed: false });
    let optimizer = Optimizer::Sgd { momentum: 0.5, weight_decay: 0.01 };
    let settings = ServerSettings { policy: job.policy(), optimizer, rate: RATE, snapshots };
    let mut server = Server::new(member, settings).unwrap();
    let report = server.serve(|report, _| {
        if let Some(loss) = loss.filter(|it| it.at == report.updates) {
            loss.occur();
        }
    });
    let report = report.unwrap().clone();
    let restored = report.restored.unwrap_or_default();
    let numbers = [
        report.updates,
        report.changes,
        report.lost.len() as u64,
        report.most_stale(),
        report.most_ahead(),
        report.dropped.values().sum(),
        restored.updates,
        restored.lost_updates,
        report.samples,
    ];
    write(&folder.join(format!("server.{part}")), &numbers, server.values());
}

fn work(job: Job, member: Member, loss: Option<Loss>, folder: &Path) {
    let mut network = Network::new(0.0);
    let mut worker = Worker::new(member, &mut network).unwrap();
    // Once the membership is whole again, all workers know it after the same step.
    let is_whole = worker.epoch() > 0 && worker.workers() == job.workers;
    let is_whole = is_whole || job.victim == NONE || !job.is_restarted;
    let mut end = is_whole.then(|| end_after(worker.steps()));
    let first = worker.steps();
    let mut was = worker.workers();
    let mut fewest = was;
    while end.is_none_or(|end| worker.steps() < end) {
        if let Some(loss) = loss.filter(|it| it.at == worker.steps()) {
            loss.occur();
        }
        let at = worker.steps() as usize;
        let (places, _) = share(40, 13, at % 4, worker.number(), worker.workers());
        let samples = places.len();
        let epoch = worker.epoch();
        worker.step(&mut network, &part(places, samples)).unwrap();
        if worker.epoch() != epoch && worker.workers() == job.workers {
            end = Some(end_after(worker.steps()));
        }
        (was, fewest) = (worker.workers(), fewest.min(was));
    }
    let numbers = [worker.steps(), was as u64, fewest as u64, first];
    let number = worker.number();
    worker.end().unwrap();
    write(&folder.join(format!("worker.{number}")), &numbers, &network.values());
}

#[test]
fn a_killed_worker_stops_no_other_and_rejoins() {
    for (servers, victim) in [(1, 2), (2, 4), (1, 1)] {
        let Some(ended) = run(Job { servers, victim, ..SYNCHRONOUS }) else { return };
        let steps = ended.workers[0].0[0];
        for (worker, values) in &ended.workers {
            let [made, workers, ..] = *worker;
            assert_eq!((made, workers), (steps, 3), "{worker:?}");
            assert_eq!(*values, ended.values);
        }
        // The one that has joined began where the others were.
        let first = ended.workers[2].0[3];
        assert_eq!(end_after(first), steps);
        assert!(first >= FATAL);
        for [updates, changes, lost, stale, _, dropped, ..] in ended.servers {
            assert_eq!((updates, lost), (steps, 1));
            // Without their first worker the others make a change at once; it may come in time.
            let most = if victim == servers { 2 } else { 1 };
            assert!((1..=most).contains(&changes), "{changes} changes without rank {victim}");
            assert_eq!((stale, dropped), (0, 0));
        }
    }
}

#[test]
fn a_killed_server_comes_back_from_its_last_snapshot() {
    for (servers, victim) in [(1, 0), (2, 0), (2, 1)] {
        let Some(ended) = run(Job { servers, victim, workers: 2, ..SYNCHRONOUS }) else { return };
        let steps = ended.workers[0].0[0];
        for (part, server) in ended.servers.iter().enumerate() {
            let [updates, changes, lost, _, _, dropped, restored, lost_updates, _] = *server;
            assert_eq!((lost, dropped), (0, 0), "{server:?}");
            if part == victim {
                // The snapshot had 8 updates; workers had seen 9, and pushed the 10th again.
                assert_eq!((changes, restored, lost_updates), (0, 8, 1));
                assert_eq!(updates, steps - 1);
            } else {
                assert_eq!((changes, restored, updates), (1, 0, steps));
            }
        }
        for (worker, values) in &ended.workers {
            assert_eq!((worker[0], worker[2]), (steps, 2), "{worker:?}");
            assert_eq!(*values, ended.values);
        }
    }
}

/// The parameters after so many steps with all samples on one worker.
fn alone(steps: u64) -> Vec<f32> {
    let ranks = Communicator::local(2).unwrap();
    std::thread::scope(|scope| {
        let ranks = ranks.into_iter().map(|comm| {
            scope.spawn(move || {
                let layout = Layout::new(1);
                let member = Member::new(comm, layout, JobConfig::default()).unwrap();
                let mut network = Network::new(0.0);
                if let Role::Server(_) = member.role() {
                    let optimizer = Optimizer::Sgd { momentum: 0.5, weight_decay: 0.01 };
                    let policy = SYNCHRONOUS.policy();
                    let settings =
                        ServerSettings { policy, optimizer, rate: RATE, snapshots: None };
                    let mut server = Server::new(member, settings).unwrap();
                    server.serve(|_, _| {}).unwrap();
                    return server.values().to_vec();
                }
                let mut worker = Worker::new(member, &mut network).unwrap();
                for at in 0..steps as usize {
                    let (places, _) = share(40, 13, at % 4, 0, 1);
                    let samples = places.len();
                    worker.step(&mut network, &part(places, samples)).unwrap();
                }
                worker.end().unwrap();
                network.values()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
    })
}

/// With a snapshot after each update, nothing that a worker knows is lost.
#[test]
fn a_server_that_keeps_every_update_changes_nothing_by_its_loss() {
    for (servers, groups) in [(1, 0), (2, 0), (2, 1)] {
        let job = Job { servers, workers: 2, groups, every: 1, victim: servers - 1, ..SYNCHRONOUS };
        let Some(ended) = run(job) else { return };
        let steps = ended.workers[0].0[0];
        for server in &ended.servers {
            let [updates, _, _, _, _, dropped, restored, lost_updates, _] = *server;
            assert_eq!((updates, lost_updates), (steps, 0), "{server:?}");
            // Gradients that were in the snapshot came again, and were not used.
            let pushers = if groups == 0 { 2 } else { 1 };
            assert_eq!(dropped, if restored > 0 { pushers } else { 0 });
        }
        let pairs = alone(steps).into_iter().zip(&ended.values);
        let distance = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(distance < 1e-5, "{distance:e}");
    }
}

#[test]
fn a_killed_worker_of_a_group_is_left_out_of_it_and_rejoins() {
    // Ranks 1 and 3 make a group, 2 and 4 the other one; 1 and 2 lead.
    for victim in [1, 4] {
        let job = Job { workers: 4, groups: 2, victim, ..SYNCHRONOUS };
        let Some(ended) = run(job) else { return };
        let steps = ended.workers[0].0[0];
        for (worker, values) in &ended.workers {
            assert_eq!((worker[0], worker[1]), (steps, 4), "{worker:?}");
            assert_eq!(*values, ended.values);
        }
        for [updates, changes, _, stale, _, dropped, ..] in ended.servers {
            // The change without it, and the one in which it rejoins; or both at once.
            assert!((1..=2).contains(&changes), "{changes}");
            assert_eq!((updates, stale, dropped), (steps, 0, 0));
        }
    }
}

#[test]
fn the_bound_holds_when_ranks_are_lost_and_rejoin() {
    for (victim, bound) in [(3, 0), (3, 2), (0, 1), (1, 2)] {
        let job = Job { servers: 2, bound: Some(bound), victim, ..SYNCHRONOUS };
        let Some(ended) = run(job) else { return };
        for server in ended.servers {
            let [_, _, _, most_stale, most_ahead, dropped, ..] = server;
            assert!(most_ahead <= bound, "{bound}: {server:?}");
            assert!(most_stale <= job.policy().most_stale(3).unwrap(), "{bound}: {server:?}");
            assert_eq!(dropped, 0);
        }
        ended.workers.iter().for_each(|(worker, _)| assert_eq!(worker[1], 3, "{worker:?}"));
    }
}

#[test]
fn ranks_that_do_not_come_back_are_done_without_or_named() {
    let job = Job { victim: 2, is_restarted: false, ..SYNCHRONOUS };
    let Some(ended) = run(job) else { return };
    let [updates, changes, lost, ..] = ended.servers[0];
    assert_eq!((updates, changes, lost), (end_after(0), 0, 1));
    // The others of its group make the step again without it, and no gradient is used twice.
    let job = Job { workers: 4, groups: 2, victim: 1, is_restarted: false, ..SYNCHRONOUS };
    let Some(ended) = run(job) else { return };
    let [updates, changes, .., samples] = ended.servers[0];
    assert_eq!((updates, changes), (end_after(0), 1));
    let all: usize = (0..updates as usize).map(|at| share(40, 13, at % 4, 0, 1).1).sum();
    let lost = share(40, 13, FATAL as usize % 4, 0, 4).0.len();
    assert_eq!(samples as usize, all - lost);
    let job = Job { victim: 0, is_restarted: false, ..SYNCHRONOUS };
    let folder = tempfile::tempdir().unwrap();
    let Some(ran) = output(job, folder.path()) else { return };
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("1 too few after 2s"), "{said}");
}

/// Ranks are lost before the servers have parameters, where snapshots of another job are.
#[test]
fn ranks_may_be_lost_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Job { servers: 2, ..SYNCHRONOUS };
    let Some(before) = run_in(whole, folder.path()) else { return };
    for (victim, second) in [(0, NONE), (1, NONE), (2, NONE), (4, NONE), (0, 2)] {
        let job = Job { victim, second, fatal: 0, ..whole };
        let Some(ended) = run_in(job, folder.path()) else { return };
        for [updates, changes, _, _, _, dropped, restored, ..] in ended.servers {
            // The change without the lost ranks, which waits for a server, and the one in which a
            // worker joins. It may have to wait for another one, as others have pushed gradients.
            let most = if second == NONE { 2 } else { 3 };
            assert!(changes <= most, "{victim} {second}: {changes}");
            assert_eq!((updates, dropped, restored), (ended.workers[0].0[0], 0, 0), "{victim}");
        }
        ended.workers.iter().for_each(|(_, values)| assert_eq!(*values, ended.values));
        assert_ne!(before.values, ended.values);
    }
}

/// A server and a worker are lost in the same step, or two workers, or both servers. The last two
/// are in different groups, of which one may have pushed its gradient and wait for the other.
#[test]
fn two_ranks_may_be_lost_at_once() {
    for (victim, second, groups) in
        [(0, 2, 0), (1, 2, 0), (2, 3, 0), (0, 1, 0), (1, 4, 2), (2, 4, 2), (3, 2, 2)]
    {
        let job = Job { servers: 2, groups, every: 1, victim, second, ..SYNCHRONOUS };
        let Some(ended) = run(job) else { return };
        let steps = ended.workers[0].0[0];
        for (worker, values) in &ended.workers {
            assert_eq!((worker[0], worker[1]), (steps, 3), "{job:?} {worker:?}");
            assert_eq!(*values, ended.values, "{job:?} {worker:?}");
        }
        ended.servers.iter().for_each(|server| assert_eq!(server[0], steps, "{job:?} {server:?}"));
    }
}

/// Peers that wait for a rank whose process is stopped do not wait for the whole timeout of 120 s.
#[test]
fn a_stopped_server_and_a_stopped_worker_of_a_group_are_named() {
    // Ranks 1 and 3 make a group, 1 leads.
    for (victim, groups) in [(0, 0), (1, 2), (3, 2)] {
        let is_elastic = false;
        let job = Job { workers: 4, groups, victim, is_stopped: true, is_elastic, ..SYNCHRONOUS };
        let folder = tempfile::tempdir().unwrap();
        let Some(ran) = output(job, folder.path()) else { return };
        let said = String::from_utf8_lossy(&ran.stderr);
        let expected = format!("silence is more than 3s of rank {victim} (host ");
        assert!(!ran.status.success() && said.contains(&expected), "{victim}: {said}");
    }
}

#[test]
fn a_stopped_worker_of_a_group_is_left_behind_where_ranks_go_on() {
    let (victim, is_restarted) = (3, false);
    let job = Job { workers: 4, groups: 2, victim, is_restarted, is_stopped: true, ..SYNCHRONOUS };
    let Some(ended) = run(job) else { return };
    let [updates, changes, ..] = ended.servers[0];
    assert_eq!((updates, changes, ended.workers.len()), (end_after(0), 1, 3));
}

/// The first worker is lost before the servers have its saved state: nobody begins anew.
#[test]
fn a_saved_state_that_is_lost_is_an_error() {
    let job = Job { victim: 1, fatal: 0, saved: 7, is_restarted: false, ..SYNCHRONOUS };
    let folder = tempfile::tempdir().unwrap();
    let Some(ran) = output(job, folder.path()) else { return };
    let said = String::from_utf8_lossy(&ran.stderr);
    let expected = "the worker that had it is lost; start the training again from it";
    assert!(!ran.status.success() && said.contains(expected), "{said}");
}
