//! Plans: which schedule a call walks, how its buffer is cut, and the fingerprint by which ranks
//! notice that they make different calls. May touch: element, partition, schedule. Pure.
//!
//! Schedules depend on the ring and the collective alone and are made once. Cutting is arithmetic,
//! remembered for one call: training repeats a few, and small ones back to back show it.

use core::ops::Range;

use crate::element::{DataType, Kind, Reduction};
use crate::partition::{Partition, SlotShape};
use crate::schedule::{ALL_PAIRS, Collective, Op, Place, Ring, Schedule, Step};

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
    pub op: Option<Reduction>,
}

impl Request {
    /// Bytes of one element, which is of the user's making if the reduction is.
    #[must_use]
    pub fn element_size(&self) -> usize {
        match self.op.map(Reduction::kind) {
            Some(Kind::User(_, size)) => size,
            _ => self.dtype.size(),
        }
    }
}

/// The blocks of an uneven call, in elements; one follows the other.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Of each chunk of the input.
    pub input: &'a [usize],
    /// Of each chunk of the output.
    pub output: &'a [usize],
    /// The counts that all ranks must pass alike.
    pub agreed: &'a [usize],
}

/// A message to a rank, from a rank, or both at once; the rank, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// To whom.
    pub to: Option<(u32, usize)>,
    /// From whom.
    pub from: Option<(u32, usize)>,
    /// The type of its elements.
    pub dtype: DataType,
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

/// What the slots of a communicator's links are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// From each rank to the next on the ring.
    pub ring: SlotShape,
    /// Between all others; there are many of those.
    pub other: SlotShape,
}

/// The last call, and what was made of it.
#[derive(Clone, Copy, Debug)]
struct Last {
    request: Request,
    /// Which of the schedules.
    schedule: usize,
    partition: Partition<'static>,
    fingerprint: u64,
}

/// One rank's plans.
#[derive(Debug)]
pub struct Planner {
    ring: Ring,
    me: u32,
    slots: Slots,
    least_chunk: usize,
    /// Made when they are first asked for.
    schedules: Vec<(Collective, Schedule)>,
    last: Option<Last>,
    /// The chunks of an uneven call's input and output, in bytes, and the steps of a transfer: kept
    /// for their memory.
    tables: [Vec<Range<usize>>; 2],
    transfer: Schedule,
    /// A digest of what all calls go by: the order of the ring and the least chunk.
    way: u64,
}

impl Planner {
    /// For rank `me` of a ring whose links have slots of these shapes; chunks of less than
    /// `least_chunk` bytes are not worth a message.
    ///
    /// # Panics
    /// If a shape breaks the capacity law: fused steps would wait for ever.
    #[must_use]
    pub fn new(ring: Ring, me: u32, slots: Slots, least_chunk: usize) -> Self {
        for shape in [slots.ring, slots.other] {
            assert!(shape.capacity > shape.slices_per_round(), "links of {} slots", shape.capacity);
        }
        Self {
            me,
            slots,
            least_chunk,
            schedules: Vec::new(),
            last: None,
            tables: [Vec::new(), Vec::new()],
            transfer: Schedule::new(1, 1),
            way: (0..ring.size()).fold(mix(least_chunk as u64), |digest, at| {
                mix(digest ^ u64::from(ring.after(0, i64::from(at))))
            }),
            ring,
        }
    }

    /// The ranks that this one has links to and from, ascending: all, or in large worlds the
    /// neighbours on the ring and those whose number differs by a power of two.
    #[must_use]
    pub fn peers(&self) -> Vec<u32> {
        (0..self.ring.size()).filter(|&peer| self.is_linked(peer)).collect()
    }

    /// Has this rank a link to and from that one?
    #[must_use]
    pub fn is_linked(&self, peer: u32) -> bool {
        let (size, ring) = (self.ring.size(), &self.ring);
        let apart = (size + peer - self.me) % size;
        peer != self.me
            && (size <= ALL_PAIRS
                || apart.is_power_of_two()
                || (size - apart).is_power_of_two()
                || ring.after(peer, 1) == self.me
                || ring.after(self.me, 1) == peer)
    }

    /// The slots of the link from one rank to another.
    #[must_use]
    pub fn slots(&self, from: u32, to: u32) -> SlotShape {
        if self.ring.after(from, 1) == to { self.slots.ring } else { self.slots.other }
    }

    /// The smallest slots of the links that a collective uses at any rank.
    fn smallest(&self, collective: Collective) -> SlotShape {
        if collective.keeps_to(&self.ring) { self.slots.ring } else { self.slots.other }
    }

    /// The plan for a call.
    pub fn plan(&mut self, request: &Request) -> Plan<'_> {
        let last = match self.last {
            Some(last) if last.request == *request => last,
            _ => self.remember(request),
        };
        let schedule = &self.schedules[last.schedule].1;
        let partition = last.partition.with_scratch(&schedule.scratch);
        Plan { schedule, partition, fingerprint: last.fingerprint }
    }

    #[cold]
    fn remember(&mut self, request: &Request) -> Last {
        let schedule = self.schedule(request.collective);
        let last = Last {
            request: *request,
            schedule,
            partition: self.cut(request, &self.schedules[schedule].1),
            fingerprint: self.fingerprint(request, &[]),
        };
        self.last = Some(last);
        last
    }

    /// The plan for a call whose blocks differ; `request` counts nothing.
    pub fn uneven(&mut self, request: &Request, blocks: Blocks<'_>) -> Plan<'_> {
        let schedule = self.schedule(request.collective);
        let fingerprint = self.fingerprint(request, blocks.agreed);
        for (table, counts) in self.tables.iter_mut().zip([blocks.input, blocks.output]) {
            table.clear();
            table.extend(counts.iter().scan(0, |end, count| {
                let start = *end;
                *end += count * request.dtype.size();
                Some(start..*end)
            }));
        }
        let slots = self.smallest(request.collective);
        let schedule = &self.schedules[schedule].1;
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let partition = partition.with_scratch(&schedule.scratch);
        Plan { schedule, partition, fingerprint }
    }

    /// The plan for messages between ranks that need not all take part. To itself a rank copies.
    pub fn transfer(&mut self, transfer: &Transfer) -> Plan<'_> {
        let Transfer { to, from, dtype } = *transfer;
        let (me, given, got) = (self.me, Place::input(0), Place::output(0));
        let tables = self.tables.iter_mut().zip([to, from]);
        tables.for_each(|(table, peer)| {
            table.clear();
            table.push(0..peer.map_or(0, |(_, bytes)| bytes));
        });
        self.transfer.steps.clear();
        if to.is_some_and(|(to, _)| to == me) {
            self.transfer.steps.push(Step::new(Op::Copy, me, given).into(got));
        } else {
            let to = to.map(|(to, _)| Step::new(Op::Send, me, given).to(to));
            let from = from.map(|(from, _)| Step::new(Op::Recv, me, got).from(from));
            self.transfer.steps.extend([to, from].into_iter().flatten());
        }
        let slots = if self.ring.size() <= 2 { self.slots.ring } else { self.slots.other };
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let fingerprint = mix(mix(TRANSFER | (dtype as u64) << 8) ^ self.way);
        Plan { schedule: &self.transfer, partition, fingerprint }
    }

    /// The number of a collective's schedule.
    fn schedule(&mut self, collective: Collective) -> usize {
        let known = self.schedules.iter().position(|(known, _)| *known == collective);
        known.unwrap_or_else(|| {
            self.schedules.push((collective, collective.schedule(&self.ring, self.me)));
            self.schedules.len() - 1
        })
    }

    fn cut(&self, request: &Request, schedule: &Schedule) -> Partition<'static> {
        let (count, size, chunks) =
            (request.count, request.element_size(), schedule.output as usize);
        let slots = self.smallest(request.collective);
        if request.collective.has_blocks() {
            Partition::exact(count, size, slots)
        } else {
            Partition::even(count, size, chunks, self.least_chunk, slots)
        }
    }

    fn fingerprint(&self, request: &Request, agreed: &[usize]) -> u64 {
        let (kind, root) = match request.collective {
            Collective::AllReduce => (1, 0),
            Collective::ReduceScatter => (2, 0),
            Collective::AllGather => (3, 0),
            Collective::Broadcast { root } => (4, root),
            Collective::Barrier => (5, 0),
            Collective::Reduce { root } => (6, root),
            Collective::Gather { root } => (7, root),
            Collective::Scatter { root } => (8, root),
            Collective::AllToAll => (9, 0),
            Collective::Scan => (10, 0),
            Collective::Exscan => (11, 0),
        };
        let (op, of_it) = match request.op.map(Reduction::kind) {
            None => (0, 0),
            Some(Kind::Plain(op)) => (op as u64 + 1, 0),
            Some(Kind::PreMulSum(_, scalar)) => (254, digest(&scalar)),
            Some(Kind::User(function, size)) => (255, mix(function ^ size as u64)),
        };
        let what = kind | (request.dtype as u64) << 8 | op << 16 | u64::from(root) << 32;
        let what = mix(what) ^ of_it;
        let slots = self.smallest(request.collective);
        let shape = (slots.bytes as u64) << 16 | slots.capacity as u64;
        // The algorithm follows from the collective and the size; which ring is part of `way`.
        let call = mix(mix(mix(what ^ request.count as u64) ^ shape) ^ self.way);
        agreed.iter().fold(call, |digest, &count| mix(digest ^ count as u64))
    }
}

/// A digest of bytes: the same on every machine.
#[must_use]
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |digest, &byte| mix(digest ^ u64::from(byte)))
}

/// The kind of a message between two ranks, beside those of the collectives.
const TRANSFER: u64 = 255;

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every bit in moves half of those
/// out.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Planner, Request, Slots, Transfer};
    use crate::element::{DataType, ReduceOp, Reduction};
    use crate::partition::SlotShape;
    use crate::schedule::{Collective, Ring};

    #[test]
    fn the_fingerprint_tells_every_argument() {
        let shape = SlotShape { bytes: 64, capacity: 4 };
        let slots = Slots { ring: shape, other: shape };
        let mut planner = Planner::new(Ring::natural(4), 1, slots, 64);
        let base = Request {
            collective: Collective::AllReduce,
            count: 10,
            dtype: DataType::F32,
            op: Some(ReduceOp::Sum.into()),
        };
        let others = [
            base,
            Request { count: 11, ..base },
            Request { dtype: DataType::F64, ..base },
            Request { op: Some(ReduceOp::Max.into()), ..base },
            Request { op: Some(Reduction::premul_sum(2.0_f32)), ..base },
            Request { op: Some(Reduction::premul_sum(3.0_f32)), ..base },
            Request { op: Some(Reduction::user(1, 4)), ..base },
            Request { op: Some(Reduction::user(2, 4)), ..base },
            Request { op: Some(Reduction::user(1, 8)), ..base },
            Request { op: None, ..base },
            Request { collective: Collective::ReduceScatter, ..base },
            Request { collective: Collective::Broadcast { root: 0 }, ..base },
            Request { collective: Collective::Broadcast { root: 2 }, ..base },
            Request { collective: Collective::Reduce { root: 2 }, ..base },
        ];
        let mut prints: Vec<u64> = others.iter().map(|r| planner.plan(r).fingerprint).collect();
        let wider = Slots { ring: SlotShape { capacity: 8, ..shape }, ..slots };
        let wider = Planner::new(Ring::natural(4), 1, wider, 64).plan(&base).fingerprint;
        let transfer = Transfer { to: Some((2, 10)), from: None, dtype: DataType::F32 };
        prints.extend([wider, planner.transfer(&transfer).fingerprint]);
        for counts in [[1, 2, 3, 4], [1, 2, 4, 3]] {
            let blocks = Blocks { input: &counts[1..2], output: &counts, agreed: &counts };
            let request = Request { collective: Collective::AllGather, count: 0, ..base };
            prints.push(planner.uneven(&request, blocks).fingerprint);
        }
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
        let elsewhere = Planner::new(Ring::natural(4), 3, slots, 64).plan(&base).fingerprint;
        assert_eq!(elsewhere, prints[0]);
    }

    #[test]
    fn small_worlds_link_all_pairs_and_large_ones_powers_of_two() {
        let shape = SlotShape { bytes: 64, capacity: 4 };
        let peers = |size, me| {
            let slots = Slots { ring: shape, other: shape };
            Planner::new(Ring::natural(size), me, slots, 64).peers()
        };
        assert_eq!(peers(1, 0), []);
        assert_eq!(peers(3, 1), [0, 2]);
        assert_eq!(peers(16, 3).len(), 15);
        assert_eq!(peers(20, 0), [1, 2, 4, 8, 12, 16, 18, 19]);
        for (size, me) in (1..40).flat_map(|size| (0..size).map(move |me| (size, me))) {
            assert!(peers(size, me).iter().all(|&peer| peers(size, peer).contains(&me)));
        }
    }
}
