//! Parameter servers beside one rank that has the whole batch, and without the ranks that are lost.

use std::sync::Barrier;
use std::time::Duration;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Groups, JobConfig, Layout, Member, Model, Optimizer, Parameters, Policy, Server, ServerReport,
    ServerSettings, Worker, server_bytes, share,
};

use crate::network::{Network, part};

const STEPS: usize = 50;
const RATE: f32 = 0.1;
const SYNCHRONOUS: Policy = Policy::Synchronous { backups: 0 };
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.5, weight_decay: 0.01 };

/// The result of a rank.
enum End {
    Served(ServerReport, Vec<f32>),
    Worked(Vec<f32>),
}

const fn layout(servers: usize) -> Layout {
    Layout::new(servers)
}

const fn settings(policy: Policy, optimizer: Optimizer) -> ServerSettings {
    ServerSettings { policy, optimizer, rate: RATE, snapshots: None }
}

/// A job whose workers do `work` with their number among `workers`.
fn job(
    servers: usize,
    workers: usize,
    policy: Policy,
    work: impl Fn(usize, &mut Worker, &mut Network) + Sync,
) -> Vec<End> {
    grouped_job(servers, workers, policy, |_| Groups::Each, work)
}

/// The same, with groups of workers.
fn grouped_job(
    servers: usize,
    workers: usize,
    policy: Policy,
    groups: impl Fn(usize) -> Groups + Sync,
    work: impl Fn(usize, &mut Worker, &mut Network) + Sync,
) -> Vec<End> {
    on_ranks(servers + workers, |comm: &mut Communicator| {
        // A rank is gone as soon as it returns.
        let comm = comm.duplicate().unwrap();
        let rank = comm.rank();
        let groups = groups(rank.saturating_sub(servers));
        let member =
            Member::new(comm, Layout { groups, ..layout(servers) }, JobConfig::default()).unwrap();
        if rank < servers {
            let mut server = Server::new(member, settings(policy, MOMENTUM)).unwrap();
            let mut updates = 0;
            let report = server.serve(|report, _| {
                updates += 1;
                assert_eq!(report.updates, updates);
            });
            let report = report.unwrap().clone();
            assert_eq!(report.updates, updates);
            return End::Served(report, server.values().to_vec());
        }
        let mut network = Network::new((rank - servers) as f32);
        let mut worker = Worker::new(member, &mut network).unwrap();
        assert_eq!((worker.number(), worker.workers()), (rank - servers, workers));
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
            assert_eq!((report.updates, report.most_stale()), (STEPS as u64, 0));
            assert!(report.dropped.is_empty() && report.lost.is_empty());
            assert_eq!(report.staleness, [(STEPS * workers) as u64]);
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
            assert_eq!(report.updates, 3 * STEPS as u64);
            assert!(report.dropped.is_empty());
            assert_eq!(report.staleness.iter().sum::<u64>(), report.updates);
            assert!(report.most_ahead() <= bound.unwrap_or(u64::MAX), "{bound:?}: {report:?}");
            let most = Policy::Asynchronous { bound }.most_stale(3);
            assert!(report.most_stale() <= most.unwrap_or(u64::MAX), "{bound:?}: {report:?}");
        }
        assert!(loss(&values) < 0.5 * loss(&Network::new(0.0).values()), "{}", loss(&values));
    }
}

/// A step of the first worker alone moves the parameters by half of what it would alone.
#[test]
fn the_rate_of_an_asynchronous_update_is_divided_by_the_workers() {
    let moved = |workers| {
        let ends = job(1, workers, Policy::Asynchronous { bound: None }, |number, worker, net| {
            if number == 0 {
                worker.step(net, &part(0..10, 10)).unwrap();
            }
        });
        let before = Network::new(0.0).values();
        served(ends).1.iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let (alone, of_two) = (moved(1), moved(2));
    let half: Vec<f32> = alone.iter().map(|it| it / 2.0).collect();
    assert!(distance(&alone, &vec![0.0; alone.len()]) > 0.01, "{alone:?}");
    assert!(distance(&half, &of_two) < 1e-6, "{half:?}, {of_two:?}");
}

#[test]
fn a_lost_worker_stops_no_other() {
    for policy in [SYNCHRONOUS, Policy::Asynchronous { bound: Some(1) }] {
        let ends = on_ranks(4, |comm: &mut Communicator| {
            let comm = comm.duplicate().unwrap();
            let rank = comm.rank();
            let member = Member::new(comm, layout(1), JobConfig::default()).unwrap();
            if rank == 0 {
                let mut server = Server::new(member, settings(policy, Optimizer::SGD)).unwrap();
                return Some(server.serve(|_, _| {}).unwrap().clone());
            }
            let mut network = Network::new(0.0);
            let mut worker = Worker::new(member, &mut network).unwrap();
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
        assert!(report.dropped.is_empty());
    }
}

/// Two workers make steps while the third computes one.
#[test]
fn backup_workers_are_not_waited_for_and_are_named() {
    let meeting = Barrier::new(3);
    let policy = Policy::Synchronous { backups: 1 };
    let ends = job(1, 3, policy, |number, worker, network| {
        meeting.wait();
        if number < 2 {
            (0..STEPS).for_each(|at| step(number, 3, at, worker, network));
        }
        meeting.wait();
        if number == 2 {
            step(number, 3, 0, worker, network);
        }
    });
    let (reports, _) = served(ends);
    // All have the first parameters, so the third worker's gradient is late.
    assert_eq!(reports[0].updates, STEPS as u64);
    assert_eq!(reports[0].dropped.iter().collect::<Vec<_>>(), [(&3, &1)]);
    assert_eq!(reports[0].staleness, [2 * STEPS as u64]);
    assert!(reports[0].lost.is_empty());
}

#[test]
fn wrong_roles_and_models_are_errors() {
    on_ranks(2, |comm: &mut Communicator| {
        let none = Member::new(comm.duplicate().unwrap(), layout(2), JobConfig::default())
            .unwrap_err()
            .to_string();
        assert!(none.contains("2 of 2 ranks"), "{none}");
        let rank = comm.rank();
        let mut member =
            || Member::new(comm.duplicate().unwrap(), layout(1), JobConfig::default()).unwrap();
        let sgd = settings(SYNCHRONOUS, Optimizer::SGD);
        if rank == 0 {
            let lamb = Optimizer::Lamb { betas: (0.9, 0.999), epsilon: 1e-6, weight_decay: 0.0 };
            let words = Server::new(member(), settings(SYNCHRONOUS, lamb)).unwrap_err().to_string();
            assert!(words.contains("no norm"), "{words}");
            let words = Worker::new(member(), &mut Network::new(0.0)).unwrap_err().to_string();
            assert!(words.contains("part 0, rank 0"), "{words}");
        } else {
            drop(member());
            let words = Server::new(member(), sgd).unwrap_err().to_string();
            assert!(words.contains("a worker, rank 1"), "{words}");
        }
    });
}

#[test]
fn reports_say_how_far_ahead_and_how_stale() {
    let meeting = Barrier::new(2);
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
    let report = &reports[0];
    assert_eq!((report.updates, report.most_stale(), report.most_ahead()), (6, 5, 5));
    assert_eq!(report.staleness, [5, 0, 0, 0, 0, 1]);
    // Two were let go on at the start, and the second one at its end, behind the first.
    assert_eq!(report.ahead, [3, 1, 1, 1, 1, 1]);
}

/// A worker that computes four times as long as the other is waited for as the bound says.
#[test]
fn uneven_workers_stay_within_the_bound() {
    for bound in [0, 1, 3] {
        let policy = Policy::Asynchronous { bound: Some(bound) };
        let ends = job(2, 3, policy, |number, worker, network| {
            for at in 0..STEPS / 2 {
                // The delay is the load, not a wait for an event.
                std::thread::sleep(Duration::from_millis(if number == 2 { 4 } else { 1 }));
                step(number, 3, at, worker, network);
            }
        });
        for report in served(ends).0 {
            assert!(report.most_ahead() <= bound, "{bound}: {report:?}");
            let most = policy.most_stale(3).unwrap();
            assert!(report.most_stale() <= most, "{bound}: {report:?}");
            assert_eq!(report.updates, 3 * (STEPS / 2) as u64);
        }
    }
}

/// The group of each worker.
type GroupsOf<'a> = &'a (dyn Fn(usize) -> Groups + Sync);

#[test]
fn groups_end_with_the_parameters_of_one_worker_and_push_once() {
    let trained = |servers, workers, groups: GroupsOf<'_>, pushers: usize| {
        let ends = grouped_job(servers, workers, SYNCHRONOUS, groups, |number, worker, network| {
            (0..STEPS).for_each(|at| step(number, workers, at, worker, network));
        });
        let models = ends.iter().filter_map(|end| match end {
            End::Worked(values) => Some(values.clone()),
            End::Served(..) => None,
        });
        let models: Vec<Vec<f32>> = models.collect();
        let (reports, values) = served(ends);
        models.iter().for_each(|model| assert_eq!(*model, values));
        let bytes = (values.len() * size_of::<f32>()) as u64;
        let all = |bytes_of: fn(&ServerReport) -> u64| reports.iter().map(bytes_of).sum::<u64>();
        let a_step = server_bytes(bytes, 1, pushers as u64);
        assert_eq!(all(|it| it.received_bytes), STEPS as u64 * a_step);
        // The first parameters are sent once more.
        assert_eq!(all(|it| it.sent_bytes), (STEPS as u64 + 1) * a_step);
        values
    };
    let alone = trained(1, 1, &|_| Groups::Each, 1);
    let halves = |number: usize| Groups::Number((number % 2) as u64);
    let uneven = |number: usize| Groups::Number((number / 3) as u64);
    let cases: [(usize, usize, GroupsOf<'_>, usize); 5] = [
        (1, 2, &|_| Groups::Host, 1),
        (1, 4, &halves, 2),
        (2, 4, &uneven, 2),
        (2, 3, &|_| Groups::Each, 3),
        (1, 3, &|_| Groups::Host, 1),
    ];
    for (servers, workers, groups, pushers) in cases {
        let distance = distance(&alone, &trained(servers, workers, groups, pushers));
        assert!(distance < 1e-5, "{servers} servers, {workers} workers: {distance:e}");
    }
}

/// Where lost ranks do not come back, the workers of a group end with a lost one of them, and the
/// other groups go on.
#[test]
fn a_lost_worker_ends_its_group_and_no_other() {
    let ends = on_ranks(5, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let rank = comm.rank();
        let groups = Groups::Number(u64::from(rank > 2));
        let member =
            Member::new(comm, Layout { groups, ..layout(1) }, JobConfig::default()).unwrap();
        if rank == 0 {
            let mut server = Server::new(member, settings(SYNCHRONOUS, Optimizer::SGD)).unwrap();
            return Some(server.serve(|_, _| {}).unwrap().clone());
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).unwrap();
        for at in 0..STEPS {
            if rank == 3 && at == 7 {
                // It leaves without a word.
                return None;
            }
            let (places, _) = share(40, 13, at % 4, rank - 1, 4);
            let samples = places.len();
            let stepped = worker.step(&mut network, &part(places, samples));
            if rank == 4 && at == 7 {
                let words = stepped.unwrap_err().to_string();
                assert!(words.contains("lost rank"), "{words}");
                return None;
            }
            stepped.unwrap();
        }
        worker.end().unwrap();
        None
    });
    let report = ends.into_iter().flatten().next().unwrap();
    assert_eq!(report.updates, STEPS as u64);
    let mut lost = report.lost.clone();
    lost.sort_unstable();
    assert_eq!(lost, [3, 4]);
}

#[test]
fn a_gradient_that_is_not_finite_names_the_parameter() {
    job(1, 1, SYNCHRONOUS, |_, worker, network| {
        step(0, 1, 0, worker, network);
        network.is_damaged = true;
        let words = worker.step(network, &part(0..4, 4)).unwrap_err().to_string();
        assert!(words.contains("step 2") && words.contains("second.weight"), "{words}");
    });
}
