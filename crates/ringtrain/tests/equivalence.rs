//! n ranks with batch B/n have the loss curve of one rank with batch B, except for rounding, and
//! bitwise equal parameters. The tests make dozens of steps at a small rate: after more steps some
//! rectifier is so near its kink that rounding decides, and the curves slowly diverge for any n.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::thread;

use ringreduce::Communicator;
use ringtrain::{Dataset, Error, Generated, Settings, Source, Trainer};

/// The record of one rank: the global loss of each step, the accuracies, the last parameters.
#[derive(Debug, PartialEq)]
struct Curve {
    losses: Vec<f32>,
    accuracy: Vec<f64>,
    parameters: Vec<u32>,
}

fn settings() -> Settings {
    // Neither layers nor ranks divide the bucket size; there are about 45 buckets.
    Settings { epochs: 2, batch: 24, lr: 0.01, momentum: 0.9, seed: 7, bucket_bytes: 4_004 }
}

fn data() -> Dataset {
    let mut data = Dataset::load(&Source::Generated(Generated::default()), None).unwrap();
    data.limit(24 * 18 + 11); // with images left over
    data
}

fn train(comm: Communicator, data: &Dataset, settings: Settings) -> Result<Curve, Error> {
    let epochs = settings.epochs;
    let mut trainer = Trainer::new(comm, data, settings)?;
    let (mut losses, mut accuracy) = (Vec::new(), Vec::new());
    for _ in 0..epochs {
        let mut steps = 0;
        let epoch = trainer.epoch(data, || steps += 1)?;
        assert_eq!((steps, epoch.images), (18, 432));
        losses.extend(epoch.losses);
        accuracy.push(epoch.accuracy);
    }
    let parameters = trainer.parameters().iter().map(|p| p.to_bits()).collect();
    Ok(Curve { losses, accuracy, parameters })
}

/// The records of all ranks of a world of `n`.
fn world(n: usize, data: &Dataset, settings: &Settings) -> Vec<Result<Curve, Error>> {
    let comms = Communicator::local(n).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .into_iter()
            .map(|comm| scope.spawn(|| train(comm, data, settings.clone())))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn n_ranks_have_the_loss_curve_of_one() {
    let data = data();
    let alone = world(1, &data, &settings()).remove(0).unwrap();
    assert_eq!(alone.losses.len(), 36);
    assert!(alone.losses[35] < alone.losses[0] * 0.9, "it learns: {:?}", alone.losses);
    for n in [2, 4] {
        let curves: Vec<Curve> =
            world(n, &data, &settings()).into_iter().map(Result::unwrap).collect();
        for (rank, curve) in curves.iter().enumerate() {
            assert!(curve == &curves[0], "rank {rank} of {n} differs from rank 0");
        }
        for (step, (one, many)) in alone.losses.iter().zip(&curves[0].losses).enumerate() {
            let error = (one - many).abs() / one.abs().max(1e-2);
            assert!(error < 1e-4, "n = {n}, step {step}: {many} instead of {one}");
        }
        for (one, many) in alone.accuracy.iter().zip(&curves[0].accuracy) {
            assert!((one - many).abs() <= 2.0 / 500.0, "n = {n}: accuracy {many}, not {one}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_does_not() {
    let data = data();
    let short = Settings { epochs: 1, ..settings() };
    let first = world(2, &data, &short).remove(0).unwrap();
    assert_eq!(first, world(2, &data, &short).remove(0).unwrap());
    let other = world(2, &data, &Settings { seed: 8, ..short }).remove(0).unwrap();
    assert_ne!(first.losses, other.losses);
}

#[test]
fn bucket_size_changes_rounding_at_most() {
    let data = data();
    let short = Settings { epochs: 1, ..settings() };
    let small = world(3, &data, &short).remove(0).unwrap();
    let large = Settings { bucket_bytes: 1 << 20, ..short };
    let large = world(3, &data, &large).remove(0).unwrap();
    for (a, b) in small.losses.iter().zip(&large.losses) {
        assert!((a - b).abs() / a.abs().max(1e-2) < 1e-4, "{a} and {b}");
    }
}

#[test]
fn settings_that_do_not_fit_are_refused_on_every_rank() {
    let data = data();
    for (batch, n, expected) in
        [(25, 2, "--batch 25 does not divide among 2 ranks"), (444, 4, "444 is more than the 443")]
    {
        for rank in world(n, &data, &Settings { batch, ..settings() }) {
            let error = rank.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_on_every_rank() {
    let data = data();
    for rank in world(2, &data, &Settings { lr: 1e30, ..settings() }) {
        let error = rank.unwrap_err().to_string();
        assert!(error.contains("try a smaller --lr"), "{error}");
    }
}
