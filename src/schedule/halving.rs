//! Recursive halving and doubling: at distance 1, 2, 4, .. ranks exchange half of the chunks that
//! they still share in, then go back the same way. A rank's schedule goes chunk by chunk, not
//! distance by distance: so partial sums are forwarded at once, and a link never holds more than
//! one chunk.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; ranks beyond
//! a power of two p as in recursive. Cost, chunks of m bytes, a step's s = o + mb, f = s + mg:
//! reduce-scatter p/2 (s + a) + (p-1)f, all-gather p/2 (s + a) + (p-1)s, all-reduce both less s; of
//! n that is no power of two p/2 (3s + 3f + max(a, f) + max(a, s)) - f + 2a (n = p + 1:
//! `partner_time`).
//! # Example
//!
//! An all-reduce of four ranks. Steps 1 to 5 halve, and steps 5 to 9 double:
//!
//! ```text
//!     rank 0              rank 1              rank 2              rank 3
//! 1   3: a > 1            2: b > 0            1: c > 3            0: d > 2
//! 2   2: a+b > 2          3: a+b > 3          0: c+d > 0          1: c+d > 1
//! 3   1: a > 1            0: b > 0            3: c > 3            2: d > 2
//! 4   0 = a+b             1 = a+b             2 = c+d             3 = c+d
//! 5   0 = a+b+(c+d) > 2   1 = a+b+(c+d) > 3   2 = a+b+(c+d) > 0   3 = a+b+(c+d) > 1
//! 6   0: a+b+(c+d) > 1    1: a+b+(c+d) > 0    2: a+b+(c+d) > 3    3: a+b+(c+d) > 2
//! 7   1 = a+b+(c+d)       0 = a+b+(c+d)       3 = a+b+(c+d)       2 = a+b+(c+d)
//! 8   2 = a+b+(c+d) > 1   3 = a+b+(c+d) > 0   0 = a+b+(c+d) > 3   1 = a+b+(c+d) > 2
//! 9   3 = a+b+(c+d)       2 = a+b+(c+d)       1 = a+b+(c+d)       0 = a+b+(c+d)
//! ```

use super::recursive::{Pairing, Role, fold};
use super::{
    Collective, Definition, Op, Place, ReadOrder, RequiredLinks, Ring, Schedule, Step, Volume, fuse,
};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition = Definition {
    name: "halving_doubling",
    read_order: ReadOrder::RankOrder,
    links: RequiredLinks::Doubling,
    chunks: |collective, order| match collective {
        Collective::AllReduce => Pairing::of(order.size()).chunks(),
        _ => collective.blocks(order.size()),
    },
    schedule,
    volume,
    cost,
    ..Definition::DEFAULT
};

/// The schedule of rank `me`. Reduce-scatter and all-gather alone need a power of two.
fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let pairing = Pairing::of(order.size());
    let (number, partner) = match pairing.role(me) {
        Role::Exchanging { number, partner } => (number, partner),
        Role::LeftOut { partner } if collective == Collective::AllReduce => {
            return Some(left_out_schedule(me, partner, pairing.chunks()));
        }
        Role::LeftOut { .. } => return None,
    };
    let rank = Exchanger { me, number, partner, pairing };
    match (collective, pairing.left_out) {
        (Collective::AllReduce, _) => Some(rank.all_reduce()),
        (Collective::ReduceScatter, 0) => Some(rank.reduce_scatter()),
        (Collective::AllGather, 0) => Some(rank.all_gather()),
        _ => None,
    }
}

/// A rank that takes part in the exchanges, with its number there.
struct Exchanger {
    me: u32,
    number: u32,
    partner: Option<u32>,
    pairing: Pairing,
}

/// The schedule of a rank that is left out: its steps are in the order of its partner's.
fn left_out_schedule(me: u32, partner: u32, chunks: u32) -> Schedule {
    let chunk = |distance| (partner / 2) ^ distance;
    let send = |distance| Step::new(Op::Send, me, Place::input(chunk(distance))).to(partner);
    let recv = |distance| Step::new(Op::Recv, me, Place::output(chunk(distance))).from(partner);
    let steps = (0..chunks).rev().map(send).chain((0..chunks).map(recv)).collect();
    Schedule { steps, ..Schedule::new(chunks, chunks) }
}

impl Exchanger {
    fn peer(&self, bit: u32) -> u32 {
        self.pairing.rank(self.number ^ 1 << bit)
    }

    /// The exponent of the nearest rank with which the chunk at a distance is exchanged: the lowest
    /// bit of the distance. The own chunk, at distance 0, is never exchanged.
    fn bit(&self, distance: u32) -> u32 {
        distance.trailing_zeros().min(self.pairing.doublings)
    }

    /// Reduce-scatter, chunk by chunk, the own one last: receives the chunk from each rank that
    /// gives it to this one, and sends the sum to the rank that is nearer to the chunk's owner.
    fn scatter(&self, result: Place, mut partial: impl FnMut(u32) -> Place) -> Vec<Step> {
        let me = self.me;
        let mut steps = Vec::new();
        for distance in (0..self.pairing.chunks()).rev() {
            let (chunk, bit) = (self.number ^ distance, self.bit(distance));
            let mut from = self.partner.into_iter().chain((0..bit).map(|bit| self.peer(bit)));
            let (mine, mut next) = (Place::input(chunk), from.next());
            if distance == 0 && next.is_none() {
                steps.push(Step::new(Op::Copy, me, mine).into(result));
            } else if next.is_none() {
                steps.push(Step::new(Op::Send, me, mine).to(self.peer(bit)));
            }
            let mut at = mine;
            while let Some(rank) = next {
                next = from.next();
                if next.is_none() && distance > 0 {
                    steps.push(fold(Op::RecvReduceSend, me, rank, at).to(self.peer(bit)));
                    break;
                }
                let sum = match at == mine {
                    true if distance == 0 => result,
                    true => partial(chunk),
                    false => at,
                };
                let step = fold(Op::RecvReduceCopy, me, rank, at).into(sum);
                steps.push(step.last(next.is_none()));
                at = sum;
            }
        }
        steps
    }

    /// All-gather, the mirror: sends `mine` to each rank that gave a part of it, then by chunks.
    fn gather(&self, mine: Place) -> Vec<Step> {
        let me = self.me;
        let own = Place::output(self.number);
        let mut steps = Vec::new();
        for distance in 0..self.pairing.chunks() {
            let bit = self.bit(distance);
            let mut to = (0..bit).rev().map(|bit| self.peer(bit)).chain(self.partner);
            let place = if distance == 0 { mine } else { Place::output(self.number ^ distance) };
            if distance > 0 {
                let step = match to.next() {
                    Some(to) => Step::new(Op::RecvCopySend, me, place).to(to),
                    None => Step::new(Op::Recv, me, place),
                };
                steps.push(step.from(self.peer(bit)));
            }
            steps.extend(to.map(|to| Step::new(Op::Send, me, place).to(to)));
            if distance == 0 && mine != own {
                steps.push(Step::new(Op::Copy, me, mine).into(own));
            }
        }
        steps
    }

    fn reduce_scatter(&self) -> Schedule {
        let mut scratch = Vec::new();
        let partial = |chunk| {
            scratch.push(Place::input(chunk));
            Place::scratch(scratch.len() as u32 - 1)
        };
        let steps = self.scatter(Place::output(0), partial);
        Schedule { scratch, steps, ..Schedule::new(self.pairing.chunks(), 1) }
    }

    fn all_gather(&self) -> Schedule {
        let steps = self.gather(Place::input(0));
        Schedule { steps, ..Schedule::new(1, self.pairing.chunks()) }
    }

    /// Partial sums are stored in the output, where the result will be.
    fn all_reduce(&self) -> Schedule {
        let mine = Place::output(self.number);
        let chunks = self.pairing.chunks();
        let part = |steps| Schedule { steps, ..Schedule::new(chunks, chunks) };
        fuse(part(self.scatter(mine, Place::output)), part(self.gather(mine)))
    }
}

/// The chunks that these schedules send, with p ranks in the exchange and r left out.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let pairing = Pairing::of(order.size());
    let [p, r] = [pairing.chunks(), pairing.left_out].map(u64::from);
    match collective {
        Collective::AllReduce => {
            Some(Volume { most: 2 * (p - 1) + p * r.min(1), total: 2 * p * (p - 1) + 2 * p * r })
        }
        Collective::ReduceScatter | Collective::AllGather if r == 0 => {
            Some(Volume { most: p - 1, total: p * (p - 1) })
        }
        _ => None,
    }
}

/// The closed form in the file's header. `size` is not 1.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let pairing = Pairing::of(size);
    let (p, a) = (f64::from(pairing.chunks()), speed.latency);
    let (s, f) = (speed.moved(bytes / p), speed.folded(bytes / p));
    // A rank waits for every other chunk.
    let waits = p / 2.0 * (s + a);
    match (collective, pairing.left_out) {
        (Collective::AllReduce, 0) => Some(2.0 * waits + (p - 1.0) * (f + s) - s),
        (Collective::AllReduce, left_out) => {
            let ends = (1.5 * p) * s + (1.5 * p - 1.0) * f + 2.0 * a;
            Some(ends + partner_time(p / 2.0, left_out, a, s, f))
        }
        (Collective::ReduceScatter, 0) => Some(waits + (p - 1.0) * f),
        (Collective::AllGather, 0) => Some(waits + (p - 1.0) * s),
        _ => None,
    }
}

/// The additional time of a rank with a partner: to fold for it and to send it the result, where
/// that takes longer than the wait for one of every two chunks. A single such rank has peers
/// without partners, and does some of its folds while it waits.
fn partner_time(pairs: f64, left_out: u32, a: f64, s: f64, f: f64) -> f64 {
    match (left_out, pairs) {
        (1, 1.0) => (2.0 * a).max(s + f),
        (1, _) => pairs * ((a - (f - s) / 2.0).max(f) + a.max(s)),
        _ => pairs * (a.max(f) + a.max(s)),
    }
}
