//! Servers that live and are stuck in what the program does there, and servers that are busy.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Groups, JobConfig, Layout, Member, Optimizer, Policy, Role, Server, ServerSettings,
    SnapshotStore, Snapshots, Worker,
};

use crate::network::{Network, part};

/// Longer than a busy machine keeps a heartbeat from its thread.
const WORKER_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for workers that shall end.
const LIMIT: Duration = Duration::from_secs(60);
const WORKERS: usize = 3;

/// The way in which a server stops in its second update.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stuck {
    Progress,
    Snapshot,
}

/// Snapshots that are kept nowhere. The third one, after two updates, takes as long as `work`.
struct Nowhere<F>(usize, F);

impl<F: FnMut() + Send> SnapshotStore for Nowhere<F> {
    fn save(&mut self, _: usize, _: &[u8]) -> io::Result<()> {
        self.0 += 1;
        if self.0 == 3 {
            self.1();
        }
        Ok(())
    }

    fn load(&mut self, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

fn settings(work: impl FnMut() + Send + 'static) -> ServerSettings {
    let store = Box::new(Nowhere(0, work));
    let snapshots = Some(Snapshots { store, every: 1, is_resumed: false });
    let (policy, optimizer) = (Policy::Synchronous { backups: 0 }, Optimizer::SGD);
    ServerSettings { policy, optimizer, rate: 0.1, snapshots }
}

/// The errors of workers whose server of part 1 does not go on until all workers have ended.
fn errors_of_workers(stuck: Stuck, groups: Groups, timeout: Duration) -> Vec<String> {
    let (ends, ended): (Vec<Sender<()>>, Vec<Receiver<()>>) =
        (0..WORKERS).map(|_| channel()).unzip();
    let ended = Mutex::new(Some(ended));
    let ends = ends.into_iter().map(Mutex::new).collect::<Vec<_>>();
    let errors = on_ranks(2 + WORKERS, |comm: &mut Communicator| {
        let mut comm = comm.duplicate().unwrap();
        comm.set_timeout(timeout);
        let rank = comm.rank();
        let layout = Layout { groups, worker_timeout: WORKER_TIMEOUT, ..Layout::new(2) };
        let member = Member::new(comm, layout, JobConfig::default()).unwrap();
        if member.role() == Role::Server(1) {
            let ended = ended.lock().unwrap().take().unwrap();
            let wait = move || ended.iter().for_each(|it| it.recv_timeout(LIMIT).unwrap());
            let report = if stuck == Stuck::Snapshot {
                Server::new(member, settings(wait)).unwrap().serve(|_, _| {}).unwrap().clone()
            } else {
                let mut server = Server::new(member, settings(|| {})).unwrap();
                let progress = |updates| {
                    if updates == 2 {
                        wait()
                    }
                };
                server.serve(|report, _| progress(report.updates)).unwrap().clone()
            };
            assert_eq!(report.updates, 2);
            return None;
        }
        if let Role::Server(_) = member.role() {
            Server::new(member, settings(|| {})).unwrap().serve(|_, _| {}).unwrap();
            return None;
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).unwrap();
        worker.step(&mut network, &part(0..4, 4)).unwrap();
        let error = worker.step(&mut network, &part(0..4, 4)).unwrap_err().to_string();
        drop(worker);
        ends[rank - 2].lock().unwrap().send(()).unwrap();
        Some(error)
    });
    errors.into_iter().flatten().collect()
}

#[test]
fn a_server_that_is_stuck_is_named_by_the_workers_that_wait_for_it() {
    let long = Duration::from_secs(30);
    let cases = [
        (Stuck::Progress, Groups::Each, long),
        (Stuck::Progress, Groups::Number(0), long),
        // A snapshot may take as long as any wait of the communicator.
        (Stuck::Snapshot, Groups::Each, WORKER_TIMEOUT),
    ];
    for (stuck, groups, timeout) in cases {
        let errors = errors_of_workers(stuck, groups, timeout);
        assert_eq!(errors.len(), WORKERS);
        for error in errors {
            let names = error.contains("server is rank 1") && error.contains("in step 2");
            assert!(names, "{stuck:?}, {groups:?}: {error}");
        }
    }
}

#[test]
fn a_server_that_writes_a_long_snapshot_is_waited_for() {
    let reports = on_ranks(2, |comm: &mut Communicator| {
        let layout = Layout { worker_timeout: WORKER_TIMEOUT, ..Layout::new(1) };
        let comm = comm.duplicate().unwrap();
        let member = Member::new(comm, layout, JobConfig::default()).unwrap();
        if let Role::Server(_) = member.role() {
            // The delay is the load, not a wait for an event.
            let settings = settings(|| std::thread::sleep(3 * WORKER_TIMEOUT));
            return Server::new(member, settings).unwrap().serve(|_, _| {}).unwrap().updates;
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).unwrap();
        (0..3).for_each(|_| _ = worker.step(&mut network, &part(0..4, 4)).unwrap());
        worker.end().unwrap();
        assert_ne!(network.values(), Network::new(0.0).values());
        3
    });
    assert_eq!(reports, [3, 3]);
}
