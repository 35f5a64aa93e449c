//! Which samples a rank takes in a step: a pure function, the same at all ranks.
//! Law: each sample of an epoch is in one part of one batch.

use std::ops::Range;

/// The places of a rank's samples in the order of an epoch, in step `step` (from 0) with batches of
/// `batch` samples over all ranks; and how many samples the whole batch has, fewer in the last
/// step. The parts of a batch differ by one sample at most.
#[must_use]
pub fn share(
    samples: usize,
    batch: usize,
    step: usize,
    rank: usize,
    size: usize,
) -> (Range<usize>, usize) {
    let start = batch.saturating_mul(step).min(samples);
    let total = batch.min(samples - start);
    let place = |rank: usize| start + total * rank / size.max(1);
    (place(rank)..place(rank + 1), total)
}

/// The order of an epoch's samples: a shuffle (Fisher and Yates) by the numbers of SplitMix64
/// (Steele et al., 2014), so that a rank that joins can compute it too.
#[must_use]
pub fn epoch_order(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = mix(mix(seed.wrapping_add(STEP)) ^ epoch.wrapping_mul(STEP));
    let mut order: Vec<usize> = (0..samples).collect();
    for last in (1..samples).rev() {
        state = state.wrapping_add(STEP);
        let other = (u128::from(mix(state)) * (last as u128 + 1)) >> 64;
        order.swap(last, other as usize);
    }
    order
}

/// The finalizer of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
