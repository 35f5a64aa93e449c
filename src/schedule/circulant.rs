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
    chunks: |_, order| blocks(order.size()),
    schedule,
    volume,
    cost,
    ..Definition::DEFAULT
};

/// The shortest block in bytes: a message has a cost of its own.
const MIN_BLOCK: usize = 1 << 10;

/// The most hops.
const MOST_HOPS: usize = 10;
/// The most ranks, since a price simulates all of them.
const MOST_RANKS: u32 = 1 << MOST_HOPS;

/// The number of blocks.
fn blocks(size: u32) -> u32 {
    size.next_power_of_two().ilog2().max(1)
}

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
    let exchanges = graph.exchanges(place);
    let rank = Rank { me, root, size, blocks: blocks(size) };
    Some(match collective {
        Collective::Reduce { .. } => rank.reduce(&exchanges),
        _ => rank.broadcast(&exchanges),
    })
}

/// A rank sends in each of the rounds, at most, and in a reduce each block once.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let size = order.size();
    root_of(collective, size)?;
    let [blocks, others] = [blocks(size), size - 1].map(u64::from);
    let most = match collective {
        Collective::Reduce { .. } => blocks,
        _ => 2 * blocks - 1,
    };
    Some(Volume { most: most * others.min(1), total: blocks * others })
}

/// The time of the rounds: see `Circulant::seconds`. `order` has several ranks.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    root_of(collective, order.size())?;
    let blocks = f64::from(blocks(order.size()));
    let blocks = (bytes / MIN_BLOCK as f64).ceil().clamp(1.0, blocks);
    let block = bytes / blocks;
    let sent = match collective {
        Collective::Reduce { .. } => speed.folded(block),
        _ => speed.moved(block),
    };
    let graph = Circulant::of(order.size());
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

/// The blocks that a place receives in rounds 1 to 2q-1; `None` beyond them.
type Received = [Option<u8>; 2 * MOST_HOPS];

/// The graph: its `count` hops, from 1 up, and behind them the number of ranks. `count` is also
/// the number of blocks, and 0 for a single rank.
struct Circulant {
    hops: [u32; MOST_HOPS + 1],
    count: usize,
}

impl Circulant {
    /// `size` is [`MOST_RANKS`] at most.
    fn of(size: u32) -> Self {
        let count = size.next_power_of_two().ilog2() as usize;
        let mut hops = [size; MOST_HOPS + 1];
        for hop in (0..count).rev() {
            hops[hop] = hops[hop + 1].div_ceil(2);
        }
        Self { hops, count }
    }

    fn size(&self) -> u32 {
        self.hops[self.count]
    }

    /// The shortest of the hops whose greedy sum leads to a place. In each turn of q rounds, the
    /// block that left the root with this hop is the only new one that the place receives.
    fn first_hop(&self, mut place: u32) -> usize {
        let mut first = self.count;
        for (number, &hop) in self.hops[..self.count].iter().enumerate().rev() {
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
    fn sources(&self, place: u32) -> [usize; MOST_HOPS] {
        let (count, size) = (self.count, self.size());
        let mut is_used = [false; MOST_HOPS + 1];
        is_used[self.first_hop(place)] = true;
        let mut before = 2 * size;
        let mut sources = [0; MOST_HOPS];
        for (round, source) in sources[..count].iter_mut().enumerate() {
            let [most, least] = [round, round + 1].map(|hop| size + place - self.hops[hop]);
            let (mut sum, mut last) = (0, 0);
            for hop in (0..=count).rev().filter(|&hop| !is_used[hop]) {
                let reached = sum + self.hops[hop];
                if reached > most || reached >= before {
                    continue;
                }
                (*source, last) = (hop, reached);
                if reached > least {
                    break;
                }
                sum = reached;
            }
            before = last;
            is_used[*source] = true;
        }
        sources
    }

    /// The block that a place receives in each round. Rounds are numbered from 1, and round i takes
    /// hop i mod q: so the last one is the second round of the longest hop.
    fn received(&self, place: u32) -> Received {
        let (count, mut received) = (self.count, [None; 2 * MOST_HOPS]);
        if place == 0 {
            return received;
        }
        let (sources, new) = (self.sources(place), self.first_hop(place));
        for round in 1..2 * count {
            let (turn, hop) = (round / count, round % count);
            let source = sources[hop];
            // A block that is not new left the root in the turn before.
            let left = if source == count { count + new } else { source };
            let block = (turn * count + left).checked_sub(count + 1);
            let block = block.map(|block| block.min(count - 1) as u8);
            // Rounds in which there is no block left bring the last one again.
            let is_again = block == Some(count as u8 - 1) && received.contains(&block);
            received[round - 1] = block.filter(|_| !is_again);
        }
        received
    }

    /// The exchange of a place with `round`, of 1 to 2q, by what places receive: `own` is its own
    /// list, and `ahead` says that of the place a hop ahead.
    fn exchange(
        &self,
        place: u32,
        round: usize,
        own: &Received,
        ahead: impl Fn(u32) -> Option<u8>,
    ) -> Exchange {
        let (size, hop) = (self.size(), |round: usize| self.hops[round % self.count]);
        let message = |block: u8, place| Message { block: block.into(), place };
        let behind = || (place + size - hop(round - 1)) % size;
        let to = (place + hop(round)) % size;
        Exchange {
            received: round
                .checked_sub(2)
                .and_then(|index| own[index])
                .map(|block| message(block, behind())),
            sent: ahead(to).map(|block| message(block, to)),
        }
    }

    /// The exchanges of a place, in order.
    fn exchanges(&self, place: u32) -> Vec<Exchange> {
        let own = self.received(place);
        let rounds = 1..=2 * self.count;
        let exchange =
            |round: usize| self.exchange(place, round, &own, |to| self.received(to)[round - 1]);
        rounds.map(exchange).collect()
    }

    /// The time of a broadcast, which is that of the steps backwards. A step that sends takes
    /// `sent` seconds, and one that receives alone `received`. Only the first `blocks` have data.
    fn seconds(&self, blocks: u32, sent: f64, received: f64, latency: f64) -> f64 {
        let lists: Vec<_> = (0..self.size()).map(|place| self.received(place)).collect();
        let mut now = vec![0.0_f64; lists.len()];
        let [mut arrivals, mut next] = [now.clone(), now.clone()];
        for round in 1..=2 * self.count {
            for (place, own) in lists.iter().enumerate() {
                let ahead = |to: u32| lists[to as usize][round - 1];
                let exchange = self.exchange(place as u32, round, own, ahead);
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
            arrivals.copy_from_slice(&next);
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
