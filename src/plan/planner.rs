//! One rank's plans: what it has made of the calls that it remembers. May touch: as `plan`.

use core::ops::Range;

use super::{Request, Slots, Speeds, Tuning, way};
use crate::partition::{Partition, SlotShape};
use crate::schedule::{Algorithm, Collective, Ring, Schedule};

/// What to walk for a call.
#[derive(Debug)]
pub struct Plan<'a> {
    /// How.
    pub algorithm: Algorithm,
    /// The steps.
    pub schedule: &'a Schedule,
    /// How the buffer is cut.
    pub partition: Partition<'a>,
    /// Equal on two ranks only if they make the same call.
    pub fingerprint: u64,
}

/// Calls that are remembered: training repeats a few.
const CALLS: usize = 32;

/// A call, and what was made of it.
#[derive(Clone, Copy, Debug)]
struct Known {
    request: Request,
    rules: Rules,
    /// Which of the schedules.
    schedule: usize,
    partition: Partition<'static>,
    fingerprint: u64,
}

impl Known {
    fn is(&self, request: &Request, rules: Rules) -> bool {
        self.request == *request && self.rules == rules
    }
}

/// What plans go by beside the call. All ranks must be told the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The algorithm to take wherever it can make the call; `None` for the cheapest.
    pub forced: Option<Algorithm>,
    /// Must reductions be folded as ((r0 + r1) + r2) + .., where an algorithm can?
    pub in_order: bool,
    /// The digest of the call that this one is a part of, in another type; or 0.
    pub stands_for: u64,
    /// Is the call on memory that all ranks have registered? It is made directly then.
    pub registered: bool,
}

/// One rank's plans.
#[derive(Debug)]
pub struct Planner {
    pub(super) ring: Ring,
    pub(super) me: u32,
    pub(super) slots: Slots,
    least_chunk: usize,
    /// Bytes that each rank can lay open for all others; 0 where they share no memory.
    pub(super) stage: usize,
    /// Made when they are first asked for.
    pub(super) schedules: Vec<(Collective, Algorithm, Schedule)>,
    /// Those of the user's making, by the digest of all ranks'.
    pub(super) adopted: Vec<(u64, Schedule)>,
    /// What messages cost here, if that is known; all ranks have the same.
    pub(super) speeds: Option<Speeds>,
    pub(super) tuning: Tuning,
    /// What plans go by now.
    pub(super) rules: Rules,
    /// The calls made lately, and which of them was the last.
    calls: Vec<Known>,
    last: usize,
    /// The chunks of an uneven call's input and output, in bytes, and the steps of messages with
    /// the marks of their types: kept for their memory.
    pub(super) tables: [Vec<Range<usize>>; 2],
    pub(super) marks: [Vec<u64>; 2],
    pub(super) transfer: Schedule,
    /// A digest of what all calls go by: the ring, with its hosts and links, and the least chunk.
    pub(super) way: u64,
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
            stage: 0,
            schedules: Vec::new(),
            adopted: Vec::new(),
            speeds: None,
            tuning: Tuning::default(),
            rules: Rules::default(),
            calls: Vec::with_capacity(CALLS),
            last: 0,
            tables: [Vec::new(), Vec::new()],
            marks: [Vec::new(), Vec::new()],
            transfer: Schedule::new(1, 1),
            way: way::way(&ring, slots, least_chunk),
            ring,
        }
    }

    /// From now on the cheapest algorithm is chosen, for links of these speeds. All ranks must be
    /// told the same.
    pub fn set_speeds(&mut self, speeds: Speeds) {
        self.speeds = Some(speeds);
        self.calls.clear();
    }

    /// From now on prices are corrected by this. All ranks must be told the same.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.calls.clear();
    }

    /// From now on calls of up to so many bytes may be made directly. All ranks must be told the
    /// same.
    pub fn set_stage(&mut self, bytes: usize) {
        self.stage = bytes;
    }

    /// What was told so.
    #[must_use]
    pub fn speeds(&self) -> Option<Speeds> {
        self.speeds
    }

    /// The ring that its plans go by.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// From now on plans go by these rules.
    pub fn go_by(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// The slots of the link from one rank to another.
    #[must_use]
    pub fn slots(&self, from: u32, to: u32) -> SlotShape {
        if self.ring.after(from, 1) == to { self.slots.ring } else { self.slots.other }
    }

    /// The smallest slots of the links that an algorithm uses at any rank.
    pub(super) fn shape(&self, algorithm: Algorithm, collective: Collective) -> SlotShape {
        let ring = algorithm == Algorithm::Ring && collective.keeps_to(&self.ring);
        let slots = if ring { self.slots.ring } else { self.least_slots() };
        slots.shared(algorithm.window()).unwrap_or(slots)
    }

    /// What all links have at least.
    #[must_use]
    pub fn least_slots(&self) -> SlotShape {
        let Slots { ring, other } = self.slots;
        let other = if self.ring.size() <= 2 { ring } else { other };
        let (bytes, capacity) = (ring.bytes.min(other.bytes), ring.capacity.min(other.capacity));
        SlotShape { bytes, capacity }
    }

    /// The plan for a call.
    pub fn plan(&mut self, request: &Request) -> Plan<'_> {
        if !self.calls.get(self.last).is_some_and(|known| known.is(request, self.rules)) {
            self.last = self.remember(request);
        }
        let last = &self.calls[self.last];
        let (_, algorithm, schedule) = &self.schedules[last.schedule];
        let partition = last.partition.with_scratch(&schedule.scratch);
        Plan { algorithm: *algorithm, schedule, partition, fingerprint: last.fingerprint }
    }

    /// The number of a call among those that are remembered, as one of which it now is.
    #[cold]
    fn remember(&mut self, request: &Request) -> usize {
        if let Some(known) = self.calls.iter().position(|known| known.is(request, self.rules)) {
            return known;
        }
        let algorithm = self.choose(request);
        let schedule = self.schedule(request.collective, algorithm);
        let known = Known {
            request: *request,
            rules: self.rules,
            schedule,
            partition: self.cut(request, schedule),
            fingerprint: self.fingerprint(request, algorithm),
        };
        if self.calls.len() < CALLS {
            self.calls.push(known);
            return self.calls.len() - 1;
        }
        // Any but the last one; they take turns.
        let at = (self.last + 1) % CALLS;
        self.calls[at] = known;
        at
    }

    /// The number of a schedule.
    pub(super) fn schedule(&mut self, collective: Collective, algorithm: Algorithm) -> usize {
        let known = self.schedules.iter().position(|(c, a, _)| (*c, *a) == (collective, algorithm));
        known.unwrap_or_else(|| {
            let fresh = algorithm.schedule(collective, &self.ring, self.me);
            let fresh = fresh.unwrap_or_else(|| collective.schedule(&self.ring, self.me));
            self.schedules.push((collective, algorithm, fresh));
            self.schedules.len() - 1
        })
    }

    fn cut(&self, request: &Request, schedule: usize) -> Partition<'static> {
        let (collective, algorithm, schedule) = &self.schedules[schedule];
        let slots = self.shape(*algorithm, *collective);
        // A chunk less is a turn less on a ring; where all go straight it is only work not shared.
        let ring = *algorithm == Algorithm::Ring;
        let least = if ring { self.least_chunk } else { algorithm.least_chunk() };
        pieces(request, schedule, least, slots)
    }
}

/// A call's memory, cut for a schedule and for slots of this shape.
pub(super) fn pieces(
    request: &Request,
    schedule: &Schedule,
    least: usize,
    slots: SlotShape,
) -> Partition<'static> {
    let (count, size) = (request.count, request.element_size());
    // Slots of whole elements, whatever their size.
    let slots = SlotShape { bytes: slots.bytes / size * size, ..slots };
    if request.collective.has_blocks() {
        Partition::exact(count, size, slots)
    } else {
        Partition::even(count, size, schedule.output as usize, least, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Blocks, Message, Planner, Request, Slots};
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
        let dtype = DataType::F32;
        let message = Message { outgoing: true, peer: 2, range: (0, 10), dtype };
        prints.extend([wider, planner.messages(&[message]).fingerprint]);
        for counts in [[1, 2, 3, 4], [1, 2, 4, 3]] {
            let blocks = Blocks::new(&counts[1..2], &counts, &counts);
            let request = Request { collective: Collective::AllGather, count: 0, ..base };
            prints.push(planner.uneven(&request, blocks).fingerprint);
        }
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
        let elsewhere = Planner::new(Ring::natural(4), 3, slots, 64).plan(&base).fingerprint;
        assert_eq!(elsewhere, prints[0]);
    }
}
