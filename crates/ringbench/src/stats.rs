//! What is said about a row of times. Pure.

/// The value that `share` of the sorted samples do not exceed (nearest rank); 0 of none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The mean; 0 of none.
pub(crate) fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// How many of a call fit into `budget` seconds when one takes `each`: at least 5.
pub(crate) fn iterations(budget: f64, each: f64) -> usize {
    // Float to integer casts saturate, so a time of zero is no harm.
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
    fn iterations_have_bounds() {
        assert_eq!(iterations(0.1, 0.001), 100);
        assert_eq!(iterations(0.1, 10.0), 5);
        assert_eq!(iterations(0.1, 0.0), 1_000_000);
    }
}
