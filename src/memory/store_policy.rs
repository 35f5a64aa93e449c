//! Store policy: whether a sender fills a slot through the cache, or past it with streaming stores.
//!
//! Through the cache the receiver finds the bytes nearby, but the sender first takes each line back
//! from the receiver's cache. Between near CPUs that costs next to nothing, and streaming takes
//! twice the time. Between far CPUs it is several times slower than streaming. On a virtual machine
//! the hypervisor moves CPUs from one state to the other while a job runs. So the sender times a
//! slot now and then, and tries the other policy more rarely. ARCHITECTURE.md has the measurement.

use std::time::Instant;

/// Shorter payloads go through the cache: their cost is the flag, not the lines.
const MIN_STREAMED_BYTES: usize = 2048;
/// One slot in so many is timed.
const SLOTS_PER_SAMPLE: u32 = 16;
/// One timed slot in so many uses the other policy.
const SAMPLES_PER_TRIAL: u32 = 32;
/// Streaming must be so many times as fast for the sender, because the receiver pays for it too,
/// which the sender cannot measure. Measured for 4 KiB to 1 MiB, in ns per kilobyte: near CPUs
/// 30-90 cached and 30-90 streamed, where cached takes half the time for both ends together; far
/// CPUs 80-300 and 27-85, where streaming takes half the time.
const MIN_SPEEDUP: f32 = 2.0;

/// The most bytes of a last-level cache for each CPU that shares it. A guest with few of a socket's
/// CPUs is told the whole cache, which other guests use too: of 260 MiB two CPUs of a Xeon found
/// about 32 MiB, and 16 MiB among eight ranks took 5 ms past the cache and 13 ms through it.
const MOST_PER_CPU: usize = 16 << 20;

/// Bytes of the last-level cache (L3); larger results are written with streaming stores. 32 MiB if
/// the system does not say.
pub(crate) fn last_level_cache() -> usize {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index3/{name}")).ok()
    };
    let kilobytes = read("size").and_then(|text| text.trim().strip_suffix('K')?.parse().ok());
    let bytes: usize = kilobytes.unwrap_or(32 << 10) << 10;
    // A mask in hexadecimal, with commas.
    let bits = |mask: String| {
        mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>()
    };
    let cpus = read("shared_cpu_map").map(bits).filter(|&cpus| cpus > 0);
    cpus.map_or(bytes, |cpus| bytes.min(MOST_PER_CPU * cpus as usize))
}

/// The policy of the slots of one link or stage, with its measurements.
#[derive(Debug, Default)]
pub(crate) struct StorePolicy {
    is_streaming: bool,
    /// Nanoseconds per kilobyte, cached and streamed; 0 is unknown.
    cost: [f32; 2],
    /// Slots since the last timed one.
    slots: u32,
    /// Timed slots since the last trial of the other policy.
    samples: u32,
    /// Since when the current slot is timed, and whether it is streamed then.
    timed: Option<Instant>,
    is_timed_streamed: bool,
}

impl StorePolicy {
    /// True if the next slot, of `len` bytes, shall be streamed past the cache.
    #[inline]
    pub(crate) fn should_stream(&mut self, len: usize) -> bool {
        if len < MIN_STREAMED_BYTES {
            return false;
        }
        self.slots += 1;
        if self.slots < SLOTS_PER_SAMPLE {
            return self.is_streaming;
        }
        self.slots = 0;
        self.samples += 1;
        // The second sample of all is a trial as well, so that both costs are known soon.
        let is_trial = self.samples == SAMPLES_PER_TRIAL || self.cost.contains(&0.0);
        if self.samples == SAMPLES_PER_TRIAL {
            self.samples = 0;
        }
        let is_known = self.cost[usize::from(self.is_streaming)] > 0.0;
        let streaming = self.is_streaming ^ (is_trial && is_known);
        (self.timed, self.is_timed_streamed) = (Some(Instant::now()), streaming);
        streaming
    }

    /// True if memory of `len` bytes that is filled beside the slots shall be streamed.
    pub(crate) fn streams(&self, len: usize) -> bool {
        self.is_streaming && len >= MIN_STREAMED_BYTES
    }

    /// Ends the time of the slot of the last [`Self::should_stream`], which is filled now.
    #[inline]
    pub(crate) fn slot_filled(&mut self, len: usize) {
        if let Some(since) = self.timed.take() {
            let sample = since.elapsed().as_nanos() as f32 * 1024.0 / len as f32;
            self.add_sample(self.is_timed_streamed, sample);
        }
    }

    /// Updates a cost: a lower sample counts at once, a higher one raises the cost by a quarter at
    /// most, because an interrupted sender seems slow.
    fn add_sample(&mut self, streaming: bool, sample: f32) {
        let sample = sample.max(1.0);
        let cost = &mut self.cost[usize::from(streaming)];
        *cost = if *cost == 0.0 { sample } else { sample.min(*cost * 1.25) };
        let [cached, streamed] = self.cost;
        if streamed > 0.0 && cached > 0.0 {
            self.is_streaming = cached > streamed * MIN_SPEEDUP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_STREAMED_BYTES, SAMPLES_PER_TRIAL, SLOTS_PER_SAMPLE, StorePolicy};

    /// Fills slots at these costs per kilobyte, cached and streamed; how many were streamed.
    fn fill(policy: &mut StorePolicy, slots: u32, cost: [f32; 2]) -> u32 {
        let mut streamed = 0;
        for _ in 0..slots {
            let streaming = policy.should_stream(MIN_STREAMED_BYTES);
            streamed += u32::from(streaming);
            if policy.timed.take().is_some() {
                policy.add_sample(streaming, cost[usize::from(streaming)]);
            }
        }
        streamed
    }

    #[test]
    fn the_cheaper_policy_is_used_and_followed_when_it_changes() {
        let (near, far) = ([30.0, 30.0], [500.0, 40.0]);
        let mut policy = StorePolicy::default();
        let round = SLOTS_PER_SAMPLE * SAMPLES_PER_TRIAL;
        assert!(fill(&mut policy, 20 * round, near) <= 21, "near: only trials are streamed");
        fill(&mut policy, round, far);
        assert!(fill(&mut policy, 20 * round, far) >= 20 * (round - 1), "far: only trials are not");
        fill(&mut policy, 2 * round, near);
        assert!(fill(&mut policy, 20 * round, near) <= 20, "near again");
    }

    #[test]
    fn an_interruption_changes_nothing_and_small_payloads_stay_cached() {
        let mut policy = StorePolicy::default();
        fill(&mut policy, 10 * SLOTS_PER_SAMPLE, [30.0, 30.0]);
        policy.add_sample(false, 1e9);
        assert!(!policy.is_streaming);
        assert!((0..1000).all(|_| !policy.should_stream(MIN_STREAMED_BYTES - 1)));
    }
}
