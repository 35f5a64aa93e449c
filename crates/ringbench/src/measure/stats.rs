//! Statistics of call times.

use serde::{Deserialize, Serialize};

/// The percentile of sorted samples by nearest rank, with `share` from 0 to 1; 0 of no samples.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Times of calls. All figures are of the same calls, so that `min_us <= mean_us`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
}

impl Spread {
    /// The spread of samples, each of one call or the mean of a few that were timed at once.
    pub(crate) fn of(mut samples: Vec<f64>, mean_us: f64) -> Self {
        samples.sort_by(f64::total_cmp);
        let [min_us, p50_us, p99_us] = [0.0, 0.5, 0.99].map(|share| percentile(&samples, share));
        // Rounding can put the mean of equal samples below the least.
        Self { min_us, p50_us, mean_us: mean_us.max(min_us), p99_us }
    }

    /// The figures for an `all_gather`.
    pub(crate) const fn to_array(self) -> [f64; 4] {
        [self.mean_us, self.min_us, self.p50_us, self.p99_us]
    }

    /// The spread of the rank with the longest mean, from the arrays of all ranks.
    pub(crate) fn slowest(all: &[f64]) -> Self {
        let ranks = all.chunks_exact(4).max_by(|a, b| a[0].total_cmp(&b[0]));
        let &[mean_us, min_us, p50_us, p99_us] = ranks.unwrap_or(&[0.0; 4]) else {
            return Self { min_us: 0.0, p50_us: 0.0, mean_us: 0.0, p99_us: 0.0 };
        };
        Self { min_us, p50_us, mean_us, p99_us }
    }
}

pub(crate) fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// The number of calls of `each` seconds that fit into `budget` seconds, at least 5.
pub(crate) fn iterations(budget: f64, each: f64) -> usize {
    // A time of zero gives infinity, which the cast saturates.
    ((budget / each) as usize).clamp(5, 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|p| percentile(&sorted, p)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn figures_are_those_of_the_slowest_rank() {
        let fast = Spread::of(vec![1.0, 2.0, 3.0], 2.0);
        let slow = Spread::of(vec![9.0, 1.0, 5.0], 5.0);
        assert_eq!(slow, Spread { min_us: 1.0, p50_us: 5.0, mean_us: 5.0, p99_us: 9.0 });
        let all = [fast.to_array(), slow.to_array(), fast.to_array()].concat();
        assert_eq!(Spread::slowest(&all), slow);
        assert_eq!(Spread::slowest(&[]).mean_us, 0.0);
    }

    #[test]
    fn iterations_have_bounds() {
        assert_eq!(iterations(0.1, 0.001), 100);
        assert_eq!(iterations(0.1, 10.0), 5);
        assert_eq!(iterations(0.1, 0.0), 1_000_000);
    }
}
