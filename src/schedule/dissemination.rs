//! Dissemination: a barrier in log2 n hops, rounded up, for any number of ranks. Each rank tells
//! the rank at distance 1, 2, 4, .. all that it has heard. If n is no power of two, a rank hears of
//! some ranks twice, which does no harm: the token's value is never read.
//!
//! Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", International
//! Journal of Parallel Programming 17 (1988). Cost, a token of m bytes, latency a, a step's s =
//! o + mb, f = s + mg, k = log2 n rounded up: s + k(a + f).
//! # Example
//!
//! A barrier of four ranks. At the end, each rank has heard of all others:
//!
//! ```text
//!     rank 0          rank 1          rank 2          rank 3
//! 1   0: a > 1        0: b > 2        0: c > 3        0: d > 0
//! 2   0 = d+a > 2     0 = a+b > 3     0 = b+c > 0     0 = c+d > 1
//! 3   0 = b+c+(d+a)   0 = c+d+(a+b)   0 = d+a+(b+c)   0 = a+b+(c+d)
//! ```

use super::{Collective, Definition, Op, Place, Ring, Schedule, Step, Volume};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition =
    Definition { name: "dissemination", schedule, volume, cost, ..Definition::DEFAULT };

/// The number of hops: how often the distance doubles until all ranks are reached.
const fn doublings(size: u32) -> u32 {
    size.next_power_of_two().ilog2()
}

/// The schedule of rank `me`. Each hop forwards what the hop before brought.
fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    if collective != Collective::Barrier {
        return None;
    }
    let size = order.size();
    let (mine, heard) = (Place::input(0), Place::output(0));
    let after = |distance: u32| (me + distance) % size;
    let mut steps = Vec::with_capacity(doublings(size) as usize + 1);
    for hop in 0..doublings(size) {
        let (distance, place) = (1 << hop, if hop == 0 { mine } else { heard });
        if hop == 0 {
            steps.push(Step::new(Op::Send, me, mine).to(after(1)));
        }
        let step = if 2 * distance < size {
            Step::new(Op::RecvReduceCopySend, me, place).to(after(2 * distance))
        } else {
            Step::new(Op::RecvReduceCopy, me, place).last(2 * distance == size)
        };
        steps.push(step.into(heard).from(after(size - distance)));
    }
    if size == 1 {
        steps.push(Step::new(Op::Copy, me, mine).into(heard));
    }
    Some(Schedule { steps, ..Schedule::new(1, 1) })
}

/// Each rank sends a token per hop.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let [size, most] = [order.size(), doublings(order.size())].map(u64::from);
    (collective == Collective::Barrier).then_some(Volume { most, total: most * size })
}

/// The closed form in the file's header. `size` is not 1.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let hop = speed.latency + speed.folded(bytes);
    (collective == Collective::Barrier)
        .then(|| speed.moved(bytes) + f64::from(doublings(size)) * hop)
}
