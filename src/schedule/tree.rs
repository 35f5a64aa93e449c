//! Trees: binomial trees, and pairs of binary trees, each for half of the buffer, where a leaf of
//! one is an inner node of the other. All edges lead to ranks at a distance of a power of two.
//! Law: links of the pair need slots for `WINDOW` chunks.
//!
//! Sources: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005); Sanders, Speck and Traeff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009); the
//! binary trees are numbered as NCCL's. The data of each tree of a pair are cut into pieces, and
//! each edge carries one piece in a period: a rank's work is in the order of periods. Costs:
//! `cost`.
//! # Example
//!
//! An all-reduce of four ranks over the binomial tree:
//!
//! ```text
//!     rank 0              rank 1          rank 2              rank 3
//! 1   0 = a+b             0: b > 0        0: c+d > 0          0: d > 2
//! 2   0 = a+b+(c+d) > 2   0 = a+b+(c+d)   0 = a+b+(c+d) > 3   0 = a+b+(c+d)
//! 3   0: a+b+(c+d) > 1
//! ```
//!
//! The same over the pair, for the first piece of each tree. Chunk 0 goes over the binary tree,
//! chunk 1 over the shifted one:
//!
//! ```text
//!     rank 0                rank 1                rank 2              rank 3
//! 1   0 = a+(b+c+d) > 2     0: b > 2              1: c > 3            0: d > 2
//! 2   1 = a+(b+(c+d)) > 1   1: b+(c+d) > 0        0 = b+c             1: c+d > 1
//! 3                         1 = a+(b+(c+d)) > 3   0: b+c+d > 0        1 = a+(b+(c+d)) > 2
//! 4                         0 = a+(b+c+d)         0 = a+(b+c+d) > 3   0 = a+(b+c+d)
//! 5                                               0: a+(b+c+d) > 1
//! 6                                               1 = a+(b+(c+d))
//! ```

use super::{
    Collective, Definition, Op, Order, Place, ReadOrder, RequiredLinks, Schedule, Space, Step,
    Volume, fuse,
};
use crate::sim::Speed;

pub(super) const BINOMIAL: Definition = Definition {
    name: "binomial",
    read_order: ReadOrder::RankOrder,
    chunks: |collective, order| collective.blocks(order.size()),
    schedule: |collective, order, me| Rank::schedule(Trees::Binomial, collective, order.size(), me),
    volume: |collective, order| volume(Trees::Binomial, collective, order.size()),
    cost: |call, order, bytes, speed| cost(Trees::Binomial, call, order.size(), bytes, speed),
    ..Definition::DEFAULT
};

pub(super) const DOUBLE: Definition = Definition {
    name: "double_tree",
    window: WINDOW,
    least_chunk: MIN_PIECE,
    read_order: ReadOrder::RankOrder,
    links: RequiredLinks::EveryWorld,
    chunks: |_, order| Trees::Double.chunks(order.size()),
    schedule: |collective, order, me| Rank::schedule(Trees::Double, collective, order.size(), me),
    volume: |collective, order| volume(Trees::Double, collective, order.size()),
    cost: |call, order, bytes, speed| cost(Trees::Double, call, order.size(), bytes, speed),
};

/// A rank's node in a tree; the root has no parent. Children are in the order in which they are
/// folded, with the order of the operands: ranks that precede this one, counted round from the
/// root, are on its left.
struct Node {
    parent: Option<u32>,
    children: Vec<(u32, Order)>,
}

/// The binomial tree over `size` places. The places below a node differ from it only in its
/// trailing zeros, so a child's subtree has consecutive places.
fn binomial(size: u32, at: u32) -> Node {
    let ends = if at == 0 { u32::BITS } else { at.trailing_zeros() };
    let child = |k: u32| 1u32.checked_shl(k).map(|bit| at + bit).filter(|&child| child < size);
    let children = (0..ends).map_while(child).map(|child| (child, Order::LocalFirst)).collect();
    Node { parent: (at > 0).then(|| at & (at - 1)), children }
}

/// The binary search tree over places from 1 on, below place 0: odd places are leaves.
fn binary(size: u32, at: u32) -> Node {
    if at == 0 {
        let top = (size > 1).then(|| (1 << (size - 1).ilog2(), Order::LocalFirst));
        return Node { parent: None, children: top.into_iter().collect() };
    }
    let bit = 1 << at.trailing_zeros();
    let (low, high) = (at - bit, (at - bit) | (bit << 1));
    let before = (bit > 1).then(|| (at - bit / 2, Order::IncomingFirst));
    let halves = core::iter::successors(Some(bit / 2), |half| Some(half / 2));
    let after =
        halves.take_while(|&half| half > 0).map(|half| at + half).find(|&child| child < size);
    let children =
        before.into_iter().chain(after.map(|child| (child, Order::LocalFirst))).collect();
    Node { parent: Some(if high < size { high } else { low }), children }
}

/// The other tree of the pair: that over places from 1 on, so even places are leaves.
fn shifted(size: u32, at: u32) -> Node {
    let (next, top) = (|place: u32| place + 1, (size > 1).then_some((1, Order::LocalFirst)));
    match at.checked_sub(1) {
        Some(at) => {
            let Node { parent, children } = binary(size - 1, at);
            let children = children.into_iter().map(|(child, order)| (next(child), order));
            Node { parent: Some(parent.map_or(0, next)), children: children.collect() }
        }
        None => Node { parent: None, children: Vec::from_iter(top) },
    }
}

/// The shortest piece in bytes: a message has a cost of its own.
const MIN_PIECE: usize = 16 << 10;

/// Chunks that a rank may send to another before that rank receives the first: one of each tree in
/// a period, while the two of the period before are being received.
const WINDOW: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trees {
    Binomial,
    Double,
}

impl Trees {
    fn count(self) -> u32 {
        match self {
            Self::Binomial => 1,
            Self::Double => 2,
        }
    }

    /// The number of pieces of the data of one tree: four per level, where one per level fills the
    /// tree. A binomial tree's root sends everything to log2 n ranks, so pieces gain nothing.
    fn pieces(self, size: u32) -> u32 {
        match self {
            Self::Double if size > 2 => 4 * size.next_power_of_two().ilog2(),
            Self::Binomial | Self::Double => 1,
        }
    }

    /// Number of chunks. The pair's two trees take chunks in turn.
    fn chunks(self, size: u32) -> u32 {
        self.count() * self.pieces(size)
    }

    /// The node of a place; places are counted from the root.
    fn node(self, size: u32, at: u32, tree: u32) -> Node {
        match (self, tree) {
            (Self::Binomial, _) => binomial(size, at),
            (Self::Double, 0) => binary(size, at),
            (Self::Double, _) => shifted(size, at),
        }
    }

    /// A rank's node in each tree, in ranks, and its level: the number of edges to the root.
    fn nodes(self, size: u32, me: u32, root: u32) -> Vec<(i64, Node)> {
        let at = (size + me - root) % size;
        let rank = |at: u32| (root + at) % size;
        let in_tree = |tree| {
            let Node { parent, children } = self.node(size, at, tree);
            let children = children.into_iter().map(|(child, order)| (rank(child), order));
            let node = Node { parent: parent.map(rank), children: children.collect() };
            let above = |&at: &u32| self.node(size, at, tree).parent;
            let level = core::iter::successors(Some(at), above).skip(1).count();
            (level as i64, node)
        };
        (0..self.count()).map(in_tree).collect()
    }
}

/// The time at which a part of a schedule is made: the period, and the turn within it.
type Period = (i64, i64);

/// A rank's parts of a schedule, and the number of chunks.
struct Rank {
    me: u32,
    chunks: u32,
    parts: Vec<(Period, Schedule)>,
}

impl Rank {
    /// The schedule of rank `me`. In each period one piece goes over each edge. A rank sends as a
    /// leaf first, since it waits for none, and receives as a leaf last, since none waits for it.
    fn schedule(trees: Trees, collective: Collective, size: u32, me: u32) -> Option<Schedule> {
        let chunks = trees.chunks(size);
        let mut rank = Self { me, chunks, parts: Vec::new() };
        let root = match collective {
            Collective::Broadcast { root } | Collective::Reduce { root } => root,
            Collective::AllReduce => 0,
            // A barrier's token is one piece.
            Collective::Barrier if trees == Trees::Binomial => 0,
            _ => return None,
        };
        let nodes = trees.nodes(size, me, root);
        for chunk in 0..chunks {
            let piece = i64::from(chunk / trees.count());
            let (level, node) = &nodes[(chunk % trees.count()) as usize];
            let inside = node.children.len() as i64;
            let (up, down) = ((piece - level, inside), (piece + level, i64::MAX - inside));
            let result = Place::output(chunk);
            if matches!(collective, Collective::Broadcast { .. }) {
                rank.parts.push((down, rank.down(chunk, node, Place::input(chunk))));
            } else if matches!(collective, Collective::Reduce { .. }) {
                let sum = if node.parent.is_none() { result } else { Place::scratch(0) };
                rank.parts.push((up, rank.up(chunk, node, sum)));
            } else if node.parent.is_none() {
                let reduce = rank.up(chunk, node, result);
                let spread = rank.down(chunk, node, result);
                rank.parts.push((up, fuse(reduce, spread)));
            } else {
                rank.parts.push((up, rank.up(chunk, node, result)));
                rank.parts.push((down, rank.down(chunk, node, result)));
            }
        }
        rank.parts.sort_by_key(|&(when, _)| when);
        let parts = rank.parts.into_iter().map(|(_, part)| part);
        Some(parts.fold(Schedule::new(chunks, chunks), fuse))
    }

    /// Receives from the children, with partial sums at `sum`, and sends the sum to the parent.
    fn up(&self, chunk: u32, node: &Node, sum: Place) -> Schedule {
        let (me, mine) = (self.me, Place::input(chunk));
        let mut steps = Vec::with_capacity(node.children.len() + 1);
        let mut src = mine;
        for (at, &(child, order)) in (1..).zip(&node.children) {
            let is_last = at == node.children.len();
            let fold = match node.parent.filter(|_| is_last) {
                Some(parent) => Step::new(Op::RecvReduceSend, me, src).to(parent),
                None => Step::new(Op::RecvReduceCopy, me, src).into(sum).last(is_last),
            };
            steps.push(fold.from(child).order(order));
            src = sum;
        }
        if node.children.is_empty() {
            steps.push(match node.parent {
                Some(parent) => Step::new(Op::Send, me, mine).to(parent),
                None => Step::new(Op::Copy, me, mine).into(sum),
            });
        }
        let waits = sum.space == Space::Scratch && node.children.len() > 1;
        let scratch = if waits { vec![mine] } else { Vec::new() };
        Schedule { scratch, steps, ..Schedule::new(self.chunks, self.chunks) }
    }

    /// Receives from the parent (the root takes `mine`) and sends to the children, in the reverse
    /// order of their folds: the largest subtree of a binomial tree comes first.
    fn down(&self, chunk: u32, node: &Node, mine: Place) -> Schedule {
        let (me, result) = (self.me, Place::output(chunk));
        let mut steps = Vec::with_capacity(node.children.len() + 1);
        let mut children = node.children.iter().rev().map(|&(child, _)| child);
        let first = children.next();
        match (node.parent, first) {
            (Some(parent), Some(child)) => {
                steps.push(Step::new(Op::RecvCopySend, me, result).from(parent).to(child));
            }
            (Some(parent), None) => steps.push(Step::new(Op::Recv, me, result).from(parent)),
            (None, child) => {
                steps.extend(child.map(|child| Step::new(Op::Send, me, mine).to(child)));
                let copy = Step::new(Op::Copy, me, mine).into(result);
                steps.extend((mine != result).then_some(copy));
            }
        }
        let src = if node.parent.is_none() { mine } else { result };
        steps.extend(children.map(|child| Step::new(Op::Send, me, src).to(child)));
        Schedule { steps, ..Schedule::new(self.chunks, self.chunks) }
    }
}

/// The buffer once over every edge of the trees, in each direction in which it goes.
fn volume(trees: Trees, collective: Collective, size: u32) -> Option<Volume> {
    let (edges, pieces) = (u64::from(size - 1), u64::from(trees.pieces(size)));
    let depth = u64::from(size.next_power_of_two().ilog2());
    let [most, total] = match (trees, collective) {
        (Trees::Binomial, Collective::Broadcast { .. }) => [depth, edges],
        (Trees::Binomial, Collective::Reduce { .. }) => [edges.min(1), edges],
        (Trees::Binomial, Collective::AllReduce | Collective::Barrier) => [depth, 2 * edges],
        (Trees::Double, Collective::Broadcast { .. } | Collective::Reduce { .. }) => {
            [edges.min(1) * 2, 2 * edges]
        }
        (Trees::Double, Collective::AllReduce) => [4.min(edges + 1).min(4 * edges), 4 * edges],
        _ => return None,
    };
    Some(Volume { most: most * pieces, total: total * pieces })
}

/// The closed form, with chunks of m bytes, a step's s = o + mb, a reducing step's r = s + mg,
/// latency a, k = log2 n rounded down and K rounded up. Binomial: Ks + s + ka down, Kr + s + ka up.
///
/// The pair: the first piece costs 2s + a per level down and 2r + a per level up, and the root has
/// to serve two trees. Every other piece adds the work of a rank for one piece of each tree, 3s
/// down and s + 2r up, or, if that is more, the wait: for D levels (1 - 1/D)(a + 2s) down, with r
/// up, both ways (1 - 1/2D)(a + 2r). The result is within -6 and +20 % of a walk. Of m bytes, m
/// large, it takes 1.5mb down, 1.5mb + mg up and 3mb + mg both ways, whatever n is.
fn cost(trees: Trees, collective: Collective, size: u32, bytes: f64, speed: &Speed) -> Option<f64> {
    let bytes = bytes / f64::from(trees.count());
    let pieces = (bytes / MIN_PIECE as f64).ceil().clamp(1.0, f64::from(trees.pieces(size)));
    let chunk = bytes / pieces;
    let (s, r, a) = (speed.moved(chunk), speed.folded(chunk), speed.latency);
    let (full, depth) = (f64::from(size.ilog2()), f64::from(size.next_power_of_two().ilog2()));
    // Among three ranks, none has two children.
    let two = if size > 3 { 2.0 } else { 1.0 };
    let levels = 2.0 + f64::from(size.saturating_sub(2).checked_ilog2().unwrap_or(0));
    let waits = |ways: f64, step: f64| (a + 2.0 * step) * (1.0 - 1.0 / (ways * levels));
    match (trees, collective) {
        (Trees::Binomial, Collective::Broadcast { .. }) => Some((depth + 1.0) * s + full * a),
        (Trees::Binomial, Collective::Reduce { .. }) => Some(s + depth * r + full * a),
        (Trees::Binomial, Collective::AllReduce | Collective::Barrier) => {
            Some((depth + 1.0) * s + depth * r + 2.0 * full * a)
        }
        (Trees::Double, Collective::Broadcast { .. }) => {
            let first = (s + down(size, 1.0, s, a)).max(2.0 * s + down(size - 1, 2.0, s, a));
            Some(first + (pieces - 1.0) * ((1.0 + two) * s).max(waits(1.0, s)))
        }
        (Trees::Double, Collective::Reduce { .. }) => {
            let first = s + down(size, 1.0, r, a);
            let first = first.max(s + down(size - 1, 2.0, r, a) - r) + r;
            Some(first + (pieces - 1.0) * (two * r + s).max(2.0 * r).max(waits(1.0, r)))
        }
        (Trees::Double, Collective::AllReduce) => {
            let first = s + down(size, 1.0, r, a);
            let second = first.max(s + down(size - 1, 2.0, r, a) - r) + r;
            let first = (first + down(size, 1.0, s, a)).max(second + down(size - 1, 2.0, s, a));
            Some(first + (pieces - 1.0) * (two * r + (two + 2.0) * s).max(waits(2.0, r)))
        }
        _ => None,
    }
}

/// Seconds from the root's first send to the last leaf's receipt, or from the leaves' sends to the
/// root's receipt: over `above` edges with one child each, then two children per node, except that
/// the last leaf may be an only child.
fn down(size: u32, above: f64, step: f64, a: f64) -> f64 {
    let Some(levels) = (size - 1).checked_ilog2() else { return (above - 1.0) * (a + step) };
    let alone = levels > 0 && (size - 1).is_power_of_two();
    let twice = f64::from(levels) * 2.0 - f64::from(u8::from(alone));
    (above + f64::from(levels)) * a + (above + twice) * step
}

#[cfg(test)]
mod tests {
    use super::{MIN_PIECE, Rank, Trees, WINDOW};
    use crate::partition::{Partition, SlotShape};
    use crate::schedule::Collective;
    use crate::sim::{Shape, Speed, cost};

    /// Seconds of a simulated walk of the pair, with `slices` slices of MIN_PIECE bytes per chunk.
    fn walk(collective: Collective, size: u32, slices: usize, slots: usize, speed: Speed) -> f64 {
        let all = (0..size).map(|me| Rank::schedule(Trees::Double, collective, size, me).unwrap());
        let shape = SlotShape { bytes: MIN_PIECE, capacity: 2 * slices };
        let partition = [Partition::exact(slices * MIN_PIECE, 1, shape)];
        let shape = Shape::of(&partition, slots);
        cost(collective, &all.collect::<Vec<_>>(), &shape, speed).unwrap()
    }

    #[test]
    fn the_pairs_closed_form_is_close_to_a_walk() {
        let speed = |latency, step, byte, reduce| {
            let each = MIN_PIECE as f64;
            Speed { latency, step, byte: byte / each, reduce: reduce / each }
        };
        for size in (2..=33).chain([64, 100, 500]) {
            for latency in [0.0, 0.5, 2.0, 6.0, 20.0, 100.0] {
                for speed in [speed(latency, 0.2, 0.8, 0.0), speed(latency, 0.0, 1.0, 0.7)] {
                    let (down, up) =
                        (Collective::Broadcast { root: 1 }, Collective::Reduce { root: 0 });
                    for collective in [Collective::AllReduce, down, up] {
                        let walk = walk(collective, size, 1, 200, speed);
                        let bytes = MIN_PIECE as f64 * f64::from(Trees::Double.chunks(size));
                        let form = super::cost(Trees::Double, collective, size, bytes, &speed);
                        let ratio = form.unwrap() / walk;
                        assert!((0.94..1.2).contains(&ratio), "{size} {speed:?}: {ratio}");
                    }
                }
            }
        }
    }

    /// Without pieces, the ratio would be twice the number of levels, 19 and more.
    #[test]
    fn pieces_follow_each_other_down_the_pair() {
        let speed = Speed { latency: 0.0, step: 0.0, byte: 1.0, reduce: 0.0 };
        for size in [16, 64, 500, 1000] {
            for slices in [1, 2, 4] {
                let bytes = (slices * MIN_PIECE) as f64 * f64::from(Trees::Double.chunks(size));
                let times =
                    walk(Collective::AllReduce, size, slices, WINDOW * slices, speed) / bytes;
                assert!((3.0..3.6).contains(&times), "{size} ranks, {slices} slices: {times}");
            }
        }
    }
}
