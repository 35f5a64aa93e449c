//! The end of trainings whose ranks are processes: ranks that are busy for long before they end
//! are waited for, all ranks learn alike whether the training was stopped, and no message is left
//! unread.

use std::thread::{sleep, spawn};
use std::time::Duration;

use harness::processes::this_rank;
use nix::sys::signal::{Signal, raise};
use ringreduce::Tag;
use strategy::{
    Groups, JobConfig, Layout, Member, Optimizer, Policy, Role, Server, ServerSettings, Worker,
};

use crate::network::{Network, part};
use crate::processes;

/// After which silence ranks give each other up.
const WORKER_TIMEOUT: Duration = Duration::from_secs(3);
/// For how long a busy worker saves a checkpoint.
const LONG: Duration = Duration::from_secs(7);
/// The longest time that a rank takes; then it fails.
const LIMIT: Duration = Duration::from_secs(60);

const SERVERS: usize = 2;
const WORKERS: usize = 3;
const STEPS: u64 = 4;
const JOB: &str = "SERVERS_END_JOB";

/// A training of up to [`STEPS`] steps.
#[derive(Clone, Copy)]
struct Job {
    groups: Groups,
    policy: Policy,
    /// The timeout of each wait of a communicator.
    timeout: Duration,
    /// The worker that is busy, and after how many of its steps.
    busy: (usize, &'static [u64]),
    /// For how long a server is busy after each update.
    server_busy: Duration,
    /// The worker that asks for the end, and after how many of its steps.
    asks: Option<(usize, u64)>,
    /// The worker whose process is stopped by a signal after its first step.
    freezes: Option<usize>,
    /// The part of the server whose process is stopped by a signal in the last update.
    server_freezes: Option<usize>,
    /// Whether a server refuses its settings, once the first worker has sent it something.
    servers_fail: bool,
}

const SYNCHRONOUS: Job = Job {
    groups: Groups::Each,
    policy: Policy::Synchronous { backups: 0 },
    timeout: Duration::from_secs(120),
    busy: (0, &[]),
    server_busy: Duration::ZERO,
    asks: None,
    freezes: None,
    server_freezes: None,
    servers_fail: false,
};
const ASYNCHRONOUS: Job = Job { policy: Policy::Asynchronous { bound: None }, ..SYNCHRONOUS };

const SAVING: Job = Job { timeout: WORKER_TIMEOUT, busy: (0, &[2, 3]), ..SYNCHRONOUS };
const JOBS: [Job; 11] = [
    // The first worker saves in the middle of a training, and at its end.
    Job { asks: Some((1, 2)), ..SAVING },
    Job { asks: Some((1, 2)), groups: Groups::Number(0), ..SAVING },
    // Followers of a group are busy before they end.
    Job { groups: Groups::Number(0), busy: (2, &[STEPS]), ..SYNCHRONOUS },
    // A worker asks for the end in its last step.
    Job { asks: Some((2, STEPS - 1)), ..SYNCHRONOUS },
    // The same, after the others have ended.
    Job { asks: Some((0, 1)), busy: (0, &[1]), ..ASYNCHRONOUS },
    // Nobody does.
    ASYNCHRONOUS,
    // Servers are busy while workers have ended.
    Job { asks: Some((1, 0)), server_busy: Duration::from_millis(1500), ..ASYNCHRONOUS },
    Job { groups: Groups::Number(0), server_busy: Duration::from_millis(1500), ..SYNCHRONOUS },
    // A follower of a group is stopped by a signal.
    Job { groups: Groups::Number(0), freezes: Some(2), ..SYNCHRONOUS },
    // A server is, after two workers have ended.
    Job { busy: (0, &[STEPS - 1]), server_freezes: Some(1), ..ASYNCHRONOUS },
    Job { servers_fail: true, ..SYNCHRONOUS },
];

/// The body of a rank.
#[test]
fn rank() {
    let Some(mut comm) = this_rank() else { return };
    spawn(|| {
        sleep(LIMIT);
        eprintln!("it has not ended after {LIMIT:?}");
        std::process::exit(1);
    });
    let job = JOBS[std::env::var(JOB).unwrap().parse::<usize>().unwrap()];
    // Ranks may be started late.
    comm.barrier().unwrap();
    comm.set_timeout(job.timeout);
    let (groups, worker_timeout) = (job.groups, WORKER_TIMEOUT);
    let layout = Layout { groups, worker_timeout, ..Layout::new(SERVERS) };
    let messages = comm.messenger();
    let member = Member::new(comm, layout, JobConfig::default()).unwrap();
    match member.role() {
        Role::Server(_) if job.servers_fail => {
            messages.probe(SERVERS, Tag::Any).unwrap();
            let optimizer = Optimizer::Lamb { betas: (0.9, 0.9), epsilon: 1e-6, weight_decay: 0.0 };
            let (policy, rate) = (job.policy, 0.1);
            let settings = ServerSettings { policy, optimizer, rate, snapshots: None };
            Server::new(member, settings).unwrap_err();
        }
        Role::Server(part) => serve(job, member, part),
        Role::Worker(_) => work(job, member),
    }
}

fn serve(job: Job, member: Member, part: usize) {
    let (policy, optimizer) = (job.policy, Optimizer::SGD);
    let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots: None };
    let mut server = Server::new(member, settings).unwrap();
    let report = server.serve(|report, _| {
        sleep(job.server_busy);
        if job.server_freezes == Some(part) && report.updates == STEPS * WORKERS as u64 {
            raise(Signal::SIGSTOP).unwrap();
        }
    });
    let report = report.unwrap();
    assert_eq!(report.lost.len(), if job.freezes.is_some() { WORKERS } else { 0 }, "{report:?}");
    eprintln!("is stopped: {}", report.is_stopped);
}

fn work(job: Job, member: Member) {
    let mut network = Network::new(0.0);
    let mut worker = Worker::new(member, &mut network).unwrap();
    let number = worker.number();
    loop {
        let steps = worker.steps();
        if number == job.busy.0 && job.busy.1.contains(&steps) {
            sleep(LONG);
        }
        if steps == STEPS || worker.is_stopping() {
            break;
        }
        if job.freezes == Some(number) && steps == 1 {
            raise(Signal::SIGSTOP).unwrap();
        }
        if job.asks == Some((number, steps)) {
            worker.ask_to_stop().unwrap();
        }
        worker.step(&mut network, &part(0..4, 4)).unwrap();
    }
    assert_ne!(network.values(), Network::new(0.0).values());
    let is_stopped = worker.end().unwrap();
    eprintln!("is stopped: {is_stopped}");
}

/// All ranks of a job end well and alike, and warn of nothing.
fn all_end(job: usize, transport: &str) {
    let expected = format!("is stopped: {}", JOBS[job].asks.is_some());
    let ends =
        processes::ends(module_path!(), SERVERS + WORKERS, transport, (JOB, &job.to_string()));
    for (rank, (ended, lines)) in ends.iter().enumerate() {
        assert!(*ended && lines.contains(&expected), "rank {rank} by {transport}: {lines}");
        assert!(!lines.contains("never received"), "rank {rank} by {transport}: {lines}");
    }
}

#[test]
fn a_worker_that_saves_for_longer_than_the_timeout_is_waited_for() {
    all_end(0, "shm");
}

#[test]
fn a_leader_that_saves_for_longer_than_the_timeout_is_waited_for() {
    all_end(1, "tcp");
}

#[test]
fn a_leader_that_waits_for_a_slow_follower_is_not_given_up() {
    all_end(2, "shm");
}

#[test]
fn all_ranks_say_alike_that_a_worker_has_asked_for_the_end() {
    for job in 3..=5 {
        all_end(job, "shm");
    }
}

#[test]
fn no_heartbeat_is_left_unread() {
    for transport in ["shm", "tcp"] {
        all_end(6, transport);
        all_end(7, transport);
    }
}

/// Workers, which have sent their first messages, end with the error of its loss.
#[test]
fn a_server_that_fails_leaves_no_message_unread() {
    for transport in ["shm", "tcp"] {
        let ends = processes::ends(module_path!(), SERVERS + WORKERS, transport, (JOB, "10"));
        for (rank, (ended, lines)) in ends.iter().enumerate() {
            assert_eq!(*ended, rank < SERVERS, "rank {rank} by {transport}: {lines}");
            assert!(!lines.contains("never received"), "rank {rank} by {transport}: {lines}");
        }
    }
}

/// Servers do not wait for it after its leader has ended with an error.
#[test]
fn a_follower_that_is_stopped_holds_up_no_server() {
    let mut ranks = processes::start(module_path!(), SERVERS + WORKERS, "shm", (JOB, "8"));
    for server in &mut ranks[..SERVERS] {
        let ended = server.ends();
        assert!(ended.success(), "{:#?}", server.lines);
    }
}

/// Workers that wait for the end of all do not wait for it.
#[test]
fn a_server_that_is_stopped_is_named_by_workers_that_have_ended() {
    let mut ranks = processes::start(module_path!(), SERVERS + WORKERS, "shm", (JOB, "9"));
    for worker in &mut ranks[SERVERS..] {
        let ended = worker.ends();
        let silence = format!("silence is more than {WORKER_TIMEOUT:?} of rank 1");
        let names = |line: &String| line.contains(&silence);
        assert!(!ended.success() && worker.lines.iter().any(names), "{:#?}", worker.lines);
    }
}
