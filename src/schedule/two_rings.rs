//! Two rings in opposite directions: what a rank gives to all, or gets from all, comes half from
//! the one side and half from the other. As many bytes as the ring's, on twice as many links, and
//! half as many hops. May touch: sim's Speed.
//!
//! Source: the bidirectional ring of Chan et al., "Collective communication: theory, practice, and
//! experience", CCPE 19 (2007). Cost, with chunks of m bytes, latency a, a step's s = o + mb, a
//! reducing one's r = s + mg: h = n/2 hops rounded down go forwards, g = n-1-h backwards, and a
//! rank takes turns, so that a hop takes both d + max(d, a) where steps take d:
//! reduce-scatter c(r), all-gather c(s), all-reduce c(r) + c(s) - s, of which
//! c(d) = s + max(s, a) + 2d + (g-1)(d + max(d, a)) and, if n is even, a + d.

use super::{Collective, Definition, Op, Order, Place, Ring, Schedule, Space, Step, Volume, fuse};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition =
    Definition { name: "two_rings", schedule, volume, cost, ..Definition::USUAL };

/// A way round the ring: how far a hop goes, and how many hops chunks go that way.
struct Way {
    ahead: i64,
    hops: i64,
}

/// Backwards first: it has a hop less if their number is odd.
fn ways(size: u32) -> [Way; 2] {
    let others = i64::from(size) - 1;
    [Way { ahead: -1, hops: others / 2 }, Way { ahead: 1, hops: others - others / 2 }]
}

/// A step of rank `me` that takes from one neighbour and gives to the other.
fn step(order: &Ring, me: u32, way: &Way, op: Op, place: Place) -> Step {
    let from = if op.receives() { order.after(me, -way.ahead) } else { me };
    let to = if op.sends() { order.after(me, way.ahead) } else { me };
    Step::new(op, me, place).from(from).to(to)
}

/// Input: a chunk per rank. Output: one chunk, the own one reduced over all ranks: what comes
/// against the ring is added to it first, then what comes along it.
fn reduce_scatter(order: &Ring, me: u32) -> Schedule {
    let (mine, result) = (Place::input(me), Place::output(0));
    let mut steps = Vec::with_capacity(order.size() as usize + 1);
    let mut src = mine;
    for hop in 0..=i64::from(order.size() / 2) {
        for way in ways(order.size()).iter().filter(|way| hop <= way.hops && way.hops > 0) {
            let chunk = Place::input(order.after(me, way.ahead * (way.hops - hop)));
            let first = if way.ahead > 0 { Order::IncomingFirst } else { Order::LocalFirst };
            steps.push(if hop == 0 {
                step(order, me, way, Op::Send, chunk)
            } else if hop < way.hops {
                step(order, me, way, Op::RecvReduceSend, chunk).order(first)
            } else {
                let fold = step(order, me, way, Op::RecvReduceCopy, src).into(result);
                src = result;
                fold.order(first).last(way.ahead > 0)
            });
        }
    }
    if order.size() == 1 {
        steps.push(Step::new(Op::Copy, me, mine).into(result));
    }
    Schedule { steps, ..Schedule::new(order.size(), 1) }
}

/// Input: one chunk. Output: everybody's. The own one is put in its place while it travels.
fn all_gather(order: &Ring, me: u32) -> Schedule {
    let mine = Place::input(0);
    let mut steps = Vec::with_capacity(order.size() as usize + 2);
    for hop in 0..=i64::from(order.size() / 2) {
        for way in ways(order.size()).iter().filter(|way| hop <= way.hops && way.hops > 0) {
            let chunk = Place::output(order.after(me, -way.ahead * hop));
            steps.push(match hop {
                0 => step(order, me, way, Op::Send, mine),
                _ if hop < way.hops => step(order, me, way, Op::RecvCopySend, chunk),
                _ => step(order, me, way, Op::Recv, chunk),
            });
        }
        if hop == 0 {
            steps.push(Step::new(Op::Copy, me, mine).into(Place::output(me)));
        }
    }
    Schedule { steps, ..Schedule::new(1, order.size()) }
}

/// Reduce-scatter, then all-gather, fused.
fn all_reduce(order: &Ring, me: u32) -> Schedule {
    let n = order.size();
    let part = |half: Schedule, space| {
        half.moved(n, n, |place| if place.space == space { Place::output(me) } else { place })
    };
    let scatter = part(reduce_scatter(order, me), Space::Output);
    fuse(scatter, part(all_gather(order, me), Space::Input))
}

/// The schedule of rank `me`.
fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    match collective {
        Collective::AllReduce => Some(all_reduce(order, me)),
        Collective::ReduceScatter => Some(reduce_scatter(order, me)),
        Collective::AllGather => Some(all_gather(order, me)),
        _ => None,
    }
}

/// The ring's.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    use Collective::{AllGather, AllReduce, ReduceScatter};
    matches!(collective, AllReduce | ReduceScatter | AllGather).then(|| collective.volume(order))
}

/// The closed form; see the top.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let own = bytes / f64::from(size);
    let (s, r, a) = (speed.moved(own), speed.folded(own), speed.latency);
    let [back, forth] = ways(size).map(|way| way.hops as f64);
    let half = |d: f64| {
        let both = match back {
            0.0 => s,
            _ => s + s.max(a) + 2.0 * d + (back - 1.0) * (d + d.max(a)),
        };
        both + (forth - back) * (a + d)
    };
    match collective {
        Collective::AllReduce => Some(half(r) + half(s) - s),
        Collective::ReduceScatter => Some(half(r)),
        Collective::AllGather => Some(half(s)),
        _ => None,
    }
}
