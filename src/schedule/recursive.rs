//! Recursive doubling: ranks exchange all they have with the ranks at distance 1, 2, 4, .., and
//! fold in rank order.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005). Among n = p + r ranks, p = 2^l the largest power of two, the first 2r
//! are neighbours in pairs: the lower one gives to the other, and has the result from it.
//! Cost, m bytes, a step's s = o + mb, f = s + mg: s + l(a + f); of n that is no power of two
//! s + l f + (l+1)a + s + max(f - (l-1-h)a, mg), 2^h being the least power of two not below r.
//! # Example
//!
//! An all-reduce of four ranks:
//!
//! ```text
//!     rank 0          rank 1          rank 2          rank 3
//! 1   0: a > 1        0: b > 0        0: c > 3        0: d > 2
//! 2   0 = a+b > 2     0 = a+b > 3     0 = c+d > 0     0 = c+d > 1
//! 3   0 = a+b+(c+d)   0 = a+b+(c+d)   0 = a+b+(c+d)   0 = a+b+(c+d)
//! ```

use super::{
    Collective, Definition, Op, Order, Place, ReadOrder, RequiredLinks, Schedule, Step, Volume,
};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition = Definition {
    name: "recursive_doubling",
    read_order: ReadOrder::RankOrder,
    links: RequiredLinks::Doubling,
    chunks: |collective, order| collective.blocks(order.size()),
    schedule: |collective, order, me| makes(collective).then(|| all_reduce(order.size(), me)),
    volume: |collective, order| makes(collective).then(|| volume(order.size())),
    cost: |collective, order, bytes, speed| {
        makes(collective).then(|| cost(order.size(), bytes, speed))
    },
    ..Definition::DEFAULT
};

const fn makes(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Barrier)
}

/// The ranks that take part in the exchanges, and those that are left out.
#[derive(Clone, Copy)]
pub(super) struct Pairing {
    /// The number of exchanges, log2 of the ranks that take part.
    pub(super) doublings: u32,
    /// The number of ranks left out: the lower ones of the first so many pairs of neighbours.
    pub(super) left_out: u32,
}

pub(super) enum Role {
    /// Left out: sends to its partner, and receives the result from it.
    LeftOut { partner: u32 },
    /// Takes part under this number, below 2^l, also for its partner if it has one.
    Exchanging { number: u32, partner: Option<u32> },
}

impl Pairing {
    pub(super) const fn of(size: u32) -> Self {
        let doublings = size.ilog2();
        Self { doublings, left_out: size - (1 << doublings) }
    }

    /// The number of ranks that take part; also the number of chunks, if each has one.
    pub(super) const fn chunks(self) -> u32 {
        1 << self.doublings
    }

    pub(super) const fn role(self, rank: u32) -> Role {
        if rank >= 2 * self.left_out {
            Role::Exchanging { number: rank - self.left_out, partner: None }
        } else if rank.is_multiple_of(2) {
            Role::LeftOut { partner: rank + 1 }
        } else {
            Role::Exchanging { number: rank / 2, partner: Some(rank - 1) }
        }
    }

    /// The rank that takes part under `number`. Numbers are in the order of ranks.
    pub(super) const fn rank(self, number: u32) -> u32 {
        if number < self.left_out { 2 * number + 1 } else { number + self.left_out }
    }
}

/// A step of rank `me` that folds the chunk from `from` in rank order.
pub(super) fn fold(op: Op, me: u32, from: u32, src: Place) -> Step {
    let order = if from < me { Order::IncomingFirst } else { Order::LocalFirst };
    Step::new(op, me, src).from(from).order(order)
}

/// An all-reduce of one chunk. Each partial result is sent on at once.
fn all_reduce(size: u32, me: u32) -> Schedule {
    let (mine, result) = (Place::input(0), Place::output(0));
    let pairing = Pairing::of(size);
    let steps = match pairing.role(me) {
        Role::LeftOut { partner } => vec![
            Step::new(Op::Send, me, mine).to(partner),
            Step::new(Op::Recv, me, result).from(partner),
        ],
        Role::Exchanging { .. } if size == 1 => vec![Step::new(Op::Copy, me, mine).into(result)],
        Role::Exchanging { number, partner } => {
            let peers = || (0..pairing.doublings).map(|bit| pairing.rank(number ^ 1 << bit));
            let from = partner.into_iter().chain(peers());
            let mut to = peers().chain(partner);
            let mut steps = Vec::with_capacity(pairing.doublings as usize + 1);
            if partner.is_none() {
                steps.extend(to.next().map(|to| Step::new(Op::Send, me, mine).to(to)));
            }
            let mut at = mine;
            for from in from {
                let step = match to.next() {
                    Some(to) => fold(Op::RecvReduceCopySend, me, from, at).to(to),
                    None => fold(Op::RecvReduceCopy, me, from, at),
                };
                steps.push(step.into(result));
                at = result;
            }
            // The exchange at the largest distance brings the last contribution.
            let folds = steps.iter_mut().rev().filter(|step| step.op.reduces());
            folds.take(1).for_each(|step| step.last = true);
            steps
        }
    };
    Schedule { steps, ..Schedule::new(1, 1) }
}

/// The chunks that these schedules send.
fn volume(size: u32) -> Volume {
    let Pairing { doublings, left_out } = Pairing::of(size);
    let [l, r] = [doublings, left_out].map(u64::from);
    Volume { most: l + r.min(1), total: (l << doublings) + 2 * r }
}

/// The closed form in the file's header. `size` is not 1.
fn cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    let Pairing { doublings, left_out } = Pairing::of(size);
    let (l, a) = (f64::from(doublings), speed.latency);
    let (s, f) = (speed.moved(bytes), speed.folded(bytes));
    let without_partners = s + l * (a + f);
    if left_out == 0 {
        return without_partners;
    }
    // A rank with a partner begins late. The last rank to finish is one that hears last of such a
    // rank, or hears of one at the largest distance.
    let h = f64::from(left_out.next_power_of_two().ilog2());
    without_partners + s + a + (f - (l - 1.0 - h) * a).max(f - s)
}
