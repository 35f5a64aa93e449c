//! Asynchronous servers weigh each sample alike, in whichever group or batch it is.

use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Groups, JobConfig, Layout, Member, Model, Optimizer, Parameters, Policy, Server,
    ServerSettings, Sink, Worker,
};

use crate::network::{Network, part};

const RATE: f32 = 0.1;

/// The parameters that a server ends with, whose workers make a step in each of these rounds, one
/// worker after the other, with these samples.
fn served(policy: Policy, groups: &[u64], rounds: &[&[Range<usize>]]) -> Vec<f32> {
    let turn = Barrier::new(groups.len());
    let ends = on_ranks(1 + groups.len(), |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let worker = comm.rank().checked_sub(1);
        let groups = Groups::Number(worker.map_or(0, |worker| groups[worker]));
        let layout = Layout { groups, ..Layout::new(1) };
        let member = Member::new(comm, layout, JobConfig::default()).unwrap();
        let Some(worker) = worker else {
            let (optimizer, rate) = (Optimizer::SGD, RATE);
            let settings = ServerSettings { policy, optimizer, rate, snapshots: None };
            let mut server = Server::new(member, settings).unwrap();
            server.serve(|_, _| {}).unwrap();
            return server.values().to_vec();
        };
        let mut network = Network::new(0.0);
        let mut job = Worker::new(member, &mut network).unwrap();
        turn.wait();
        for round in rounds {
            for (at, samples) in round.iter().enumerate() {
                if at == worker {
                    let total = samples.len();
                    job.step(&mut network, &part(samples.clone(), total)).unwrap();
                }
                // The workers of a group wait for each other in their step.
                if rounds.len() > 1 {
                    turn.wait();
                }
            }
        }
        job.end().unwrap();
        Vec::new()
    });
    ends.into_iter().next().unwrap()
}

/// The parameters after an update by the mean gradient of these samples at `at`.
fn updated(values: &[f32], at: &[f32], samples: Range<usize>, rate: f32) -> Vec<f32> {
    let mut network = Network::new(0.0);
    let mut starts = vec![0];
    for (parameter, (_, count)) in network.parameters().into_iter().enumerate() {
        let start = starts[parameter];
        network.write(parameter, &at[start..start + count]).unwrap();
        starts.push(start + count);
    }
    let updated = Arc::new(Mutex::new(values.to_vec()));
    let to = Arc::clone(&updated);
    let sink: Sink = Arc::new(move |parameter, gradient| {
        let mut values = to.lock().unwrap();
        for (value, it) in values[starts[parameter]..].iter_mut().zip(gradient) {
            *value -= rate * it;
        }
    });
    let total = samples.len();
    network.gradients(&part(samples, total), &sink).unwrap();
    let updated = updated.lock().unwrap();
    updated.clone()
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

/// A worker alone, and two in a group. All push gradients of the first parameters.
#[test]
fn a_worker_of_a_large_group_counts_as_much_as_one_on_its_own() {
    let policy = Policy::Asynchronous { bound: None };
    let found = served(policy, &[1, 0, 0], &[&[0..10, 10..20, 20..30]]);
    let first = Network::new(0.0).values();
    let expected = updated(&first, &first, 0..30, RATE);
    assert!(distance(&first, &expected) > 0.01);
    assert!(distance(&found, &expected) < 1e-6, "{found:?}, {expected:?}");
}

/// The second batches are three times as long at one worker as at the other.
#[test]
fn a_sample_of_a_large_batch_counts_as_much_as_one_of_a_small_batch() {
    let policy = Policy::Asynchronous { bound: None };
    let (short, long): (Range<usize>, Range<usize>) = (0..4, 4..16);
    let batches = [short.clone(), long.clone()];
    let found = served(policy, &[1, 2], &[&batches, &batches]);
    let first = Network::new(0.0).values();
    // Nothing is known of the other worker's batches before it has pushed one.
    let second = updated(&first, &first, short.clone(), RATE / 2.0);
    let third = updated(&second, &first, long.clone(), RATE * 0.75);
    let fourth = updated(&third, &second, short, RATE * 0.25);
    let expected = updated(&fourth, &third, long, RATE * 0.75);
    assert!(distance(&found, &expected) < 1e-6, "{found:?}, {expected:?}");
}
