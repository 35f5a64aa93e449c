//! Plans: which schedule a call walks, how its buffer is cut, and the fingerprint by which ranks
//! notice that they make different calls. May touch: element, partition, schedule. Pure.
//!
//! Schedules depend on the ring alone and are made once. Cutting is arithmetic, remembered for one
//! call: training repeats a few, and small ones back to back are those where it shows.

use std::collections::BTreeSet;

use crate::element::{DataType, ReduceOp};
use crate::partition::{Partition, SlotShape};
use crate::schedule::{Collective, Ring, Schedule};

/// A call, as its arguments describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is called.
    pub collective: Collective,
    /// Elements of the buffer; for reduce-scatter and all-gather, of one rank's chunk.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// How they reduce, if they do.
    pub op: Option<ReduceOp>,
}

/// What to walk for a call.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The steps.
    pub schedule: &'a Schedule,
    /// How the buffer is cut.
    pub partition: Partition<'a>,
    /// Equal on two ranks only if they make the same call.
    pub fingerprint: u64,
}

/// One rank's plans.
#[derive(Debug)]
pub struct Planner {
    ring: Ring,
    me: u32,
    slots: SlotShape,
    least_chunk: usize,
    all_reduce: Schedule,
    reduce_scatter: Schedule,
    all_gather: Schedule,
    barrier: Schedule,
    /// The last root's, and the root.
    broadcast: (u32, Schedule),
    /// The last call, how its buffer was cut, and its fingerprint.
    last: Option<(Request, Partition<'static>, u64)>,
    /// A digest of what all calls go by: the order of the ring and the least chunk.
    way: u64,
}

impl Planner {
    /// For rank `me` of a ring whose links have slots of this shape; chunks of less than
    /// `least_chunk` bytes are not worth a message.
    ///
    /// # Panics
    /// If the shape breaks the capacity law: fused steps would wait for ever.
    #[must_use]
    pub fn new(ring: Ring, me: u32, slots: SlotShape, least_chunk: usize) -> Self {
        assert!(slots.capacity > slots.slices_per_round(), "links of {} slots", slots.capacity);
        Self {
            me,
            slots,
            least_chunk,
            all_reduce: Collective::AllReduce.schedule(&ring, me),
            reduce_scatter: Collective::ReduceScatter.schedule(&ring, me),
            all_gather: Collective::AllGather.schedule(&ring, me),
            barrier: Collective::Barrier.schedule(&ring, me),
            broadcast: (0, Collective::Broadcast { root: 0 }.schedule(&ring, me)),
            last: None,
            way: (0..ring.size()).fold(mix(least_chunk as u64), |digest, at| {
                mix(digest ^ u64::from(ring.after(0, i64::from(at))))
            }),
            ring,
        }
    }

    /// The ranks that this one's plans send to, and those that they receive from; ascending.
    #[must_use]
    pub fn peers(&self) -> (Vec<u32>, Vec<u32>) {
        let standing = [&self.all_reduce, &self.reduce_scatter, &self.all_gather, &self.barrier];
        let steps = || standing.iter().flat_map(|schedule| &schedule.steps);
        let to: BTreeSet<u32> = steps().filter(|s| s.op.sends()).map(|s| s.to).collect();
        let from: BTreeSet<u32> = steps().filter(|s| s.op.receives()).map(|s| s.from).collect();
        (to.into_iter().collect(), from.into_iter().collect())
    }

    /// The plan for a call.
    pub fn plan(&mut self, request: &Request) -> Plan<'_> {
        if let Collective::Broadcast { root } = request.collective
            && self.broadcast.0 != root
        {
            self.broadcast = (root, request.collective.schedule(&self.ring, self.me));
        }
        let schedule = match request.collective {
            Collective::AllReduce => &self.all_reduce,
            Collective::ReduceScatter => &self.reduce_scatter,
            Collective::AllGather => &self.all_gather,
            Collective::Barrier => &self.barrier,
            Collective::Broadcast { .. } => &self.broadcast.1,
        };
        let (partition, fingerprint) = match &self.last {
            Some((last, partition, fingerprint)) if last == request => (*partition, *fingerprint),
            _ => {
                let fresh = (self.cut(request, schedule), self.fingerprint(request));
                self.last = Some((*request, fresh.0, fresh.1));
                fresh
            }
        };
        Plan { schedule, partition: partition.with_scratch(&schedule.scratch), fingerprint }
    }

    /// The plan for a call by a schedule that is not one of these; all ranks' schedules have this
    /// digest.
    pub fn own<'a>(&self, request: &Request, schedule: &'a Schedule, digest: u64) -> Plan<'a> {
        let partition = self.cut(request, schedule).with_scratch(&schedule.scratch);
        Plan { schedule, partition, fingerprint: mix(self.fingerprint(request) ^ digest) }
    }

    /// Is there a link from one rank to another?
    #[must_use]
    pub fn is_linked(&self, from: u32, to: u32) -> bool {
        self.ring.after(from, 1) == to
    }

    /// What links are made of.
    #[must_use]
    pub fn slots(&self) -> SlotShape {
        self.slots
    }

    fn cut(&self, request: &Request, schedule: &Schedule) -> Partition<'static> {
        let (count, size, chunks) = (request.count, request.dtype.size(), schedule.output as usize);
        if request.collective.has_blocks() {
            Partition::exact(count, size, self.slots)
        } else {
            Partition::even(count, size, chunks, self.least_chunk, self.slots)
        }
    }

    fn fingerprint(&self, request: &Request) -> u64 {
        let (kind, root) = match request.collective {
            Collective::AllReduce => (1, 0),
            Collective::ReduceScatter => (2, 0),
            Collective::AllGather => (3, 0),
            Collective::Broadcast { root } => (4, root),
            Collective::Barrier => (5, 0),
        };
        let op = request.op.map_or(0, |op| op as u64 + 1);
        let what = kind | (request.dtype as u64) << 8 | op << 16 | u64::from(root) << 32;
        let shape = (self.slots.bytes as u64) << 16 | self.slots.capacity as u64;
        // The algorithm is one, the ring; which ring is part of `way`.
        mix(mix(mix(mix(what) ^ request.count as u64) ^ shape) ^ self.way)
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every bit in moves half of those
/// out.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Planner, Request};
    use crate::element::{DataType, ReduceOp};
    use crate::partition::SlotShape;
    use crate::schedule::{Collective, Ring};

    #[test]
    fn the_fingerprint_tells_every_argument() {
        let slots = SlotShape { bytes: 64, capacity: 4 };
        let mut planner = Planner::new(Ring::natural(4), 1, slots, 64);
        let base = Request {
            collective: Collective::AllReduce,
            count: 10,
            dtype: DataType::F32,
            op: Some(ReduceOp::Sum),
        };
        let others = [
            base,
            Request { count: 11, ..base },
            Request { dtype: DataType::F64, ..base },
            Request { op: Some(ReduceOp::Max), ..base },
            Request { op: None, ..base },
            Request { collective: Collective::ReduceScatter, ..base },
            Request { collective: Collective::Broadcast { root: 0 }, ..base },
            Request { collective: Collective::Broadcast { root: 2 }, ..base },
        ];
        let mut prints: Vec<u64> = others.iter().map(|r| planner.plan(r).fingerprint).collect();
        prints.push(
            Planner::new(Ring::natural(4), 1, SlotShape { capacity: 8, ..slots }, 64)
                .plan(&base)
                .fingerprint,
        );
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
        let elsewhere = Planner::new(Ring::natural(4), 3, slots, 64).plan(&base).fingerprint;
        assert_eq!(elsewhere, prints[0]);
    }
}
