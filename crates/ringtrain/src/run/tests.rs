//! Options of the command line reach what they are for, by each kind of strategy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use clap::Parser;

use super::{Job, Outcome, train_local};
use crate::cli::Cli;
use crate::data::Generated;

/// The outcomes of two ranks that train a small network with these options.
fn trained(strategy: &str, options: &str) -> Vec<Outcome> {
    let words = "ringtrain --model dense --limit 24 --batch 8 --epochs 1 --strategy";
    let words = format!("{words} {strategy} {options}");
    let args = Cli::try_parse_from(words.split_whitespace()).unwrap().train;
    let form = Generated { train: 24, test: 1, is_colour: false };
    train_local(&Job::load(&args.data, form, args.settings).unwrap(), 2).unwrap()
}

/// The digest of a rank that has trained the last layers; the first rank may be a server.
fn weights(strategy: &str, options: &str) -> String {
    trained(strategy, options).pop().unwrap().weights
}

#[test]
fn weight_decay_and_momentum_reach_the_optimizer() {
    for (strategy, optimizer) in [
        ("mirrored", "sgd"),
        ("mirrored", "adam"),
        ("mirrored", "lars"),
        ("mirrored", "lamb"),
        ("parameter-server", "sgd"),
        ("pipeline", "sgd"),
        ("tensor-parallel", "sgd"),
    ] {
        let with = |options: &str| weights(strategy, &format!("--optimizer {optimizer} {options}"));
        let usual = with("");
        assert_eq!(with(""), usual, "{strategy}, {optimizer}: two trainings are the same");
        assert_ne!(with("--weight-decay 0.3"), usual, "{strategy}, {optimizer}");
        if matches!(optimizer, "sgd" | "lars") {
            assert_ne!(with("--momentum 0.3"), usual, "{strategy}, {optimizer}");
        }
    }
}

#[test]
fn the_order_and_the_micro_batches_reach_the_pipeline() {
    for (options, held) in [
        ("--order gpipe", [4, 4]),
        ("--order 1f1b", [2, 1]),
        ("--order gpipe --micro-batches 3", [3, 3]),
        ("", [2, 1]),
    ] {
        let outcomes = trained("pipeline", options);
        let found: Vec<_> = outcomes.iter().map(|it| it.pipeline.as_ref().unwrap()).collect();
        assert_eq!([found[0].most_held, found[1].most_held], held, "{options}");
        assert_eq!(found[0].layers.iter().sum::<usize>(), 3, "{options}");
    }
}
