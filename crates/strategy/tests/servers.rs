//! Parameter servers beside one rank that has the whole batch, and without the ranks that are lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod network;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{Model, Optimizer, Policy, Server, ServerReport, Worker, share};

use network::{Network, part};

const STEPS: usize = 50;
const RATE: f32 = 0.1;
const SYNCHRONOUS: Policy = Policy::Synchronous { backups: 0 };

/// What a rank ends with.
enum End {
    Served(ServerReport, Vec<f32>),
    Worked(Vec<f32>),
}

/// A job whose workers do `work` with their number among `workers`.
fn job(
    servers: usize,
    workers: usize,
    policy: Policy,
    work: impl Fn(usize, &mut Worker, &mut Network) + Sync,
) -> Vec<End> {
    on_ranks(servers + workers, |comm: &mut Communicator| {
        // A rank is gone as soon as it returns.
        let comm = comm.duplicate().unwrap();
        let rank = comm.rank();
        if rank < servers {
            let optimizer = (Optimizer::Sgd { momentum: 0.5, weight_decay: 0.01 }, RATE);
            let mut server = Server::new(&comm, servers, policy, optimizer).unwrap();
            let report = server.serve().unwrap().clone();
            return End::Served(report, server.values().to_vec());
        }
        let mut network = Network::new((rank - servers) as f32);
        let mut worker = Worker::new(&comm, servers, &mut network).unwrap();
        work(rank - servers, &mut worker, &mut network);
        worker.end().unwrap();
        End::Worked(network.values())
    })
}

/// A step with this worker's share of batch number `step`.
fn step(number: usize, workers: usize, step: usize, worker: &mut Worker, network: &mut Network) {
    let (places, _) = share(40, 13, step % 4, number, workers);
    // A worker without samples pushes a gradient that counts for nothing.
    let samples = places.len();
    worker.step(network, &part(places, samples)).unwrap();
}

/// The parameters that all servers keep, and what each has seen.
fn served(ends: Vec<End>) -> (Vec<ServerReport>, Vec<f32>) {
    let (mut reports, mut values) = (Vec::new(), Vec::new());
    for end in ends {
        if let End::Served(report, kept) = end {
            reports.push(report);
            values.extend(kept);
        }
    }
    (reports, values)
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn synchronous_servers_end_with_the_parameters_of_one_worker() {
    let trained = |servers, workers| {
        let ends = job(servers, workers, SYNCHRONOUS, |number, worker, network| {
            (0..STEPS).for_each(|at| step(number, workers, at, worker, network));
        });
        for end in &ends {
            let End::Worked(values) = end else { continue };
            let all = ends.iter().filter_map(|end| match end {
                End::Served(_, values) => Some(values.clone()),
                End::Worked(_) => None,
            });
            assert_eq!(*values, all.collect::<Vec<_>>().concat());
        }
        let (reports, values) = served(ends);
        for report in reports {
            assert_eq!((report.updates, report.dropped, report.most_stale), (STEPS as u64, 0, 0));
        }
        values
    };
    let alone = trained(1, 1);
    assert!(distance(&alone, &Network::new(0.0).values()) > 0.01);
    for (servers, workers) in [(1, 2), (1, 3), (2, 3), (3, 2)] {
        let distance = distance(&alone, &trained(servers, workers));
        assert!(distance < 1e-5, "{servers} servers, {workers} workers: {distance:e}");
    }
}

/// The loss over all samples.
fn loss(values: &[f32]) -> f32 {
    let mut network = Network::new(0.0);
    let mut rest = values;
    for (parameter, (_, count)) in network.parameters().into_iter().enumerate() {
        let (these, others) = rest.split_at(count);
        network.write(parameter, these).unwrap();
        rest = others;
    }
    let sink: strategy::Sink = std::sync::Arc::new(|_, _| {});
    network.gradients(&part(0..40, 40), &sink).unwrap()
}

#[test]
fn asynchronous_servers_keep_the_bound_and_learn() {
    for bound in [None, Some(0), Some(2)] {
        let ends = job(2, 3, Policy::Asynchronous { bound }, |number, worker, network| {
            (0..STEPS).for_each(|at| step(number, 3, at, worker, network));
        });
        let (reports, values) = served(ends);
        for report in reports {
            // A push of no samples is an update, too.
            assert_eq!((report.updates, report.dropped), (3 * STEPS as u64, 0));
            assert!(report.most_ahead <= bound.unwrap_or(u64::MAX), "{bound:?}: {report:?}");
        }
        assert!(loss(&values) < 0.5 * loss(&Network::new(0.0).values()), "{}", loss(&values));
    }
}

#[test]
fn a_lost_worker_stops_no_other() {
    for policy in [SYNCHRONOUS, Policy::Asynchronous { bound: Some(1) }] {
        let ends = on_ranks(4, |comm: &mut Communicator| {
            let comm = comm.duplicate().unwrap();
            let rank = comm.rank();
            if rank == 0 {
                let optimizer = (Optimizer::SGD, RATE);
                let mut server = Server::new(&comm, 1, policy, optimizer).unwrap();
                return Some(server.serve().unwrap().clone());
            }
            let mut network = Network::new(0.0);
            let mut worker = Worker::new(&comm, 1, &mut network).unwrap();
            for at in 0..STEPS {
                if rank == 2 && at == 7 {
                    // It leaves without a word.
                    return None;
                }
                step(rank - 1, 3, at, &mut worker, &mut network);
            }
            worker.end().unwrap();
            None
        });
        let report = ends.into_iter().flatten().next().unwrap();
        assert_eq!(report.lost, [2]);
        let least = if policy == SYNCHRONOUS { STEPS as u64 } else { 2 * STEPS as u64 };
        assert!(report.updates >= least, "{report:?}");
        assert_eq!(report.dropped, 0);
    }
}

#[test]
fn backup_workers_are_not_waited_for() {
    let policy = Policy::Synchronous { backups: 1 };
    let ends = job(1, 3, policy, |number, worker, network| {
        // The last worker makes one step while the others make many.
        let steps = if number == 2 { 1 } else { STEPS };
        (0..steps).for_each(|at| step(number, 3, at, worker, network));
    });
    let (reports, _) = served(ends);
    // Updates wait for two of three workers, and for one of two after the end of the third.
    assert!(reports[0].updates >= STEPS as u64, "{reports:?}");
    assert!(reports[0].lost.is_empty());
}

#[test]
fn wrong_roles_are_errors() {
    on_ranks(2, |comm: &mut Communicator| {
        let sgd = (Optimizer::SGD, RATE);
        let words = if comm.rank() == 0 {
            assert!(Server::new(comm, 2, SYNCHRONOUS, sgd).is_err());
            let lamb = Optimizer::Lamb { betas: (0.9, 0.999), epsilon: 1e-6, weight_decay: 0.0 };
            assert!(Server::new(comm, 1, SYNCHRONOUS, (lamb, RATE)).is_err());
            Worker::new(comm, 1, &mut Network::new(0.0)).map(drop).unwrap_err().to_string()
        } else {
            Server::new(comm, 1, SYNCHRONOUS, sgd).map(drop).unwrap_err().to_string()
        };
        assert!(words.contains(&format!("1 at rank {}", comm.rank())), "{words}");
    });
}

#[test]
fn reports_say_how_far_ahead_and_how_stale() {
    let meeting = std::sync::Barrier::new(2);
    let ends = job(1, 2, Policy::Asynchronous { bound: None }, |number, worker, network| {
        // Both have the first parameters now.
        meeting.wait();
        if number == 0 {
            (0..5).for_each(|at| step(0, 2, at, worker, network));
        }
        meeting.wait();
        if number == 1 {
            step(1, 2, 0, worker, network);
        }
    });
    let (reports, _) = served(ends);
    let ServerReport { updates, most_stale, most_ahead, .. } = reports[0];
    assert_eq!((updates, most_stale, most_ahead), (6, 5, 5));
}
