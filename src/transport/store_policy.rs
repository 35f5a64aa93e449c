//! How to fill a slot: through the cache, or past it with streaming stores. May touch: nothing.
//!
//! Through the cache the receiver finds the bytes close by, but the sender has to take each line
//! back from the receiver's cache first. Between CPUs that are near that costs next to nothing;
//! where they are far it was ten times slower than a detour through memory (38 against 4.9 ms for
//! 64 MiB between two ranks), while near the detour takes twice the time. On a virtual machine the
//! hypervisor moves CPUs from one state to the other while a job runs. So the sender times a slot
//! now and then, and tries the other way more rarely still.

use std::time::Instant;

/// Shorter payloads go through the cache: they cost flags, not lines.
const LEAST: usize = 2048;
/// One slot in so many is timed,
const SAMPLE: u32 = 16;
/// and one timed slot in so many goes the other way.
const TRY: u32 = 32;
/// The detour must save that much: the receiver pays for it too, unseen from here. Measured for 4
/// to 16 KiB: near 85-115 ns per kilobyte cached and 30 past, where cached is better by a fifth on
/// the whole; far 290-450 and 30-50, where past is better four times.
const WORTH: f32 = 4.0;

/// The way of one link's slots.
#[derive(Debug, Default)]
pub(super) struct Way {
    streaming: bool,
    /// Nanoseconds per kilobyte through the cache, and past it; 0 is unknown.
    cost: [f32; 2],
    /// Slots since the last timed one, and timed ones since the last trial.
    slots: u32,
    samples: u32,
    /// The slot being filled is timed: since when, and whether it streams.
    timed: Option<(Instant, bool)>,
}

impl Way {
    /// Shall the next slot, of `len` bytes, be filled past the cache?
    #[inline]
    pub(super) fn choose(&mut self, len: usize) -> bool {
        if len < LEAST {
            return false;
        }
        self.slots += 1;
        if self.slots < SAMPLE {
            return self.streaming;
        }
        self.slots = 0;
        self.samples += 1;
        // The second sample of all is a trial as well, so that both costs are known soon.
        let other = self.samples == TRY || self.cost.contains(&0.0);
        if self.samples == TRY {
            self.samples = 0;
        }
        let known = self.cost[usize::from(self.streaming)] > 0.0;
        let streaming = self.streaming ^ (other && known);
        self.timed = Some((Instant::now(), streaming));
        streaming
    }

    /// The slot chosen for last is filled.
    #[inline]
    pub(super) fn filled(&mut self, len: usize) {
        if let Some((since, streaming)) = self.timed.take() {
            self.learn(streaming, since.elapsed().as_nanos() as f32 * 1024.0 / len as f32);
        }
    }

    /// A lower cost is believed at once, a higher one by and by: who was interrupted seems slow.
    fn learn(&mut self, streaming: bool, sample: f32) {
        let sample = sample.max(1.0);
        let cost = &mut self.cost[usize::from(streaming)];
        *cost = if *cost == 0.0 { sample } else { sample.min(*cost * 1.25) };
        let [cached, past] = self.cost;
        if past > 0.0 && cached > 0.0 {
            self.streaming = cached > past * WORTH;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST, SAMPLE, TRY, Way};

    /// Fills slots that cost so much per kilobyte, cached and past; how many went past the cache.
    fn fill(way: &mut Way, slots: u32, cost: [f32; 2]) -> u32 {
        let mut past = 0;
        for _ in 0..slots {
            let streaming = way.choose(LEAST);
            past += u32::from(streaming);
            if way.timed.take().is_some() {
                way.learn(streaming, cost[usize::from(streaming)]);
            }
        }
        past
    }

    #[test]
    fn goes_the_cheaper_way_and_follows_when_it_changes() {
        let (near, far) = ([30.0, 30.0], [500.0, 40.0]);
        let mut way = Way::default();
        let round = SAMPLE * TRY;
        assert!(fill(&mut way, 20 * round, near) <= 21, "near: past the cache for trials only");
        fill(&mut way, round, far);
        assert!(fill(&mut way, 20 * round, far) >= 20 * (round - 1), "far: but for trials");
        fill(&mut way, 2 * round, near);
        assert!(fill(&mut way, 20 * round, near) <= 20, "near again");
    }

    #[test]
    fn an_interruption_changes_nothing_and_small_payloads_stay_cached() {
        let mut way = Way::default();
        fill(&mut way, 10 * SAMPLE, [30.0, 30.0]);
        way.learn(false, 1e9);
        assert!(!way.streaming);
        assert!((0..1000).all(|_| !way.choose(LEAST - 1)));
    }
}
