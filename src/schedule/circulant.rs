//! Broadcast in blocks over a circulant graph, and reduce as its mirror, for any number of ranks:
//! in each of 2q-1 rounds, q = log2 n rounded up, a rank sends one of q blocks to the rank a hop
//! ahead, and receives one from the rank a hop behind. The hops are n halved again and again,
//! rounded up, and the rounds take them in turns. Law: a rank receives each block once.
//!
//! Source: Traeff, arXiv 2407.18004 (2024). A rank sends before it receives, unless it sends what
//! it receives: so two latencies overlap. Places are counted from the root. The cost of the rounds
//! is simulated; of n = 2^q, q > 2, blocks of m bytes, latency a, a step's s = o + mb, a broadcast
//! takes the longest of (3q-2)s + 2a, (3q-3)s + (q+1)a and 2qs + (2q-2)a. More blocks take more
//! rounds, and trees are faster for long buffers.
//! # Example
//!
//! A broadcast of five ranks from rank 0. The hops are 1, 2 and 3; the first round takes hop 2:
//!
//! ```text
//!     rank 0     rank 1     rank 2     rank 3      rank 4
//! 1   0: a > 2   2 = a      0 = a      1 = a > 4   1 = a > 1
//! 2   1: a > 3   2: a > 4   0: a > 3   0 = a       1: a > 2
//! 3   2: a > 1   1 = a      0: a > 4   0: a > 1    0 = a
//! 4   2: a > 2   0 = a      2 = a      2 = a       2 = a
//! 5   2: a > 3              1 = a
//! 6   0 = a
//! 7   1 = a
//! 8   2 = a
//! ```

use super::{
    Collective, Definition, Op, Order, Place, RequiredLinks, Ring, Schedule, Step, Volume,
};
use crate::sim::Speed;

pub(super) const DEFINITION: Definition = Definition {
    name: "circulant",
    least_chunk: MIN_BLOCK,
    links: RequiredLinks::Doubling,
    chunks: |_, order| Circulant::of(order.size()).blocks(),
    schedule,
    volume,
    cost,
    ..Definition::DEFAULT
};

/// The shortest block in bytes: a message has a cost of its own.
const MIN_BLOCK: usize = 1 << 10;

/// The most ranks, since a price simulates all of them.
const MOST_RANKS: u32 = 1 << 10;

/// The root, if the algorithm makes the collective.
fn root_of(collective: Collective, size: u32) -> Option<u32> {
    match collective {
        Collective::Broadcast { root } | Collective::Reduce { root } if size <= MOST_RANKS => {
            Some(root)
        }
        _ => None,
    }
}

fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let size = order.size();
    let root = root_of(collective, size)?;
    if size == 1 {
        let copy = Step::new(Op::Copy, me, Place::input(0)).into(Place::output(0));
        return Some(Schedule { steps: vec![copy], ..Schedule::new(1, 1) });
    }
    let graph = Circulant::of(size);
    let place = (size + me - root) % size;
    let exchanges = graph.exchanges(place, |place| graph.received(place));
    let rank = Rank { me, root, size, blocks: graph.blocks() };
    Some(match collective {
        Collective::Reduce { .. } => rank.reduce(&exchanges),
        _ => rank.broadcast(&exchanges),
    })
}

/// A rank sends in each of the rounds, at most, and in a reduce each block once.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let size = order.size();
    root_of(collective, size)?;
    let [blocks, others] = [Circulant::of(size).blocks(), size - 1].map(u64::from);
    let most = match collective {
        Collective::Reduce { .. } => blocks,
        _ => 2 * blocks - 1,
    };
    Some(Volume { most: most * others.min(1), total: blocks * others })
}

/// The time of the rounds: see `Circulant::seconds`. `order` has several ranks.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    root_of(collective, order.size())?;
    let graph = Circulant::of(order.size());
    let blocks = (bytes / MIN_BLOCK as f64).ceil().clamp(1.0, f64::from(graph.blocks()));
    let block = bytes / blocks;
    let sent = match collective {
        Collective::Reduce { .. } => speed.folded(block),
        _ => speed.moved(block),
    };
    Some(graph.seconds(blocks as u32, sent, speed.moved(block), speed.latency))
}

/// A block, and the place that it goes to or comes from.
#[derive(Clone, Copy)]
struct Message {
    block: u32,
    place: u32,
}

/// The receipt of one round and the send of the next, which are one step if the block is the same.
struct Exchange {
    received: Option<Message>,
    sent: Option<Message>,
}

impl Exchange {
    /// True if the block that is received is sent on at once.
    fn is_fused(&self) -> bool {
        let [received, sent] = [self.received, self.sent].map(|one| one.map(|one| one.block));
        received.is_some() && received == sent
    }
}

/// The graph: its hops, from 1 up to the number of ranks, which is not a hop.
struct Circulant {
    hops: Vec<u32>,
}

impl Circulant {
    fn of(size: u32) -> Self {
        let halved = |&hop: &u32| (hop > 1).then(|| hop.div_ceil(2));
        let mut hops: Vec<_> = core::iter::successors(Some(size), halved).collect();
        hops.reverse();
        Self { hops }
    }

    fn size(&self) -> u32 {
        self.hops[self.count()]
    }

    /// The number of hops, and of blocks; 0 for a single rank.
    fn count(&self) -> usize {
        self.hops.len() - 1
    }

    fn blocks(&self) -> u32 {
        self.count().max(1) as u32
    }

    /// The shortest of the hops whose greedy sum leads to a place. In each turn of q rounds, the
    /// block that left the root with this hop is the only new one that the place receives.
    fn first_hop(&self, mut place: u32) -> usize {
        let mut first = self.count();
        for (number, &hop) in self.hops[..self.count()].iter().enumerate().rev() {
            if hop <= place {
                (place, first) = (place - hop, number);
            }
        }
        first
    }

    /// For each of q rounds, the number of the hop with which its block left the root. A block goes
    /// on by hops of increasing numbers, and from the last hop to the first. The search finds, for
    /// each round, a sum of unused hops that the hop of the round completes: the longest hops that
    /// fit come first, and the shortest one counts. Sums decrease from round to round. The number q
    /// stands for the block that is new.
    fn sources(&self, place: u32) -> Vec<usize> {
        let (count, size, new) = (self.count(), self.size(), self.first_hop(place));
        let mut unused: Vec<_> = (0..=count).rev().filter(|&hop| hop != new).collect();
        let mut before = 2 * size;
        let source = |round: usize| {
            let [most, least] = [round, round + 1].map(|hop| size + place - self.hops[hop]);
            let (mut sum, mut at, mut last) = (0, 0, 0);
            for (index, &hop) in unused.iter().enumerate() {
                let reached = sum + self.hops[hop];
                if reached > most || reached >= before {
                    continue;
                }
                (at, last) = (index, reached);
                if reached > least {
                    break;
                }
                sum = reached;
            }
            before = last;
            unused.remove(at)
        };
        (0..count).map(source).collect()
    }

    /// The block that a place receives in each round. Rounds are numbered from 1, and round i takes
    /// hop i mod q: so the last one is the second round of the longest hop.
    fn received(&self, place: u32) -> Vec<Option<u32>> {
        let count = self.count();
        if place == 0 {
            return vec![None; 2 * count - 1];
        }
        let (sources, new) = (self.sources(place), self.first_hop(place));
        let mut has_last = false;
        let block = |round: usize| {
            let (turn, hop) = (round / count, round % count);
            let source = sources[hop];
            // A block that is not new left the root in the turn before.
            let left = if source == count { count + new } else { source };
            let block = (turn * count + left).checked_sub(count + 1)?.min(count - 1);
            // Rounds in which there is no block left bring the last one again.
            let is_last = block == count - 1;
            let is_again = is_last && has_last;
            has_last |= is_last;
            (!is_again).then_some(block as u32)
        };
        (1..2 * count).map(block).collect()
    }

    /// The exchanges of a place, in order, by what `received` says of each place.
    fn exchanges(&self, place: u32, received: impl Fn(u32) -> Vec<Option<u32>>) -> Vec<Exchange> {
        let (size, count) = (self.size(), self.count());
        let hops = &self.hops[..count];
        let own = received(place);
        let ahead: Vec<_> = hops.iter().map(|hop| received((place + hop) % size)).collect();
        let exchange = |round: usize| {
            let hop = |round: usize| round % count;
            let taken = round.checked_sub(2).and_then(|index| own[index]);
            let given = ahead[hop(round)].get(round - 1).copied().flatten();
            Exchange {
                received: taken.map(|block| Message {
                    block,
                    place: (place + size - hops[hop(round - 1)]) % size,
                }),
                sent: given
                    .map(|block| Message { block, place: (place + hops[hop(round)]) % size }),
            }
        };
        (1..=2 * count).map(exchange).collect()
    }

    /// The time of a broadcast, which is that of the steps backwards. A step that sends takes
    /// `sent` seconds, and one that receives alone `received`. Only the first `blocks` have data.
    fn seconds(&self, blocks: u32, sent: f64, received: f64, latency: f64) -> f64 {
        let lists: Vec<_> = (0..self.size()).map(|place| self.received(place)).collect();
        let all = (0..self.size())
            .map(|place| self.exchanges(place, |place| lists[place as usize].clone()));
        let all: Vec<_> = all.collect();
        let mut now = vec![0.0_f64; all.len()];
        let mut arrivals = now.clone();
        for round in 0..2 * self.count() {
            let mut next = arrivals.clone();
            for (place, exchanges) in all.iter().enumerate() {
                let exchange = &exchanges[round];
                let has = |message: Option<Message>| message.filter(|one| one.block < blocks);
                let (taken, given) = (has(exchange.received), has(exchange.sent));
                if exchange.is_fused() && taken.is_some() {
                    now[place] = now[place].max(arrivals[place]);
                }
                if let Some(message) = given {
                    now[place] += sent;
                    next[message.place as usize] = now[place] + latency;
                }
                if taken.is_some() && !exchange.is_fused() {
                    now[place] = now[place].max(arrivals[place]) + received;
                }
            }
            arrivals = next;
        }
        now.into_iter().fold(0.0, f64::max)
    }
}

/// A rank, and the root from which places are counted.
struct Rank {
    me: u32,
    root: u32,
    size: u32,
    blocks: u32,
}

impl Rank {
    fn at(&self, message: Message) -> u32 {
        (self.root + message.place) % self.size
    }

    fn is_root(&self) -> bool {
        self.me == self.root
    }

    fn broadcast(&self, exchanges: &[Exchange]) -> Schedule {
        let (me, blocks) = (self.me, self.blocks);
        let held = |block| if self.is_root() { Place::input(block) } else { Place::output(block) };
        let step = |op, message: Message| Step::new(op, me, held(message.block));
        let mut steps = Vec::with_capacity(2 * exchanges.len());
        for exchange in exchanges {
            if let (Some(from), Some(to), true) =
                (exchange.received, exchange.sent, exchange.is_fused())
            {
                steps.push(step(Op::RecvCopySend, from).from(self.at(from)).to(self.at(to)));
                continue;
            }
            steps.extend(exchange.sent.map(|to| step(Op::Send, to).to(self.at(to))));
            steps.extend(exchange.received.map(|from| step(Op::Recv, from).from(self.at(from))));
        }
        let copy = |block| Step::new(Op::Copy, me, held(block)).into(Place::output(block));
        steps.extend((0..blocks).filter(|_| self.is_root()).map(copy));
        Schedule { steps, ..Schedule::new(blocks, blocks) }
    }

    /// The broadcast backwards: a rank folds what it would send, and sends what it would receive.
    fn reduce(&self, exchanges: &[Exchange]) -> Schedule {
        let (me, blocks) = (self.me, self.blocks);
        let mut scratch = Vec::new();
        let mut sums: Vec<_> = (0..blocks).map(Place::input).collect();
        let mut steps = Vec::with_capacity(2 * exchanges.len());
        for exchange in exchanges.iter().rev() {
            let mut fold = |op, from: Message| {
                let src = sums[from.block as usize];
                let step = Step::new(op, me, src).from(self.at(from)).order(Order::LocalFirst);
                if op == Op::RecvReduceSend {
                    return step;
                }
                let sum = match src {
                    _ if self.is_root() => Place::output(from.block),
                    src if src == Place::input(from.block) => {
                        scratch.push(src);
                        Place::scratch(scratch.len() as u32 - 1)
                    }
                    src => src,
                };
                sums[from.block as usize] = sum;
                step.into(sum)
            };
            match (exchange.sent, exchange.received) {
                (Some(from), Some(to)) if exchange.is_fused() => {
                    steps.push(fold(Op::RecvReduceSend, from).to(self.at(to)));
                }
                (from, to) => {
                    let fold = from.map(|from| fold(Op::RecvReduceCopy, from));
                    let send = |to: Message| {
                        Step::new(Op::Send, me, sums[to.block as usize]).to(self.at(to))
                    };
                    steps.extend(to.map(send).into_iter().chain(fold));
                }
            }
        }
        if self.is_root() {
            for block in 0..blocks {
                let folds = steps.iter_mut().rev().filter(|step| step.dst.chunk == block);
                folds.take(1).for_each(|step| step.last = true);
            }
        }
        Schedule { scratch, steps, ..Schedule::new(blocks, blocks) }
    }
}
