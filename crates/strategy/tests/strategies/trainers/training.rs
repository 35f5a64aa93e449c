//! Every strategy trains the model of one rank that has the whole batch.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{BucketSizes, CrossDeviceOp, Error, Optimizer, Settings, Strategy, Trainer, share};

use crate::network::{Network, part};

const STEPS: usize = 50;
const RATE: f32 = 0.1;

fn settings(strategy: Strategy, optimizer: Optimizer) -> Settings {
    let buckets = Some(BucketSizes { first: 100, others: 200 });
    Settings { strategy, optimizer, clip_norm: None, buckets }
}

/// The parameters after [`STEPS`] steps of `n` ranks with batches of `batch` samples, of which each
/// rank computes its share in `pieces` parts.
fn trained(n: usize, settings: Settings, batch: usize, pieces: usize) -> Vec<f32> {
    let results = on_ranks(n, |comm: &mut Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut network = Network::new(rank as f32);
        let mut trainer = Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
        for step in 0..STEPS {
            let (places, total) = share(40, batch, step % 40usize.div_ceil(batch), rank, size);
            let cut = |piece: usize| places.start + places.len() * piece / pieces;
            let parts: Vec<_> =
                (0..pieces).map(|piece| part(cut(piece)..cut(piece + 1), total)).collect();
            trainer.step(&mut network, &parts, RATE).unwrap();
        }
        assert_eq!(trainer.steps(), STEPS as u64);
        network.values()
    });
    for other in &results[1..] {
        assert!(results[0].iter().map(|it| it.to_bits()).eq(other.iter().map(|it| it.to_bits())));
    }
    results.into_iter().next().unwrap()
}

/// The distance of two vectors, relative to the length of the first.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    let norm = |it: &mut dyn Iterator<Item = f32>| it.map(|it| f64::from(it).powi(2)).sum::<f64>();
    let apart = norm(&mut one.iter().zip(other).map(|(one, other)| one - other));
    (apart / norm(&mut one.iter().copied())).sqrt()
}

#[track_caller]
fn close(one: &[f32], other: &[f32], what: &str) {
    let distance = distance(one, other);
    assert!(distance < 1e-5, "{what}: {distance:e}");
}

#[test]
fn every_strategy_ends_with_the_parameters_of_one_rank() {
    // 12 is divisible by all worlds; 40 samples in batches of 7 leave a last batch of 5, and in
    // batches of 13 one of 1, which has fewer samples than there are ranks.
    for batch in [12, 7, 13] {
        let mirrored = Strategy::Mirrored(CrossDeviceOp::AllReduce);
        let alone = trained(1, settings(mirrored, Optimizer::SGD), batch, 1);
        assert!(distance(&alone, &Network::new(0.0).values()) > 0.01, "the model was trained");
        for strategy in Strategy::ALL {
            for n in 1..=4 {
                let parameters = trained(n, settings(strategy, Optimizer::SGD), batch, 1);
                close(&alone, &parameters, &format!("{strategy}, {n} ranks, batch {batch}"));
            }
        }
    }
}

#[test]
fn every_optimizer_ends_with_the_parameters_of_one_rank() {
    let optimizers = [
        Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 },
        // Epsilon is larger than usual: where a gradient is near 0, Adam takes its sign alone.
        Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.01 },
        Optimizer::Lars { momentum: 0.9, weight_decay: 0.01, trust: 0.1 },
        Optimizer::Lamb { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.01 },
    ];
    for optimizer in optimizers {
        let mirrored = Strategy::Mirrored(CrossDeviceOp::AllReduce);
        let alone = trained(1, settings(mirrored, optimizer), 13, 1);
        for strategy in Strategy::ALL {
            if strategy.is_sharded() && optimizer.is_by_parameter() {
                continue;
            }
            let parameters = trained(3, settings(strategy, optimizer), 13, 1);
            close(&alone, &parameters, &format!("{strategy}, {optimizer:?}"));
        }
    }
}

#[test]
fn accumulated_and_clipped_gradients_are_those_of_one_rank() {
    for strategy in Strategy::ALL {
        let clipped = Settings { clip_norm: Some(0.05), ..settings(strategy, Optimizer::SGD) };
        let mirrored = Strategy::Mirrored(CrossDeviceOp::AllReduce);
        let alone = trained(1, Settings { strategy: mirrored, ..clipped }, 13, 1);
        close(&alone, &trained(3, clipped, 13, 3), &format!("{strategy}"));
        let free = trained(1, settings(mirrored, Optimizer::SGD), 13, 1);
        assert!(distance(&alone, &free) > 1e-3, "clipping has an effect");
        // A clipped step is as long as the limit says: the loss is no part of the norm.
        let lengths = on_ranks(2, |comm: &mut Communicator| {
            let mut network = Network::new(0.0);
            let comm = comm.duplicate().unwrap();
            let places = 6 * comm.rank()..6 * comm.rank() + 6;
            let mut trainer = Trainer::new(comm, &mut network, clipped).unwrap();
            let before = network.values();
            trainer.step(&mut network, &[part(places, 12)], RATE).unwrap();
            distance(&before, &network.values())
                * before.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt()
        });
        for length in lengths {
            assert!((length / f64::from(RATE * 0.05) - 1.0).abs() < 1e-4, "{length}");
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_names_the_rank_and_the_parameter_and_changes_nothing() {
    for strategy in Strategy::ALL {
        on_ranks(3, |comm: &mut Communicator| {
            let rank = comm.rank();
            let mut network = Network::new(0.0);
            let settings = settings(strategy, Optimizer::SGD);
            let mut trainer =
                Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
            let before = network.values();
            network.is_damaged = rank == 1;
            let places = 4 * rank..4 * rank + 4;
            let parts = [part(places.clone(), 12)];
            let error = trainer.step(&mut network, &parts, RATE).unwrap_err();
            let Error::Diverged { step: 1, loss, cause } = error else { panic!("{error}") };
            assert!(!loss.is_finite());
            assert_eq!(cause.to_string(), "rank 1 has such a gradient of second.weight");
            assert_eq!(network.values(), before);
            // The ranks are still in step.
            network.is_damaged = false;
            let step = trainer.step(&mut network, &parts, RATE).unwrap();
            assert!(step.loss.is_finite());
            assert_ne!(network.values(), before);
        });
    }
}

#[test]
fn an_optimizer_that_needs_whole_parameters_is_not_sharded() {
    let lamb = Optimizer::Lamb { betas: (0.9, 0.999), epsilon: 1e-6, weight_decay: 0.0 };
    let mut comm = Communicator::local(1).unwrap();
    let settings = settings(Strategy::ShardedOptimizer, lamb);
    let error = Trainer::new(comm.remove(0), &mut Network::new(0.0), settings).unwrap_err();
    assert!(error.to_string().contains("a part of a parameter has no norm"), "{error}");
}
