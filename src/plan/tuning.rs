//! Corrections of the closed forms, which do not model ranks that share CPUs, caches and bursts: a
//! few calls of each algorithm are measured, and predicted times are multiplied by measured /
//! predicted.

use crate::schedule::Algorithm;

/// The factors measured / predicted, by algorithm and length. All ranks have the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning(pub [[f64; Self::POINTS.len()]; Algorithm::ALL.len()]);

impl Tuning {
    /// The lengths of the measured calls, in bytes; ascending.
    pub const POINTS: [usize; 8] =
        [64, 512, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20];

    /// The factor for a call of `bytes`: interpolated between the nearest measured lengths, over
    /// the logarithm of the length.
    #[must_use]
    pub fn factor(&self, algorithm: Algorithm, bytes: usize) -> f64 {
        let (points, factors) = (Self::POINTS, &self.0[algorithm as usize]);
        let after = points.partition_point(|&point| point < bytes);
        if after == 0 {
            return factors[0];
        }
        if after == points.len() {
            // Beyond the longest measured call, a factor never favours an algorithm over the ring.
            let ring = self.0[Algorithm::Ring as usize][after - 1];
            return factors[after - 1].max(ring);
        }
        let log = |bytes: usize| (bytes as f64).log2();
        let [low, high] = [points[after - 1], points[after]].map(log);
        let part = (log(bytes) - low) / (high - low);
        factors[after - 1] * (1.0 - part) + factors[after] * part
    }
}

impl Default for Tuning {
    /// Factors of 1: the closed forms as they are.
    fn default() -> Self {
        Self([[1.0; Self::POINTS.len()]; Algorithm::ALL.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::Tuning;
    use crate::schedule::Algorithm;

    #[test]
    fn factors_are_interpolated_between_measured_lengths() {
        let mut tuning = Tuning::default();
        let algorithm = Algorithm::TwoShot;
        tuning.0[algorithm as usize] = [2.0, 3.0, 3.0, 3.0, 5.0, 1.0, 1.0, 1.5];
        for (bytes, want) in
            [(0, 2.0), (8, 2.0), (64, 2.0), (512, 3.0), (1 << 10, 3.0), (16 << 10, 4.0)]
        {
            assert!((tuning.factor(algorithm, bytes) - want).abs() < 1e-9, "{bytes}");
        }
        assert_eq!(tuning.factor(algorithm, 2 << 20), 1.5);
        assert_eq!(tuning.factor(algorithm, 1 << 30), 1.5);
        tuning.0[Algorithm::Ring as usize].fill(2.0);
        assert_eq!(tuning.factor(algorithm, 2 << 20), 1.5);
        assert_eq!(tuning.factor(algorithm, 1 << 30), 2.0);
        tuning.0[Algorithm::Ring as usize].fill(1.0);
        assert_eq!(tuning.factor(Algorithm::Ring, 16 << 10), 1.0);
    }
}
