//! The values of `--elastic` and `--max-restarts`.

use std::str::FromStr;

use crate::failure::Failure;

const DEFAULT_MAX_RESTARTS: usize = 3;

/// The value of `--elastic MIN:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    min: usize,
    pub(super) max: usize,
}

/// How a job goes on when it loses ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elastic {
    /// The fewest ranks with which the job goes on.
    pub(crate) min: usize,
    /// The number of ranks at the start.
    pub(crate) max: usize,
    /// The most restarts of each rank.
    pub(crate) max_restarts: usize,
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let bounds = word
            .split_once(':')
            .and_then(|(min, max)| Some(Self { min: min.parse().ok()?, max: max.parse().ok()? }));
        bounds.filter(|it| 1 <= it.min && it.min <= it.max).ok_or_else(|| {
            "expected MIN:MAX, such as 2:4: numbers of ranks, at least 1, MIN at most MAX".into()
        })
    }
}

impl Elastic {
    /// Refuses values that do not go with each other or with the number of ranks.
    pub(super) fn of(
        bounds: Option<Bounds>,
        max_restarts: Option<usize>,
        ranks: usize,
    ) -> Result<Option<Self>, Failure> {
        match bounds {
            None if max_restarts.is_some_and(|most| most > 0) => {
                Err(Failure::Usage("--max-restarts is for jobs with --elastic MIN:MAX".into()))
            }
            None => Ok(None),
            Some(Bounds { min, max }) if ranks != max => Err(Failure::Usage(format!(
                "--elastic {min}:{max} with {ranks} ranks: the job begins with MAX of them, and \
                 none are added later"
            ))),
            Some(Bounds { min, max }) => {
                let max_restarts = max_restarts.unwrap_or(DEFAULT_MAX_RESTARTS);
                Ok(Some(Self { min, max, max_restarts }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bounds;

    #[test]
    fn bounds_are_checked() {
        assert_eq!("2:4".parse(), Ok(Bounds { min: 2, max: 4 }));
        assert_eq!("1:1".parse(), Ok(Bounds { min: 1, max: 1 }));
        for wrong in ["", "2", "0:4", "5:4", "a:b", "2:", ":2", "-1:2", "1:2:3"] {
            assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
        }
    }
}
