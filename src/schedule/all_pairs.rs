//! All pairs: each rank sends what the others need straight to them, in one hop, and folds in rank
//! order. Two-shot is its reduce-scatter fused with its all-gather, or with a gather at the root.
//!
//! Source: the direct algorithms of Thakur, Rabenseifner and Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19 (2005); one-shot and two-shot as in MSCCL++.
//! Cost, messages of m bytes, a step's s = o + mb, f = s + mg: all-reduce, barrier and
//! reduce-scatter ns + a + (n-1)f, of two ranks s less; all-gather ns + max(a, (n-2)s); broadcast
//! ns + a; two-shot its two halves, of two ranks s less; its reduce: `two_shot_reduce_cost`.
//! # Example
//!
//! An all-reduce of four ranks in one hop. Ranks 2 and 3 keep the sum in the scratch until the turn
//! of their own contribution:
//!
//! ```text
//!     rank 0        rank 1        rank 2        rank 3
//! 1   0: a > 1      0: b > 2      0: c > 3      0: d > 0
//! 2   0: a > 2      0: b > 3      0: c > 0      0: d > 1
//! 3   0: a > 3      0: b > 0      0: c > 1      0: d > 2
//! 4   0 = a+b       0 = a+b       s0 = a        s0 = a
//! 5   0 = a+b+c     0 = a+b+c     s0 = a+b      s0 = a+b
//! 6   0 = a+b+c+d   0 = a+b+c+d   s0 = a+b+c    s0 = a+b+c
//! 7                               0 = a+b+c+d   0 = d
//! 8                                             0 = a+b+c+d
//! ```

use super::{
    Collective, Definition, Op, Order, Place, ReadOrder, RequiredLinks, Ring, Schedule, Space,
    Step, Volume, fuse_halves,
};
use crate::sim::Speed;

pub(super) const ALL_PAIRS: Definition = Definition {
    name: "all_pairs",
    read_order: ReadOrder::Sequential,
    links: RequiredLinks::AllPairs,
    chunks: |collective, order| collective.blocks(order.size()),
    schedule,
    volume,
    cost,
    ..Definition::DEFAULT
};

// The ranks of a direct call share memory and send no messages.
pub(super) const DIRECT: Definition =
    Definition { name: "direct", links: RequiredLinks::EveryWorld, ..ALL_PAIRS };

pub(super) const TWO_SHOT: Definition = Definition {
    name: "two_shot",
    read_order: ReadOrder::Sequential,
    links: RequiredLinks::AllPairs,
    chunks: |_, order| order.size(),
    schedule: |collective, order, me| match collective {
        Collective::AllReduce => Some(two_shot(order.size(), me)),
        Collective::Reduce { root } => Some(two_shot_reduce(order.size(), me, root)),
        _ => None,
    },
    volume: |collective, order| match collective {
        // As much as the ring.
        Collective::AllReduce => Some(collective.volume(order)),
        Collective::Reduce { .. } => Some(two_shot_reduce_volume(order.size().into())),
        _ => None,
    },
    cost: |collective, order, bytes, speed| match collective {
        Collective::AllReduce => two_shot_cost(order, bytes, speed),
        Collective::Reduce { root } => Some(two_shot_reduce_cost(order.size(), root, bytes, speed)),
        _ => None,
    },
    ..Definition::DEFAULT
};

fn schedule(collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
    let size = order.size();
    Some(match collective {
        Collective::AllReduce | Collective::Barrier => all_reduce(size, me),
        Collective::ReduceScatter => reduce_scatter(size, me),
        Collective::AllGather => all_gather(size, me),
        Collective::Broadcast { root } => broadcast(size, me, root),
        _ => return None,
    })
}

/// The other ranks, the next one first, so that not all ranks send to rank 0 at once.
pub(super) fn others(size: u32, me: u32) -> impl DoubleEndedIterator<Item = u32> {
    (1..size).map(move |hops| (me + hops) % size)
}

/// One chunk to each other rank, from `place` of that rank's number.
pub(super) fn sends(
    size: u32,
    me: u32,
    place: impl Fn(u32) -> Place,
) -> impl Iterator<Item = Step> {
    others(size, me).map(move |to| Step::new(Op::Send, me, place(to)).to(to))
}

/// The chunk of each other rank, the previous rank's first, because it was sent first.
pub(super) fn receives(size: u32, me: u32) -> impl Iterator<Item = Step> {
    let receive = move |from| Step::new(Op::Recv, me, Place::output(from)).from(from);
    others(size, me).rev().map(receive)
}

/// One chunk, from every rank to every other.
fn all_reduce(size: u32, me: u32) -> Schedule {
    let mine = Place::input(0);
    fold(sends(size, me, |_| mine), size, me, mine, Schedule::new(1, 1))
}

/// Chunk r goes to rank r.
fn reduce_scatter(size: u32, me: u32) -> Schedule {
    fold(sends(size, me, Place::input), size, me, Place::input(me), Schedule::new(size, 1))
}

/// The sends, then ((r0 + r1) + r2) + .. of the incoming chunks and `mine`, into output chunk 0.
/// Ranks 0 and 1 begin with their own contribution; other ranks need theirs in the middle and keep
/// it until then.
fn fold(
    sends: impl Iterator<Item = Step>,
    size: u32,
    me: u32,
    mine: Place,
    empty: Schedule,
) -> Schedule {
    let mut steps: Vec<Step> = sends.collect();
    let (result, partial) = (Place::output(0), Place::scratch(0));
    let take = |from, src| {
        let order = if from < me { Order::IncomingFirst } else { Order::LocalFirst };
        let step = Step::new(Op::RecvReduceCopy, me, src).from(from).order(order);
        step.last(from + 1 == size)
    };
    if size == 1 {
        steps.push(Step::new(Op::Copy, me, mine).into(result));
    } else if me < 2 {
        let first = Step { last: size == 2, ..take(1 - me, mine) };
        steps.push(first.into(result));
        steps.extend((2..size).map(|from| take(from, result)));
    } else {
        steps.push(Step::new(Op::Recv, me, partial).from(0));
        let before = (1..me).map(|from| take(from, partial).order(Order::LocalFirst));
        steps.extend(before);
        if me + 1 == size {
            steps.push(Step::new(Op::Copy, me, mine).into(result));
            steps.push(Step::new(Op::ReduceCopy, me, partial).into(result).last(true));
        } else {
            let own = Step::new(Op::ReduceCopy, me, mine).into(partial);
            steps.push(own.order(Order::LocalFirst));
            let last = |from| if from + 1 == size { result } else { partial };
            steps.extend((me + 1..size).map(|from| take(from, partial).into(last(from))));
        }
        return Schedule { scratch: vec![result], steps, ..empty };
    }
    Schedule { steps, ..empty }
}

/// Sends one chunk to each rank and receives one from each.
fn all_gather(size: u32, me: u32) -> Schedule {
    let mine = Place::input(0);
    let mut steps = Vec::with_capacity(2 * size as usize - 1);
    steps.extend(sends(size, me, |_| mine));
    steps.push(Step::new(Op::Copy, me, mine).into(Place::output(me)));
    steps.extend(receives(size, me));
    Schedule { steps, ..Schedule::new(1, size) }
}

fn broadcast(size: u32, me: u32, root: u32) -> Schedule {
    let (mine, result) = (Place::input(0), Place::output(0));
    let mut steps = Vec::new();
    if me == root {
        steps.extend(sends(size, me, |_| mine));
        steps.push(Step::new(Op::Copy, me, mine).into(result));
    } else {
        steps.push(Step::new(Op::Recv, me, result).from(root));
    }
    Schedule { steps, ..Schedule::new(1, 1) }
}

/// An all-reduce in two hops, with one chunk per rank.
fn two_shot(size: u32, me: u32) -> Schedule {
    fuse_halves(reduce_scatter(size, me), all_gather(size, me), me)
}

/// A reduce in two hops: each rank reduces one chunk and sends the result to the root, which
/// receives the chunks in rank order. Other ranks have no result, so theirs goes through scratch.
fn two_shot_reduce(size: u32, me: u32, root: u32) -> Schedule {
    let scatter = reduce_scatter(size, me);
    let unused = Place::scratch(scatter.scratch.len() as u32);
    let result = if me == root { Place::output(me) } else { unused };
    let mut reduce = scatter.moved(size, size, |place| match place.space {
        Space::Output => result,
        Space::Input | Space::Scratch => place,
    });
    reduce.scratch.fill(Place::input(me));
    let steps = &mut reduce.steps;
    if me == root {
        let from = (0..size).filter(|&rank| rank != me);
        steps.extend(from.map(|rank| Step::new(Op::Recv, me, Place::output(rank)).from(rank)));
    } else if let Some(last) = steps.last_mut().filter(|step| step.op == Op::RecvReduceCopy) {
        (last.op, last.dst, last.to) = (Op::RecvReduceSend, last.src, root);
    } else {
        // The last rank folds its own contribution last: not at its result, which it need not copy.
        steps.truncate(steps.len() - 2);
        let (mine, partial) = (Place::input(me), Place::scratch(0));
        let own = Step::new(Op::ReduceCopy, me, mine).into(partial).order(Order::LocalFirst);
        steps.extend([own.last(true), Step::new(Op::Send, me, partial).to(root)]);
    }
    if steps.iter().any(|step| step.src == unused || step.dst == unused) {
        reduce.scratch.push(Place::input(me));
    }
    reduce
}

/// A chunk of each rank to every other, and then its result to the root.
fn two_shot_reduce_volume(n: u64) -> Volume {
    let most = if n == 1 { 0 } else { n };
    Volume { most, total: (n + 1) * (n - 1) }
}

/// Each rank sends a chunk to every other; in a broadcast the root alone does.
fn volume(collective: Collective, order: &Ring) -> Option<Volume> {
    let n = u64::from(order.size());
    let hops = n - 1;
    match collective {
        Collective::Broadcast { .. } => Some(Volume { most: hops, total: hops }),
        Collective::AllReduce
        | Collective::Barrier
        | Collective::ReduceScatter
        | Collective::AllGather => Some(Volume { most: hops, total: n * hops }),
        _ => None,
    }
}

/// The closed form in the file's header. `size` is not 1.
fn cost(collective: Collective, order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let n = f64::from(size);
    Some(match collective {
        Collective::AllReduce | Collective::Barrier => folds(size, bytes, speed),
        Collective::ReduceScatter => folds(size, bytes / n, speed),
        Collective::AllGather => {
            let s = speed.moved(bytes / n);
            n * s + speed.latency.max((n - 2.0) * s)
        }
        Collective::Broadcast { .. } => n * speed.moved(bytes) + speed.latency,
        _ => return None,
    })
}

/// The time of the last rank, which ends last: it folds rank 0's chunk first, which rank 0 sends
/// last; and it stores that chunk before it can fold.
fn folds(size: u32, message: f64, speed: &Speed) -> f64 {
    let first = if size == 2 { 1 } else { size };
    let folds = f64::from(size - 1) * speed.folded(message);
    f64::from(first) * speed.moved(message) + speed.latency + folds
}

/// The closed form of two-shot's all-reduce.
fn two_shot_cost(order: &Ring, bytes: f64, speed: &Speed) -> Option<f64> {
    let size = order.size();
    let halves = [Collective::ReduceScatter, Collective::AllGather];
    let [scatter, gather] = halves.map(|half| cost(half, order, bytes, speed));
    // Of two ranks, each sends what it folds last in one fused step.
    let seam = if size == 2 { speed.moved(bytes / 2.0) } else { 0.0 };
    Some(scatter? + gather? - seam)
}

/// The time of two-shot's reduce: the root, once it has folded its own chunk, receives those of the
/// other ranks one after the other. `size` is not 1.
fn two_shot_reduce_cost(size: u32, root: u32, bytes: f64, speed: &Speed) -> f64 {
    let (n, message) = (f64::from(size), bytes / f64::from(size));
    let (s, f, a) = (speed.moved(message), speed.folded(message), speed.latency);
    // When rank `me` has sent n-1 chunks and folded n-1: rank 0's comes after `me` steps, that of
    // the next rank after n-1.
    let folded = |me: u32| {
        let (before, sent) = (f64::from(me), (n - 1.0) * s);
        let first = match me {
            0 => sent,
            1 => sent.max(s + a) + f,
            _ => sent.max(before * s + a) + s + before * f,
        };
        let next = if me + 1 == size { 0.0 } else { sent + a };
        first.max(next) + (n - 1.0 - before) * f
    };
    let others = (0..size).filter(|&rank| rank != root);
    others.fold(folded(root), |time, rank| {
        // The last one of three ranks or more sends in a step of its own.
        let send = if rank > 1 && rank + 1 == size { s } else { 0.0 };
        time.max(folded(rank) + send + a) + s
    })
}
