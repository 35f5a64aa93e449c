//! Trees: a rank has everything from its parent and gives it to its children, or the other way
//! round. Binomial ones, and pairs of binary ones, each over half of the buffer, in which a leaf of
//! one is inside the other. May touch: sim's Speed.
//!
//! Sources: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005); Sanders, Speck and Traeff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009); the
//! binary trees are numbered as NCCL's. A rank is sequential, and slices are inside steps: a piece
//! goes on to one child while it comes in, to the other after that, and no round's piece overtakes
//! another's. So there is no pipeline down the tree, and trees are for few slices. Costs: `cost`.

use core::cmp::Reverse;

use super::{Collective, Op, Order, Place, Ring, Schedule, Space, Step, Volume, fuse};
use crate::sim::Speed;

/// A rank's place in a tree; `None` above the root. Children stand in the order in which they are
/// folded, with the order of the operands: what is before me in the ring's order from the root on
/// stays on my left.
struct Node {
    parent: Option<u32>,
    children: Vec<(u32, Order)>,
}

/// The binomial tree over `size` places. Below a place are those that differ from it in zeros at
/// the end: the children's are consecutive.
fn binomial(size: u32, at: u32) -> Node {
    let ends = if at == 0 { u32::BITS } else { at.trailing_zeros() };
    let child = |k: u32| 1u32.checked_shl(k).map(|bit| at + bit).filter(|&child| child < size);
    let children = (0..ends).map_while(child).map(|child| (child, Order::LocalFirst)).collect();
    Node { parent: (at > 0).then(|| at & (at - 1)), children }
}

/// The binary tree over `size` places, sorted, with place 0 on top of it: odd places are leaves.
fn binary(size: u32, at: u32) -> Node {
    if at == 0 {
        let top = (size > 1).then(|| (1 << (size - 1).ilog2(), Order::LocalFirst));
        return Node { parent: None, children: top.into_iter().collect() };
    }
    let bit = 1 << at.trailing_zeros();
    let (low, high) = (at - bit, (at - bit) | (bit << 1));
    let before = (bit > 1).then(|| (at - bit / 2, Order::IncomingFirst));
    let halves = core::iter::successors(Some(bit / 2), |half| Some(half / 2));
    let after = halves.take_while(|&half| half > 0).map(|half| at + half).find(|&it| it < size);
    let children = before.into_iter().chain(after.map(|it| (it, Order::LocalFirst))).collect();
    Node { parent: Some(if high < size { high } else { low }), children }
}

/// The other of the pair: the same over all places but 0, which is on top of it. Here the even ones
/// are leaves.
fn shifted(size: u32, at: u32) -> Node {
    let next = |it: u32| it + 1;
    match at.checked_sub(1) {
        Some(at) => {
            let Node { parent, children } = binary(size - 1, at);
            let children = children.into_iter().map(|(child, order)| (next(child), order));
            Node { parent: Some(parent.map_or(0, next)), children: children.collect() }
        }
        None => Node {
            parent: None,
            children: (size > 1).then_some((1, Order::LocalFirst)).into_iter().collect(),
        },
    }
}

/// The trees that a schedule goes by, one per chunk.
#[derive(Clone, Copy)]
pub(super) enum Trees {
    Binomial,
    Double,
}

impl Trees {
    fn chunks(self) -> u32 {
        match self {
            Self::Binomial => 1,
            Self::Double => 2,
        }
    }

    /// Where `me` is in the tree of this chunk, in ranks.
    fn node(self, order: &Ring, me: u32, root: u32, chunk: u32) -> Node {
        let at = order.hops(root, me);
        let Node { parent, children } = match (self, chunk) {
            (Self::Binomial, _) => binomial(order.size(), at),
            (Self::Double, 0) => binary(order.size(), at),
            (Self::Double, _) => shifted(order.size(), at),
        };
        let rank = |at: u32| order.after(root, i64::from(at));
        let children = children.into_iter().map(|(child, order)| (rank(child), order)).collect();
        Node { parent: parent.map(rank), children }
    }

    /// Where `me` is in all trees.
    fn nodes(self, order: &Ring, me: u32, root: u32) -> Vec<(u32, Node)> {
        (0..self.chunks()).map(|chunk| (chunk, self.node(order, me, root, chunk))).collect()
    }

    fn join(self, parts: impl IntoIterator<Item = Schedule>) -> Schedule {
        parts.into_iter().fold(Schedule::new(self.chunks(), self.chunks()), fuse)
    }

    /// Everybody's input, reduced, at the root. What a leaf gives makes nobody wait.
    fn reduce(self, order: &Ring, me: u32, root: u32) -> Schedule {
        let mut nodes = self.nodes(order, me, root);
        nodes.sort_by_key(|(_, node)| node.children.len());
        self.join(nodes.iter().map(|(chunk, node)| self.up(me, *chunk, node)))
    }

    /// The root's input at everybody. For what a leaf is given nobody waits.
    fn broadcast(self, order: &Ring, me: u32, root: u32) -> Schedule {
        let mut nodes = self.nodes(order, me, root);
        nodes.sort_by_key(|(_, node)| Reverse(node.children.len()));
        self.join(nodes.iter().map(|(chunk, node)| self.down(me, *chunk, node)))
    }

    /// To rank 0 and back, fused where it turns.
    fn all_reduce(self, order: &Ring, me: u32) -> Schedule {
        let back = |schedule: Schedule| {
            schedule.moved(self.chunks(), self.chunks(), |place| match place.space {
                Space::Input => Place::output(place.chunk),
                Space::Output | Space::Scratch => place,
            })
        };
        if me > 0 {
            return fuse(self.reduce(order, me, 0), back(self.broadcast(order, me, 0)));
        }
        // The root turns one tree's at a time.
        self.join(self.nodes(order, me, 0).iter().map(|(chunk, node)| {
            fuse(self.up(me, *chunk, node), back(self.down(me, *chunk, node)))
        }))
    }

    /// From the children to the parent.
    fn up(self, me: u32, chunk: u32, node: &Node) -> Schedule {
        let (mine, result) = (Place::input(chunk), Place::output(chunk));
        let mut parts = Schedule::new(self.chunks(), self.chunks());
        let Some((last, others)) = node.children.split_last() else {
            parts.steps.push(match node.parent {
                Some(parent) => Step::new(Op::Send, me, mine).to(parent),
                None => Step::new(Op::Copy, me, mine).into(result),
            });
            return parts;
        };
        let sum = if node.parent.is_none() { result } else { Place::scratch(0) };
        if node.parent.is_some() && !others.is_empty() {
            parts.scratch.push(mine);
        }
        let mut src = mine;
        for &(child, order) in others {
            let fold = Step::new(Op::RecvReduceCopy, me, src).into(sum).from(child);
            parts.steps.push(fold.order(order));
            src = sum;
        }
        let &(child, order) = last;
        let fold = match node.parent {
            Some(parent) => Step::new(Op::RecvReduceSend, me, src).to(parent),
            None => Step::new(Op::RecvReduceCopy, me, src).into(result).last(true),
        };
        parts.steps.push(fold.from(child).order(order));
        parts
    }

    /// From the parent to the children, those first that others wait for.
    fn down(self, me: u32, chunk: u32, node: &Node) -> Schedule {
        let (mine, result) = (Place::input(chunk), Place::output(chunk));
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
                steps.push(Step::new(Op::Copy, me, mine).into(result));
            }
        }
        let src = if node.parent.is_none() { mine } else { result };
        steps.extend(children.map(|child| Step::new(Op::Send, me, src).to(child)));
        Schedule { steps, ..Schedule::new(self.chunks(), self.chunks()) }
    }
}

/// The schedule of rank `me`.
pub(super) fn schedule(
    trees: Trees,
    collective: Collective,
    order: &Ring,
    me: u32,
) -> Option<Schedule> {
    match collective {
        Collective::AllReduce | Collective::Barrier => Some(trees.all_reduce(order, me)),
        Collective::Broadcast { root } => Some(trees.broadcast(order, me, root)),
        _ => None,
    }
}

/// What these schedules send: the buffer once over every edge of the trees, each way that it goes.
pub(super) fn volume(trees: Trees, collective: Collective, size: u32) -> Option<Volume> {
    let edges = u64::from(size - 1);
    let deep = u64::from(size.next_power_of_two().ilog2());
    let [most, total] = match (trees, collective) {
        (Trees::Binomial, Collective::Broadcast { .. }) => [deep, edges],
        (Trees::Binomial, Collective::AllReduce | Collective::Barrier) => [deep, 2 * edges],
        (Trees::Double, Collective::Broadcast { .. }) => [edges.min(1) * 2, 2 * edges],
        (Trees::Double, Collective::AllReduce | Collective::Barrier) => {
            [4.min(edges + 1).min(4 * edges), 4 * edges]
        }
        _ => return None,
    };
    Some(Volume { most, total })
}

/// The closed form, with chunks of m bytes, a step's s = o + mb, a reducing one's r = s + mg,
/// latency a, k = log2 n rounded down and K rounded up. Binomial: Ks + s + ka down, Kr + s + ka up.
/// The pair: each of the levels costs 2s + a down, 2r + a up, and the root has two trees' to do.
pub(super) fn cost(
    trees: Trees,
    collective: Collective,
    size: u32,
    bytes: f64,
    speed: &Speed,
) -> Option<f64> {
    let chunk = bytes / f64::from(trees.chunks());
    let (s, r, a) = (speed.moved(chunk), speed.folded(chunk), speed.latency);
    let (full, deep) = (f64::from(size.ilog2()), f64::from(size.next_power_of_two().ilog2()));
    match (trees, collective) {
        (Trees::Binomial, Collective::Broadcast { .. }) => Some((deep + 1.0) * s + full * a),
        (Trees::Binomial, Collective::AllReduce | Collective::Barrier) => {
            Some((deep + 1.0) * s + deep * r + 2.0 * full * a)
        }
        (Trees::Double, Collective::Broadcast { .. }) => {
            Some((s + down(size, 1.0, s, a)).max(2.0 * s + down(size - 1, 2.0, s, a)))
        }
        (Trees::Double, Collective::AllReduce | Collective::Barrier) => {
            let first = s + down(size, 1.0, r, a);
            let second = first.max(s + down(size - 1, 2.0, r, a) - r) + r;
            Some((first + down(size, 1.0, s, a)).max(second + down(size - 1, 2.0, s, a)))
        }
        _ => None,
    }
}

/// Seconds from the root's giving to the last leaf's having, or from the leaves' giving to the
/// root's having: over `above` edges of one child each, then two at a time, but that the last may
/// stand alone below the top.
fn down(size: u32, above: f64, step: f64, a: f64) -> f64 {
    let Some(levels) = (size - 1).checked_ilog2() else { return (above - 1.0) * (a + step) };
    let alone = levels > 0 && (size - 1).is_power_of_two();
    let twice = f64::from(levels) * 2.0 - f64::from(u8::from(alone));
    (above + f64::from(levels)) * a + (above + twice) * step
}

#[cfg(test)]
mod tests {
    use super::{Node, binary, binomial, shifted};

    /// Who has whom as a child has that one as its parent, and everybody but the root has one.
    fn is_a_tree(size: u32, node: impl Fn(u32) -> Node) {
        let mut children: Vec<u32> = Vec::new();
        for at in 0..size {
            for (child, _) in node(at).children {
                assert_eq!(node(child).parent, Some(at), "{child} of {size}");
                children.push(child);
            }
        }
        children.sort_unstable();
        assert_eq!(children, (1..size).collect::<Vec<_>>());
        assert_eq!(node(0).parent, None);
    }

    #[test]
    fn trees_are_trees() {
        for size in 1..=200 {
            is_a_tree(size, |at| binomial(size, at));
            is_a_tree(size, |at| binary(size, at));
            is_a_tree(size, |at| shifted(size, at));
        }
    }

    /// What makes two trees twice as good as one: no rank but the root has children in both.
    #[test]
    fn a_leaf_of_one_is_inside_the_other() {
        for size in 3..=200 {
            for at in 1..size {
                let [one, other] = [binary(size, at), shifted(size, at)].map(|n| n.children.len());
                assert!(one == 0 || other == 0, "{at} of {size}: {one} and {other}");
                assert!(one + other <= 2);
            }
        }
    }
}
