//! Which option belongs to which strategies. Law: an option that a strategy would ignore is
//! refused, with what to do.

use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum};

use super::choices::{OptimizerName, name};
use crate::error::{Error, Result};
use crate::ways::StrategyName;

/// The options that change what a step computes. A comparison has one only if all its strategies
/// do.
const CHANGE_RESULTS: [&str; 3] = ["sync_batch_norm", "clip_norm", "warmup"];

/// Refuses options that `compare` sets itself.
///
/// # Errors
/// [`Error::Unfit`], which says what to do.
pub(super) fn check_compared(given: &ArgMatches) -> Result<()> {
    for (id, problem) in [
        ("strategy", "--strategy is not for compare, which trains by all: --only names some"),
        ("policy", "--policy is not for compare, which has a row for each policy: leave it out"),
    ] {
        if is_given(given, id) {
            return Err(Error::Unfit(problem.into()));
        }
    }
    Ok(())
}

/// Whether an option is on the command line; a default is not.
fn is_given(given: &ArgMatches, id: &str) -> bool {
    let is_known = given.ids().any(|it| it.as_str() == id);
    is_known && given.value_source(id) == Some(ValueSource::CommandLine)
}

/// Refuses an option of the command line that none of these strategies has, or that changes what
/// only some of them compute, or that the optimizer does not have.
///
/// # Errors
/// [`Error::Unfit`], which names the option and a strategy that does not have it.
pub(super) fn check(
    command: &clap::Command,
    given: &ArgMatches,
    strategies: &[StrategyName],
    optimizer: OptimizerName,
) -> Result<()> {
    let is_given = |id: &str| is_given(given, id);
    if is_given("momentum") && matches!(optimizer, OptimizerName::Adam | OptimizerName::Lamb) {
        let optimizer = name(&optimizer);
        return Err(Error::Unfit(format!(
            "--momentum is not for --optimizer {optimizer}, but for sgd, lars: leave it out"
        )));
    }
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let have: Vec<_> = StrategyName::value_variants().iter().filter(|it| it.has(id)).collect();
        if have.is_empty() || !is_given(id) {
            continue;
        }
        let Some(other) = strategies.iter().find(|it| !it.has(id)) else { continue };
        if !CHANGE_RESULTS.contains(&id) && strategies.iter().any(|it| it.has(id)) {
            continue;
        }
        let names: Vec<&str> = have.into_iter().map(|it| it.way().name).collect();
        let (names, flag) = (names.join(", "), argument.get_long().unwrap_or(id));
        let remedy = match strategies {
            [_] => "leave it out, or take such a --strategy",
            _ => "leave it out, or compare --only such strategies",
        };
        let other = other.way().name;
        return Err(Error::Unfit(format!(
            "--{flag} is not for --strategy {other}, but for {names}: {remedy}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use clap::{CommandFactory, ValueEnum};

    use super::check;
    use crate::cli::{Cli, OptimizerName, name};
    use crate::ways::StrategyName;

    /// The options that some ways of training have and others do not.
    fn of_some() -> impl Iterator<Item = &'static str> {
        StrategyName::value_variants().iter().flat_map(|it| it.way().options).copied()
    }

    /// The options of a training that every strategy has.
    const OF_ALL: [&str; 27] = [
        "data",
        "side",
        "limit",
        "strategy",
        "model",
        "freeze",
        "weights",
        "weights_except",
        "epochs",
        "batch",
        "optimizer",
        "lr",
        "decay",
        "momentum",
        "weight_decay",
        "seed",
        "loaders",
        "dir",
        "every",
        "keep",
        "resume",
        "ranks",
        "json",
        "chart",
        "events",
        "help",
        "version",
    ];

    /// The error of a command line with these words for these strategies.
    fn checked(words: &[String], strategies: &[StrategyName]) -> Result<(), String> {
        checked_with(OptimizerName::Sgd, words, strategies)
    }

    fn checked_with(
        optimizer: OptimizerName,
        words: &[String],
        strategies: &[StrategyName],
    ) -> Result<(), String> {
        let command = Cli::command();
        let given = command.clone().try_get_matches_from(words).unwrap();
        check(&command, &given, strategies, optimizer).map_err(|error| error.to_string())
    }

    /// A command line with this option.
    fn with(id: &str) -> (String, Vec<String>) {
        let command = Cli::command();
        let argument = command.get_arguments().find(|it| it.get_id() == id).unwrap();
        let flag = format!("--{}", argument.get_long().unwrap());
        let mut words = vec!["ringtrain".into(), flag.clone()];
        if argument.get_action().takes_values() {
            let choices = argument.get_possible_values();
            words.push(choices.first().map_or("4".into(), |it| it.get_name().to_owned()));
        }
        (flag, words)
    }

    #[test]
    fn each_option_is_refused_by_exactly_the_strategies_that_would_ignore_it() {
        for option in of_some() {
            let (flag, words) = with(option);
            for strategy in StrategyName::value_variants() {
                let said = checked(&words, &[*strategy]);
                if strategy.has(option) {
                    assert_eq!(said, Ok(()), "{words:?}");
                    continue;
                }
                let said = said.unwrap_err();
                let expected = format!("{flag} is not for --strategy {}, but for ", name(strategy));
                assert!(said.starts_with(&expected), "{words:?}: {said}");
                assert!(said.contains("leave it out"), "{said}");
            }
        }
    }

    #[test]
    fn an_optimizer_without_momentum_refuses_it() {
        let words = ["ringtrain", "--momentum", "0.5"].map(String::from);
        for optimizer in OptimizerName::value_variants() {
            let said = checked_with(*optimizer, &words, &[StrategyName::Mirrored]);
            let has_momentum = matches!(optimizer, OptimizerName::Sgd | OptimizerName::Lars);
            assert_eq!(said.is_ok(), has_momentum, "{said:?}");
        }
    }

    /// A default is not a choice of the user.
    #[test]
    fn options_that_are_not_given_are_not_refused() {
        for strategy in StrategyName::value_variants() {
            assert_eq!(checked(&["ringtrain".into()], &[*strategy]), Ok(()));
        }
    }

    #[test]
    fn every_option_of_a_training_is_of_all_strategies_or_in_the_table() {
        let command = Cli::command();
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            let is_in_table = of_some().any(|it| it == id);
            assert!(is_in_table != OF_ALL.contains(&id), "{id} is in one of the two lists");
        }
        let known = |id: &str| command.get_arguments().any(|it| it.get_id() == id);
        of_some().for_each(|it| assert!(known(it), "{it} is no option"));
    }

    #[test]
    fn a_comparison_takes_what_one_strategy_has_unless_it_changes_results() {
        let two = [StrategyName::Mirrored, StrategyName::Pipeline];
        assert_eq!(checked(&with("micro_batches").1, &two), Ok(()));
        let said = checked(&with("servers").1, &two).unwrap_err();
        assert!(said.contains("--only"), "{said}");
        let said = checked(&with("sync_batch_norm").1, &two).unwrap_err();
        assert!(said.contains("not for --strategy pipeline"), "{said}");
    }
}
