//! Bruck's all-gather and, as its mirror, reduce-scatter, in log2 n hops, rounded up. Every chunk
//! goes down a binomial tree of its own (in a reduce-scatter, up), and is a message of its own,
//! stored straight to its place. The longest hop carries one chunk, the shortest n/2. Law: links
//! need slots for `WINDOW` chunks; with fewer, ranks could deadlock.
//!
//! Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems", IEEE TPDS 8 (1997), long hops first, as in NCCL's PAT. Cost, with
//! chunks of m bytes, latency a, a step's s = o + mb, the other end's d = s or, reducing, s + mg:
//! each hop of q chunks max(qs, s + a) + qd, while q is no more than the window.
//! # Example
//!
//! An all-gather of four ranks; the longer hop comes first:
//!
//! ```text
//!     rank 0     rank 1     rank 2     rank 3
//! 1   0: a > 2   0: b > 3   0: c > 0   0: d > 1
//! 2   0 = a      1 = b      2 = c      3 = d
//! 3   2 = c      3 = d      0 = a      1 = b
//! 4   0: a > 1   0: b > 2   0: c > 3   0: d > 0
//! 5   2: c > 1   3: d > 2   0: a > 3   1: b > 0
//! 6   3 = d      0 = a      1 = b      2 = c
//! 7   1 = b      2 = c      3 = d      0 = a
//! ```

use core::ops::Range;

use super::{Collective, Definition, Op, Order, Place, Ring, Schedule, Step, Volume};
use crate::sim::Speed;

/// Chunks that a rank may send to another before that rank receives the first: the least number of
/// slots of any link, which links over sockets have.
const WINDOW: u32 = 4;

pub(super) const DEFINITION: Definition = Definition {
    name: "bruck",
    window: WINDOW as usize,
    schedule,
    volume,
    cost,
    ..Definition::DEFAULT
};

fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let size = order.size();
    match collective {
        Collective::ReduceScatter => Some(reduce_scatter(size, me)),
        Collective::AllGather => Some(all_gather(size, me)),
        _ => None,
    }
}

/// The exponents of the hops: hop k goes 2^k ranks far.
fn hops(size: u32) -> Range<u32> {
    0..size.next_power_of_two().ilog2()
}

/// Chunks that a rank sends, and receives, in a hop: the number of odd multiples of the hop's
/// length below `size`. In the tree over places, counted from the chunk's owner, the hop's edges
/// lead from even multiples to odd ones.
fn edges(size: u32, hop: u32) -> u32 {
    (size + (1 << hop) - 1) >> (hop + 1)
}

/// Alternates sends and receives, with the sends at most the window ahead.
fn exchange(
    steps: &mut Vec<Step>,
    count: u32,
    send: impl Fn(u32) -> Step,
    recv: impl Fn(u32) -> Step,
) {
    steps.extend((0..count.min(WINDOW)).map(&send));
    for edge in 0..count {
        steps.push(recv(edge));
        if edge + WINDOW < count {
            steps.push(send(edge + WINDOW));
        }
    }
}

/// Input: one chunk. Output: the chunks of all ranks.
fn all_gather(size: u32, me: u32) -> Schedule {
    let owner = |place: u32| (size + me - place) % size;
    let mut steps = Vec::with_capacity(2 * size as usize);
    for hop in hops(size).rev() {
        let distance = 1 << hop;
        let (from, to) = (owner(distance), (me + distance) % size);
        let send = |edge: u32| {
            let place = match 2 * distance * edge {
                0 => Place::input(0),
                place => Place::output(owner(place)),
            };
            Step::new(Op::Send, me, place).to(to)
        };
        let recv = |edge: u32| {
            Step::new(Op::Recv, me, Place::output(owner(2 * distance * edge + distance))).from(from)
        };
        exchange(&mut steps, edges(size, hop), send, recv);
    }
    // The own chunk is copied while the first message travels.
    let copy = Step::new(Op::Copy, me, Place::input(0)).into(Place::output(me));
    steps.insert(steps.len().min(1), copy);
    Schedule { steps, ..Schedule::new(1, size) }
}

/// Input: a chunk per rank. Output: the own chunk, reduced over all ranks. Partial sums of other
/// ranks' chunks wait in the scratch until they are sent.
fn reduce_scatter(size: u32, me: u32) -> Schedule {
    let owner = |place: u32| (size + me - place) % size;
    let mine = |place: u32| Place::input(owner(place));
    // The partial sum of the chunk in whose tree this rank has this place; odd places are leaves.
    let sum = |place: u32| match place {
        0 => Place::output(0),
        _ => Place::scratch(place / 2 - 1),
    };
    let scratch = (2..size.max(1) - 1).step_by(2).map(mine).collect();
    let mut steps = Vec::with_capacity(2 * size as usize);
    for hop in hops(size) {
        let distance = 1 << hop;
        let (from, to) = ((me + distance) % size, owner(distance));
        let send = |edge: u32| {
            let place = 2 * distance * edge + distance;
            let leaf = hop == 0 || place + 1 == size;
            Step::new(Op::Send, me, if leaf { mine(place) } else { sum(place) }).to(to)
        };
        let recv = |edge: u32| {
            let place = 2 * distance * edge;
            let src = if hop == 0 { mine(place) } else { sum(place) };
            let fold = Step::new(Op::RecvReduceCopy, me, src).into(sum(place)).from(from);
            fold.order(Order::LocalFirst).last(place == 0 && 2 * distance >= size)
        };
        exchange(&mut steps, edges(size, hop), send, recv);
    }
    if size == 1 {
        steps.push(Step::new(Op::Copy, me, mine(0)).into(sum(0)));
    }
    Schedule { scratch, steps, ..Schedule::new(size, 1) }
}

/// As many chunks as the ring's schedules send.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let halves = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
    halves.then(|| collective.volume(order))
}

/// The closed form with the window: simulates the messages of each hop; all ranks are in step.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let chunk = bytes / f64::from(size);
    let (s, a) = (speed.moved(chunk), speed.latency);
    let taken = match collective {
        Collective::ReduceScatter => speed.folded(chunk),
        Collective::AllGather => s,
        _ => return None,
    };
    let mut now = 0.0;
    for hop in hops(size) {
        let count = edges(size, hop);
        let mut sent = [0.0; WINDOW as usize];
        for sent in sent.iter_mut().take(count as usize) {
            now += s;
            *sent = now;
        }
        for edge in 0..count {
            let sent = &mut sent[(edge % WINDOW) as usize];
            now = now.max(*sent + a) + taken;
            if edge + WINDOW < count {
                now += s;
                *sent = now;
            }
        }
    }
    Some(now)
}
