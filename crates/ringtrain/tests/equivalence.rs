//! n ranks with a batch have the losses of one rank with that batch, except for rounding, and equal
//! parameters to the bit, by every strategy that splits batches or layers over ranks; uneven
//! batches too. The tests make dozens of steps at a small rate: after more steps some rectifier is
//! so near its kink that rounding decides, and the curves slowly diverge for any n.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use ringtrain::models::ModelKind;
use ringtrain::{
    DataArgs, Generated, Job, OptimizerName, Outcome, Settings, StrategyName, WorkerGroups,
    train_local,
};

fn job(settings: Settings) -> Job {
    // The last batch has 11 images, which no number of ranks below divides.
    let data = DataArgs { limit: Some(24 * 12 + 11), ..DataArgs::default() };
    let settings =
        Settings { epochs: 2, batch: 24, lr: settings.lr.or(Some(0.01)), seed: 7, ..settings };
    Job::load(&data, Generated::default(), settings).unwrap()
}

fn losses(outcome: &Outcome) -> Vec<f32> {
    outcome.epochs.iter().flat_map(|epoch| epoch.losses.iter().copied()).collect()
}

#[track_caller]
fn assert_near(one: &Outcome, many: &Outcome, what: &str) {
    let (one_losses, many_losses) = (losses(one), losses(many));
    assert_eq!((one_losses.len(), many_losses.len()), (26, 26), "{what}");
    for (step, (one, many)) in one_losses.iter().zip(&many_losses).enumerate() {
        let error = (one - many).abs() / one.abs().max(1e-2);
        assert!(error < 1e-4, "{what}, step {step}: {many} instead of {one}");
    }
    for (one, many) in one.epochs.iter().zip(&many.epochs) {
        let difference = (one.accuracy - many.accuracy).abs();
        assert!(difference <= 2.0 / 500.0, "{what}: {} not {}", many.accuracy, one.accuracy);
    }
}

/// Trains, and checks that all ranks have the same weights in the end, if each has all of them.
fn trained(settings: Settings, ranks: usize) -> Outcome {
    let has_parts = settings.strategy == StrategyName::TensorParallel;
    let mut outcomes = train_local(&job(settings), ranks).unwrap();
    assert_eq!(outcomes.len(), ranks);
    let trained: Vec<_> = outcomes.iter().filter(|outcome| !outcome.epochs.is_empty()).collect();
    let is_same = |outcome: &&Outcome| outcome.weights == trained[0].weights;
    assert!(has_parts || trained.iter().all(is_same));
    let first = outcomes.iter().position(|outcome| !outcome.epochs.is_empty()).unwrap();
    outcomes.swap_remove(first)
}

#[test]
fn n_ranks_have_the_losses_of_one_by_each_strategy() {
    use StrategyName::{
        CentralStorage, Mirrored, MirroredHierarchicalCopy, MirroredOneDevice, ModelParallel,
        Naive, Pipeline, ShardedGradients, ShardedOptimizer, TensorParallel,
    };
    let one = trained(Settings::default(), 1);
    let losses = losses(&one);
    assert!(losses[25] < losses[0] * 0.9, "it learns: {losses:?}");
    for strategy in [
        Mirrored,
        MirroredHierarchicalCopy,
        MirroredOneDevice,
        CentralStorage,
        Naive,
        ShardedOptimizer,
        ShardedGradients,
        Pipeline,
        ModelParallel,
        TensorParallel,
    ] {
        for ranks in if strategy == Mirrored { &[2, 3, 4][..] } else { &[3] } {
            let many = trained(Settings { strategy, ..Settings::default() }, *ranks);
            assert_near(&one, &many, &format!("{strategy:?} on {ranks}"));
        }
    }
}

#[test]
fn synchronous_servers_make_the_steps_of_one_rank() {
    let constant = Settings { decay: Some(ringtrain::Decay::Constant), ..Settings::default() };
    let one = trained(constant.clone(), 1);
    let groups = [WorkerGroups::Each, WorkerGroups::Number(2), WorkerGroups::Host];
    let worlds = [(3, 1, groups[0]), (4, 2, groups[0]), (4, 1, groups[1]), (4, 2, groups[2])];
    for (ranks, servers, groups) in worlds {
        let strategy = StrategyName::ParameterServer;
        let settings = Settings { strategy, servers, groups, ..constant.clone() };
        let outcomes = train_local(&job(settings), ranks).unwrap();
        let workers: Vec<_> = outcomes.iter().filter(|it| !it.epochs.is_empty()).collect();
        assert_eq!(workers.len(), ranks - servers);
        // A worker knows the loss of its own part alone, so accuracies are compared.
        for (one, many) in one.epochs.iter().zip(&workers[0].epochs) {
            assert!((one.accuracy - many.accuracy).abs() <= 2.0 / 500.0);
        }
        assert!(workers.iter().all(|worker| worker.weights == workers[0].weights));
    }
}

#[test]
fn accumulation_clipping_and_buckets_change_rounding_at_most() {
    for (optimizer, lr) in [(OptimizerName::Sgd, 0.01), (OptimizerName::Adam, 0.0005)] {
        let (lr, clip_norm) = (Some(lr), Some(1.0));
        let plain = Settings { optimizer, lr, clip_norm, ..Settings::default() };
        let one = trained(plain.clone(), 1);
        let split =
            Settings { accumulate: 3, bucket_bytes: Some(4_004), loaders: 3, ..plain.clone() };
        let many = trained(split, 2);
        assert_near(&one, &many, &format!("{optimizer:?}"));
        // The norm is that of the parts of all ranks.
        for strategy in [StrategyName::Pipeline, StrategyName::TensorParallel] {
            let many = trained(Settings { strategy, ..plain.clone() }, 3);
            assert_near(&one, &many, &format!("{optimizer:?}, {strategy:?}"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_does_not() {
    let first = trained(Settings::default(), 2);
    assert_eq!(first.weights, trained(Settings::default(), 2).weights);
    let mut other = job(Settings::default());
    other.settings.seed = 8;
    let other = train_local(&other, 2).unwrap();
    assert_ne!(losses(&first), losses(&other[0]));
}

#[test]
fn ranks_without_images_take_part_in_synchronised_batch_norm() {
    // The last batch has one image.
    let data = DataArgs { limit: Some(9), ..DataArgs::default() };
    let settings = Settings {
        model: ModelKind::MobileNet,
        sync_batch_norm: true,
        epochs: 1,
        batch: 8,
        ..Settings::default()
    };
    let mut job = Job::load(&data, Generated::default(), settings).unwrap();
    job.limit_tests(4);
    let outcomes = train_local(&job, 3).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.weights == outcomes[0].weights));
    assert!(losses(&outcomes[0]).iter().all(|loss| loss.is_finite()));
}
