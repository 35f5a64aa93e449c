//! Numbers that are not finite: how they are found, and the error of a step that has one.

use std::fmt;

use pulp::Arch;
use ringreduce::{Communicator, Result};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::sums::LOSS;

/// Where the first number of a step that is not finite came up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Divergence {
    /// At a rank.
    AtRank {
        /// The rank.
        rank: usize,
        /// Its stage, if it is a stage of a pipeline.
        stage: Option<usize>,
        /// The tensor or the loss that the number was found in.
        number: NotFinite,
    },
    /// In the sum over all ranks, whose own numbers are finite.
    InSum,
}

/// The tensor or the loss that a non-finite number was found in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotFinite {
    /// The loss of the rank's samples.
    Loss,
    /// The gradient of the parameter of this name.
    Gradient(String),
    /// The output of a stage whose last parameter has this name.
    Output(String),
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::AtRank { rank, stage, number } = self else {
            return f.write_str("the sum over all ranks overflows");
        };
        write!(f, "rank {rank} ")?;
        if let Some(stage) = stage {
            write!(f, "(stage {stage}) ")?;
        }
        match number {
            NotFinite::Loss => write!(f, "has such a loss"),
            NotFinite::Gradient(parameter) => write!(f, "has such a gradient of {parameter}"),
            NotFinite::Output(parameter) => write!(f, "has such an output, behind {parameter}"),
        }
    }
}

impl<M> Error<M> {
    /// The error of a step. Its loss counts as not a number where another number is not finite.
    pub(crate) fn diverged(step: u64, loss: f32, cause: Divergence) -> Self {
        let loss = if loss.is_finite() { f32::NAN } else { loss };
        Self::Diverged { step, loss, cause }
    }
}

/// Whether all values are finite, by the exponents alone: this loop has no branch, and so is
/// vectorized.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    let exponent = f32::INFINITY.to_bits();
    let is_infinite = |value: &f32| u32::from(value.to_bits() & exponent == exponent);
    let found = || values.iter().fold(0, |found, value| found | is_infinite(value));
    Arch::new().dispatch(found) == 0
}

/// The error of a step with such a loss, which names the first rank that has caused it. `first` is
/// the first of this rank's gradients that is not finite, counted as in [`crate::sums`]. All ranks
/// call this.
pub(crate) fn divergence<M>(
    comm: &mut Communicator,
    shapes: &[(String, usize)],
    (step, loss): (u64, f32),
    first: Option<usize>,
) -> Result<Error<M>> {
    let mine = first.map_or(u64::MAX, |parameter| parameter as u64);
    let mut all = vec![0; comm.size()];
    comm.all_gather(&[mine], &mut all)?;
    let first = all.iter().enumerate().find(|(_, parameter)| **parameter != u64::MAX);
    let cause = first.map_or(Divergence::InSum, |(rank, parameter)| {
        let number = match (*parameter as usize).checked_sub(LOSS + 1) {
            None => NotFinite::Loss,
            Some(at) => {
                NotFinite::Gradient(shapes.get(at).map_or_else(String::new, |it| it.0.clone()))
            }
        };
        Divergence::AtRank { rank, stage: None, number }
    });
    Ok(Error::diverged(step, loss, cause))
}

#[cfg(test)]
mod tests {
    use super::{Divergence, NotFinite, are_finite};

    #[test]
    fn a_number_that_is_not_finite_is_found_at_each_place() {
        let mut values = vec![f32::MAX; 67];
        values[3] = f32::MIN_POSITIVE / 2.0;
        assert!(are_finite(&values) && are_finite(&[]));
        for place in 0..values.len() {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = values.clone();
                values[place] = bad;
                assert!(!are_finite(&values), "{bad} at {place}");
            }
        }
    }

    #[test]
    fn a_cause_names_the_rank_its_stage_and_the_number() {
        let says = |stage, number, expected: &str| {
            let cause = Divergence::AtRank { rank: 4, stage, number };
            assert_eq!(cause.to_string(), expected);
        };
        says(None, NotFinite::Loss, "rank 4 has such a loss");
        says(None, NotFinite::Gradient("a".into()), "rank 4 has such a gradient of a");
        let output = NotFinite::Output("b".into());
        says(Some(1), output, "rank 4 (stage 1) has such an output, behind b");
        assert_eq!(Divergence::InSum.to_string(), "the sum over all ranks overflows");
    }
}
