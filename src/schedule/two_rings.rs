//! Two rings in opposite directions: half of the ranks' chunks go one way round, half the other. As
//! many bytes as on one ring, on twice as many links, in half as many hops.
//!
//! Source: the bidirectional ring of Chan et al., "Collective communication: theory, practice, and
//! experience", CCPE 19 (2007). Cost, with chunks of m bytes, latency a, a step's s = o + mb, a
//! reducing one's r = s + mg: h = n/2 hops rounded down go forwards, g = n-1-h backwards, and a
//! rank takes turns, so that a hop takes both d + max(d, a) where steps take d:
//! reduce-scatter c(r), all-gather c(s), all-reduce c(r) + c(s) - s, of which
//! c(d) = s + max(s, a) + 2d + (g-1)(d + max(d, a)) and, if n is even, a + d.
//! # Example
//!
//! An all-reduce of four ranks. Each chunk goes one hop backwards and two hops forwards:
//!
//! ```text
//!     rank 0              rank 1              rank 2              rank 3
//! 1   3: a > 3            0: b > 0            1: c > 1            2: d > 2
//! 2   2: a > 1            3: b > 2            0: c > 3            1: d > 0
//! 3   0 = a+b             1 = b+c             2 = c+d             3 = d+a
//! 4   1: d+a > 1          2: a+b > 2          3: b+c > 3          0: c+d > 0
//! 5   0 = c+d+(a+b) > 3   1 = d+a+(b+c) > 0   2 = a+b+(c+d) > 1   3 = b+c+(d+a) > 2
//! 6   0: c+d+(a+b) > 1    1: d+a+(b+c) > 2    2: a+b+(c+d) > 3    3: b+c+(d+a) > 0
//! 7   1 = d+a+(b+c)       2 = a+b+(c+d)       3 = b+c+(d+a)       0 = c+d+(a+b)
//! 8   3 = b+c+(d+a) > 1   0 = c+d+(a+b) > 2   1 = d+a+(b+c) > 3   2 = a+b+(c+d) > 0
//! 9   2 = a+b+(c+d)       3 = b+c+(d+a)       0 = c+d+(a+b)       1 = d+a+(b+c)
//! ```

use super::{Collective, Definition, Op, Order, Place, Ring, Schedule, Step, Volume, fuse_halves};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition =
    Definition { name: "two_rings", schedule, volume, cost, ..Definition::DEFAULT };

/// A direction round the ring: the neighbour of a hop (+1 or -1), and the number of hops.
struct Side {
    ahead: i64,
    hops: i64,
}

/// The two directions, backwards first; if the number of other ranks is odd, it has one hop less.
fn sides(size: u32) -> [Side; 2] {
    let others = i64::from(size) - 1;
    [Side { ahead: -1, hops: others / 2 }, Side { ahead: 1, hops: others - others / 2 }]
}

/// A step of rank `me` that receives from one neighbour and sends to the other.
fn step(order: &Ring, me: u32, side: &Side, op: Op, place: Place) -> Step {
    let from = if op.receives() { order.after(me, -side.ahead) } else { me };
    let to = if op.sends() { order.after(me, side.ahead) } else { me };
    Step::new(op, me, place).from(from).to(to)
}

/// Input: a chunk per rank. Output: the own chunk, reduced over all ranks. Sums that come backwards
/// are added first, then those that come forwards.
fn reduce_scatter(order: &Ring, me: u32) -> Schedule {
    let (mine, result) = (Place::input(me), Place::output(0));
    let mut steps = Vec::with_capacity(order.size() as usize + 1);
    let mut src = mine;
    for hop in 0..=i64::from(order.size() / 2) {
        for side in sides(order.size()).iter().filter(|side| hop <= side.hops && side.hops > 0) {
            let chunk = Place::input(order.after(me, side.ahead * (side.hops - hop)));
            let first = if side.ahead > 0 { Order::IncomingFirst } else { Order::LocalFirst };
            steps.push(if hop == 0 {
                step(order, me, side, Op::Send, chunk)
            } else if hop < side.hops {
                step(order, me, side, Op::RecvReduceSend, chunk).order(first)
            } else {
                let fold = step(order, me, side, Op::RecvReduceCopy, src).into(result);
                src = result;
                fold.order(first).last(side.ahead > 0)
            });
        }
    }
    if order.size() == 1 {
        steps.push(Step::new(Op::Copy, me, mine).into(result));
    }
    Schedule { steps, ..Schedule::new(order.size(), 1) }
}

/// Input: one chunk. Output: the chunks of all ranks. The own one is copied while it travels.
fn all_gather(order: &Ring, me: u32) -> Schedule {
    let mine = Place::input(0);
    let mut steps = Vec::with_capacity(order.size() as usize + 2);
    for hop in 0..=i64::from(order.size() / 2) {
        for side in sides(order.size()).iter().filter(|side| hop <= side.hops && side.hops > 0) {
            let chunk = Place::output(order.after(me, -side.ahead * hop));
            steps.push(match hop {
                0 => step(order, me, side, Op::Send, mine),
                _ if hop < side.hops => step(order, me, side, Op::RecvCopySend, chunk),
                _ => step(order, me, side, Op::Recv, chunk),
            });
        }
        if hop == 0 {
            steps.push(Step::new(Op::Copy, me, mine).into(Place::output(me)));
        }
    }
    Schedule { steps, ..Schedule::new(1, order.size()) }
}

fn all_reduce(order: &Ring, me: u32) -> Schedule {
    fuse_halves(reduce_scatter(order, me), all_gather(order, me), me)
}

fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    match collective {
        Collective::AllReduce => Some(all_reduce(order, me)),
        Collective::ReduceScatter => Some(reduce_scatter(order, me)),
        Collective::AllGather => Some(all_gather(order, me)),
        _ => None,
    }
}

/// As many chunks as on one ring.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    use Collective::{AllGather, AllReduce, ReduceScatter};
    matches!(collective, AllReduce | ReduceScatter | AllGather).then(|| collective.volume(order))
}

/// The closed form in the file's header.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let chunk = bytes / f64::from(size);
    let (s, r, a) = (speed.moved(chunk), speed.folded(chunk), speed.latency);
    let [backward, forward] = sides(size).map(|side| side.hops as f64);
    let half = |d: f64| {
        let both = match backward {
            0.0 => s,
            _ => s + s.max(a) + 2.0 * d + (backward - 1.0) * (d + d.max(a)),
        };
        both + (forward - backward) * (a + d)
    };
    match collective {
        Collective::AllReduce => Some(half(r) + half(s) - s),
        Collective::ReduceScatter => Some(half(r)),
        Collective::AllGather => Some(half(s)),
        _ => None,
    }
}
