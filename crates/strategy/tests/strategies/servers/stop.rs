//! A worker asks for the end of a training: all end, and wait for each other.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Groups, JobConfig, Layout, Member, Optimizer, Policy, Role, Server, ServerSettings, Worker,
};

use crate::network::{Network, part};

/// The steps and the parameters of each worker.
type Ends = Vec<(u64, Vec<f32>)>;

/// How workers end, and the updates of each server.
fn ended(servers: usize, groups: Groups, policy: Policy) -> (Ends, Vec<u64>) {
    let mut ends = on_ranks(servers + 3, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let layout = Layout { groups, ..Layout::new(servers) };
        let member = Member::new(comm, layout, JobConfig::default()).unwrap();
        if let Role::Server(_) = member.role() {
            let optimizer = Optimizer::SGD;
            let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots: None };
            let mut server = Server::new(member, settings).unwrap();
            let report = server.serve(|_, _| {}).unwrap();
            assert!(report.is_stopped && report.lost.is_empty());
            return (report.updates, Vec::new());
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).unwrap();
        while !worker.is_stopping() {
            if worker.number() == 2 && worker.steps() >= 5 {
                worker.ask_to_stop().unwrap();
            }
            worker.step(&mut network, &part(0..4, 4)).unwrap();
        }
        let steps = worker.steps();
        assert!(worker.end().unwrap());
        (steps, network.values())
    });
    let workers = ends.split_off(servers);
    (workers, ends.into_iter().map(|(updates, _)| updates).collect())
}

#[test]
fn all_workers_end_after_the_same_step_where_servers_are_synchronous() {
    for (servers, groups) in [(1, Groups::Each), (2, Groups::Each), (2, Groups::Number(0))] {
        let (workers, servers) = ended(servers, groups, Policy::Synchronous { backups: 0 });
        let (steps, _) = workers[0];
        assert!((6..=7).contains(&steps), "{steps}");
        assert!(workers.iter().all(|it| *it == workers[0]), "{workers:?}");
        assert!(servers.iter().all(|updates| *updates == steps), "{servers:?}");
    }
}

#[test]
fn all_workers_end_where_servers_are_asynchronous() {
    for bound in [None, Some(1)] {
        let (workers, servers) = ended(2, Groups::Each, Policy::Asynchronous { bound });
        let steps = workers.iter().map(|(steps, _)| steps).sum::<u64>();
        assert_eq!(servers, [steps; 2]);
    }
}

/// A server lives on after the end, and its workers do not wait for it.
#[test]
fn workers_end_once_all_have_said_so() {
    let (ended, has_ended) = channel();
    let has_ended = Mutex::new(has_ended);
    on_ranks(2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let layout = Layout { worker_timeout: Duration::from_secs(3), ..Layout::new(1) };
        let member = Member::new(comm, layout, JobConfig::default()).unwrap();
        if let Role::Server(_) = member.role() {
            let (policy, optimizer) = (Policy::Synchronous { backups: 0 }, Optimizer::SGD);
            let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots: None };
            let mut server = Server::new(member, settings).unwrap();
            server.serve(|_, _| {}).unwrap();
            has_ended.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            return;
        }
        let worker = Worker::new(member, &mut Network::new(0.0)).unwrap();
        assert!(!worker.end().unwrap());
        ended.send(()).unwrap();
    });
}
