//! Pseudo-random numbers, for simulations in any order.

/// A generator of pseudo-random numbers (xorshift64); a seed repeats its sequence.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`; every seed has its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // An odd multiplier makes different seeds different; xorshift must not start at zero.
        let state = (seed ^ 0x5DEE_CE66_D1CE_4E5B).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self(if state == 0 { 1 } else { state })
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The high half times the limit: cheaper than a remainder.
        (((self.0 >> 32) * limit as u64) >> 32) as usize
    }

    /// Shuffles `items` (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
