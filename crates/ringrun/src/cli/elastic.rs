//! The values of `--elastic` and `--max-restarts`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

const DEFAULT_MAX_RESTARTS: usize = 3;
/// The most ranks of an elastic job. A joiner has the table of all in one value of the store.
const MAX_RANKS: usize = 256;

/// How a job goes on when it loses ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Elastic {
    /// The fewest ranks with which the job goes on.
    pub(crate) min: usize,
    /// The number of ranks at the start.
    pub(crate) max: usize,
    /// The most restarts of each rank.
    pub(crate) max_restarts: usize,
}

/// The value of `--elastic MIN:MAX`.
impl FromStr for Elastic {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let max_restarts = DEFAULT_MAX_RESTARTS;
        let elastic = word.split_once(':').and_then(|(min, max)| {
            Some(Self { min: min.parse().ok()?, max: max.parse().ok()?, max_restarts })
        });
        let is_valid = |it: &Self| 1 <= it.min && it.min <= it.max && it.max <= MAX_RANKS;
        elastic.filter(is_valid).ok_or_else(|| {
            format!(
                "expected MIN:MAX, such as 2:4: numbers of ranks from 1 to {MAX_RANKS}, MIN at \
                 most MAX"
            )
        })
    }
}

impl Elastic {
    /// Refuses values that do not go with each other or with the number of ranks.
    pub(super) fn of(
        elastic: Option<Self>,
        max_restarts: Option<usize>,
        ranks: usize,
    ) -> Result<Option<Self>, Failure> {
        match elastic {
            None if max_restarts.is_some_and(|most| most > 0) => {
                Err(Failure::Usage("--max-restarts is for jobs with --elastic MIN:MAX".into()))
            }
            Some(Self { min, max, .. }) if ranks != max => Err(Failure::Usage(format!(
                "--elastic {min}:{max} with {ranks} ranks: the job begins with MAX of them, and \
                 none are added later"
            ))),
            _ => Ok(elastic.map(|elastic| Self {
                max_restarts: max_restarts.unwrap_or(elastic.max_restarts),
                ..elastic
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Elastic;

    #[test]
    fn bounds_are_checked() {
        let bounds = |word: &str| word.parse().map(|Elastic { min, max, .. }| [min, max]);
        assert_eq!(bounds("2:4"), Ok([2, 4]));
        assert_eq!(bounds("1:1"), Ok([1, 1]));
        assert_eq!(bounds("2:256"), Ok([2, 256]));
        for wrong in ["", "2", "0:4", "5:4", "a:b", "2:", ":2", "-1:2", "1:2:3", "1:257"] {
            assert!(bounds(wrong).is_err(), "{wrong}");
        }
    }
}
