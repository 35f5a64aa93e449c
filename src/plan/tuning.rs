//! Corrections of the closed forms, which do not model ranks that share CPUs, caches and bursts: a
//! few calls of each algorithm are measured, and predicted times are multiplied by measured /
//! predicted.

use crate::schedule::{Algorithm, Collective};

/// The factors measured / predicted, by class of collectives, algorithm and length. All ranks have
/// the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning(pub [Factors; Self::CLASSES.len()]);

/// The factors of one class of collectives, by algorithm and length.
pub type Factors = [[f64; Tuning::POINTS.len()]; Algorithm::ALL.len()];

impl Tuning {
    /// Factors of 1: the closed forms as they are.
    pub const UNMEASURED: Self =
        Self([[[1.0; Self::POINTS.len()]; Algorithm::ALL.len()]; Self::CLASSES.len()]);

    /// The lengths of the measured calls, in bytes; ascending. The longest is beyond most caches.
    pub const POINTS: [usize; 9] =
        [64, 512, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 16 << 20];

    /// The collective that is measured for each class, in the order of their importance.
    pub const CLASSES: [Collective; 7] = [
        Collective::AllReduce,
        Collective::Barrier,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Broadcast { root: 0 },
        Collective::Reduce { root: 0 },
    ];

    /// The index of a collective's class in [`Self::CLASSES`].
    #[must_use]
    pub const fn class(collective: Collective) -> usize {
        match collective {
            Collective::AllReduce => 0,
            Collective::Barrier => 1,
            Collective::AllGather => 2,
            Collective::ReduceScatter => 3,
            Collective::AllToAll => 4,
            Collective::Broadcast { .. } | Collective::Scatter { .. } => 5,
            _ => 6,
        }
    }

    /// The factor for a call of `bytes`: interpolated between the nearest measured lengths, over
    /// the logarithm of the length.
    #[must_use]
    pub fn factor(&self, algorithm: Algorithm, collective: Collective, bytes: usize) -> f64 {
        let factors = &self.0[Self::class(collective)][algorithm as usize];
        let points = Self::POINTS;
        let after = points.partition_point(|&point| point < bytes);
        if after == 0 {
            return factors[0];
        }
        if after == points.len() {
            return factors[after - 1];
        }
        let log = |bytes: usize| (bytes as f64).log2();
        let [low, high] = [points[after - 1], points[after]].map(log);
        let part = (log(bytes) - low) / (high - low);
        factors[after - 1] * (1.0 - part) + factors[after] * part
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::UNMEASURED
    }
}

#[cfg(test)]
mod tests {
    use super::Tuning;
    use crate::schedule::{Algorithm, Collective};

    #[test]
    fn each_class_has_the_collective_that_is_measured_for_it() {
        for (class, collective) in Tuning::CLASSES.into_iter().enumerate() {
            assert_eq!(Tuning::class(collective), class);
        }
    }

    #[test]
    fn factors_are_interpolated_between_measured_lengths() {
        let mut tuning = Tuning::default();
        let algorithm = Algorithm::TwoShot;
        let collective = Collective::Broadcast { root: 3 };
        let factors = &mut tuning.0[Tuning::class(collective)];
        factors[algorithm as usize] = [2.0, 3.0, 3.0, 3.0, 5.0, 1.0, 1.0, 1.5, 2.5];
        let factor = |tuning: &Tuning, bytes| tuning.factor(algorithm, collective, bytes);
        for (bytes, want) in
            [(0, 2.0), (8, 2.0), (64, 2.0), (512, 3.0), (1 << 10, 3.0), (16 << 10, 4.0)]
        {
            assert!((factor(&tuning, bytes) - want).abs() < 1e-9, "{bytes}");
        }
        assert_eq!(factor(&tuning, 2 << 20), 1.5);
        assert_eq!(factor(&tuning, 1 << 30), 2.5);
        assert_eq!(tuning.factor(algorithm, Collective::AllReduce, 16 << 10), 1.0);
    }
}
