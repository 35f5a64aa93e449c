//! Synchronous strategies on buffers of CUDA devices, with a stand-in for the driver.

mod overlap;
mod rank;
mod refused;

use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Error, Optimizer, Parameters, Part, Settings, State, Strategy,
    Trainer, share,
};

use crate::network::{Network, Samples, part};
use rank::{Rank, devices, on_standin};

const MIRRORED: Strategy = Strategy::Mirrored(CrossDeviceOp::AllReduce);
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
const STEPS: usize = 50;
const RATE: f32 = 0.1;
/// 40 samples leave a last batch of 1, which has fewer samples than there are ranks.
const BATCH: usize = 13;

fn settings(strategy: Strategy, optimizer: Optimizer) -> Settings {
    // A bucket for each layer.
    let buckets = Some(BucketSizes { first: 8, others: 100 });
    Settings { strategy, optimizer, clip_norm: None, buckets }
}

/// This rank's share of the batch of a step in `pieces` parts.
fn parts(comm: &Communicator, step: usize, pieces: usize) -> Vec<Part<Samples>> {
    let step = step % 40usize.div_ceil(BATCH);
    let (places, total) = share(40, BATCH, step, comm.rank(), comm.size());
    let cut = |piece: usize| places.start + places.len() * piece / pieces;
    (0..pieces).map(|piece| part(cut(piece)..cut(piece + 1), total)).collect()
}

/// The parameters after some steps of one rank on the host.
fn alone(settings: Settings, steps: usize) -> Vec<f32> {
    let mut comm = Communicator::local(1).unwrap().remove(0);
    let mut network = Network::new(0.0);
    let mut trainer = Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
    for step in 0..steps {
        trainer.step(&mut network, &parts(&comm, step, 1), RATE).unwrap();
    }
    network.values()
}

/// The parameters of all ranks after some steps on devices.
fn trained(n: usize, settings: Settings, steps: usize, pieces: usize) -> Vec<Vec<f32>> {
    on_ranks(n, |comm: &mut Communicator| {
        let mut rank = Rank::new(comm, settings);
        for step in 0..steps {
            rank.parts(&parts(comm, step, pieces));
            if settings.clip_norm.is_some() {
                rank.sum_totals();
            }
            rank.update(RATE);
        }
        assert_eq!(rank.trainer.steps(), steps as u64);
        let values = rank.values();
        rank.trainer.check().unwrap();
        values
    })
}

/// The distance of two vectors is small, relative to the length of the first.
#[track_caller]
fn close(one: &[f32], other: &[f32], what: &str) {
    let norm = |it: &mut dyn Iterator<Item = f32>| it.map(|it| f64::from(it).powi(2)).sum::<f64>();
    let apart = norm(&mut one.iter().zip(other).map(|(one, other)| one - other));
    let distance = (apart / norm(&mut one.iter().copied())).sqrt();
    assert!(distance < 1e-5, "{what}: {distance:e}");
}

#[test]
fn every_strategy_ends_with_the_parameters_of_one_rank() {
    on_standin("every_strategy_ends_with_the_parameters_of_one_rank", &[1, 3], || {
        let alone = alone(settings(MIRRORED, Optimizer::SGD), STEPS);
        // With three devices each rank has one.
        let ranks = if devices() == 1 { 1..=4 } else { 3..=3 };
        for strategy in Strategy::ALL {
            for n in ranks.clone() {
                for values in trained(n, settings(strategy, Optimizer::SGD), STEPS, 1) {
                    close(&alone, &values, &format!("{strategy}, {n} ranks"));
                }
            }
        }
    });
}

#[test]
fn clipped_gradients_of_several_parts_and_moments_are_those_of_one_rank() {
    let name = "clipped_gradients_of_several_parts_and_moments_are_those_of_one_rank";
    on_standin(name, &[1], || {
        let settings =
            |strategy| Settings { clip_norm: Some(0.05), ..settings(strategy, MOMENTUM) };
        let alone = alone(settings(MIRRORED), 8);
        for strategy in Strategy::ALL {
            for values in trained(3, settings(strategy), 8, 3) {
                close(&alone, &values, &format!("{strategy}"));
            }
        }
    });
}

#[test]
fn a_gradient_that_is_no_number_names_its_rank_at_all_ranks_and_changes_nothing() {
    let name = "a_gradient_that_is_no_number_names_its_rank_at_all_ranks_and_changes_nothing";
    on_standin(name, &[1], || {
        for strategy in Strategy::ALL {
            on_ranks(3, |comm: &mut Communicator| {
                let mut rank = Rank::new(comm, settings(strategy, Optimizer::SGD));
                let before = rank.values();
                rank.network.is_damaged = comm.rank() == 1;
                let batch = parts(comm, 0, 1);
                rank.parts(&batch);
                rank.sum_totals();
                let error = rank.trainer.read_totals().unwrap_err();
                let Error::Diverged { step: 1, loss, cause } = error else { panic!("{error}") };
                assert!(!loss.is_finite());
                assert_eq!(
                    cause.to_string(),
                    "rank 1 has such a gradient of second.weight",
                    "{strategy}"
                );
                assert_eq!(rank.values(), before);
                // The ranks are still in step.
                rank.network.is_damaged = false;
                rank.parts(&batch);
                rank.sum_totals();
                let totals = rank.trainer.read_totals().unwrap();
                assert!(totals.loss > 0.0 && totals.norm > 0.0);
                rank.update(RATE);
                assert_ne!(rank.values(), before);
            });
        }
    });
}

#[test]
fn a_state_goes_from_devices_to_the_host_and_back_with_other_ranks_and_strategies() {
    let name = "a_state_goes_from_devices_to_the_host_and_back_with_other_ranks_and_strategies";
    on_standin(name, &[3], || {
        let all = Strategy::ALL.map(|strategy| settings(strategy, MOMENTUM));
        let alone = alone(all[0], 9);
        for (at, on_device) in all.into_iter().enumerate() {
            let other = all[(at + 3) % all.len()];
            let first = device_state(3, on_device, None, 3);
            let second = host_state(2, other, &first, 6);
            // Two of the ranks share a device.
            let third = device_state(4, other, Some(&second), 9);
            let values = |name: &str| {
                let of = third.parameters.iter().find(|it| it.name == name);
                of.unwrap().values.clone()
            };
            let names = Network::new(0.0).parameters().into_iter().map(|(name, _)| values(&name));
            close(&alone, &names.collect::<Vec<_>>().concat(), &format!("{on_device:?}"));
            assert_eq!((third.steps, &*third.optimizer), (9, "sgd"));
        }
    });
}

/// The state at rank 0 after steps on devices from a state, or from the start.
fn device_state(n: usize, settings: Settings, state: Option<&State>, until: u64) -> State {
    let states = on_ranks(n, |comm: &mut Communicator| {
        let mut rank = Rank::new(comm, settings);
        if state.is_some() {
            rank.trainer.load_state(state.filter(|_| comm.rank() == 0)).unwrap();
        }
        while rank.trainer.steps() < until {
            rank.parts(&parts(comm, rank.trainer.steps() as usize, 1));
            rank.update(RATE);
        }
        rank.trainer.state().unwrap()
    });
    assert!(states[1..].iter().all(Option::is_none), "rank 0 alone has the state");
    states.into_iter().next().flatten().unwrap()
}

/// The state at rank 0 after steps on the host from a state.
fn host_state(n: usize, settings: Settings, state: &State, until: u64) -> State {
    let states = on_ranks(n, |comm: &mut Communicator| {
        let (mut network, own) = (Network::new(0.0), comm.duplicate().unwrap());
        let mut trainer = Trainer::new(own, &mut network, settings).unwrap();
        trainer.load_state(&mut network, Some(state).filter(|_| comm.rank() == 0)).unwrap();
        while trainer.steps() < until {
            let parts = parts(comm, trainer.steps() as usize, 1);
            trainer.step(&mut network, &parts, RATE).unwrap();
        }
        trainer.state::<Infallible>().unwrap()
    });
    states.into_iter().next().flatten().unwrap()
}
