//! The laws without an operating system: the pure modules as a WebAssembly module that imports
//! nothing. `.ci/wasm` builds it and calls `laws`.

#[path = "../tests/laws/membership/simulator/mod.rs"]
#[allow(dead_code, reason = "tests read the counts of its runs")]
mod simulator;

use ringreduce::schedule::{Collective, Ring};
use ringreduce::sim::{Random, Shape, check};
use simulator::run;

/// Random histories of members among faults.
const HISTORIES: u64 = 2_000;

/// 0 if all laws hold in all worlds of 2 to 16 ranks, for every root, least and useful capacity,
/// and three orders of the ring; else 256 times the world size, plus the number of the collective
/// (0 if there is no such ring). If those hold, but not a law of membership: 65536 plus the seed.
#[unsafe(no_mangle)]
pub extern "C" fn laws() -> u32 {
    let schedules =
        (2..=16).find_map(|size| broken(size).map(|collective| 256 * size + collective));
    let history =
        || (0..HISTORIES).find(|&seed| run(seed).is_err()).map(|seed| 65536 + seed as u32);
    schedules.or_else(history).unwrap_or(0)
}

/// The collective that breaks a law in a world of `size`, if there is one.
fn broken(size: u32) -> Option<u32> {
    let collectives = Collective::all(size);
    let mut shuffled: Vec<u32> = (0..size).collect();
    Random::new(u64::from(size)).shuffle(&mut shuffled);
    for order in [(0..size).collect(), (0..size).rev().collect(), shuffled] {
        let Some(ring) = Ring::new(order) else { return Some(0) };
        for (number, &collective) in (1..).zip(&collectives) {
            let schedules = collective.schedules(&ring);
            for slices in [1, 2, 3, 4, 8] {
                for capacity in [slices + 1, 2 * slices] {
                    let shape = Shape::uniform(2, slices, capacity);
                    let volume = collective.volume(&ring);
                    if check(collective, volume, &schedules, &shape, u64::from(size)).is_err() {
                        return Some(number);
                    }
                }
            }
        }
    }
    None
}
