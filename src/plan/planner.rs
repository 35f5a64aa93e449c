//! The planner: one rank's cache of schedules and plans.

use core::ops::Range;

use super::{PeerReads, Request, Slots, Speeds, Tuning, fingerprint};
use crate::partition::{Partition, SlotShape};
use crate::schedule::{Algorithm, Collective, Place, Ring, Schedule, StageShape, between_hosts};

/// The input of an executor for one call.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The steps of this rank.
    pub schedule: &'a Schedule,
    /// How the buffers are cut into chunks and slices.
    pub partition: Partition<'a>,
    /// A digest that is equal on two ranks only if they make the same call.
    pub fingerprint: u64,
    /// The parts of the ranks of a host, if the call is two-level: schedule and partition are then
    /// of this rank's part, between hosts.
    pub parts: Option<&'a Parts>,
}

/// The executor that makes a call.
#[derive(Clone, Copy, Debug)]
pub enum ExecutedBy<'a> {
    /// A walk over links.
    Links,
    /// The region of the host that all ranks share, or links where a call does not fit it.
    HostRegion,
    /// The region of each host, and links between hosts.
    TwoLevel(&'a Parts),
}

impl<'a> Plan<'a> {
    /// The executor of this plan.
    #[inline]
    #[must_use]
    pub fn executed_by(&self) -> ExecutedBy<'a> {
        match self.parts {
            Some(parts) => ExecutedBy::TwoLevel(parts),
            None if self.algorithm.is_in_shared_memory() => ExecutedBy::HostRegion,
            None => ExecutedBy::Links,
        }
    }

    /// The number of steps of this rank if the call walks over links alone; else 0.
    #[inline]
    pub(crate) fn link_steps(&self) -> u64 {
        match self.executed_by() {
            ExecutedBy::Links => (self.partition.rounds() * self.schedule.steps.len()) as u64,
            ExecutedBy::HostRegion | ExecutedBy::TwoLevel(_) => 0,
        }
    }
}

/// The parts of the ranks of a host in a two-level call.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Bytes of a part; the last ones may be shorter, or empty.
    pub bytes: usize,
    /// How a part is cut between hosts. Shorter ones are cut likewise.
    pub cut: Partition<'static>,
}

/// Number of cached plans; training repeats a few calls.
const CACHED_PLANS: usize = 32;

#[derive(Clone, Copy, Debug)]
struct CachedPlan {
    request: Request,
    rules: Rules,
    /// The index of the schedule.
    schedule: usize,
    partition: Partition<'static>,
    fingerprint: u64,
    parts: Option<Parts>,
}

impl CachedPlan {
    #[inline]
    fn is_for(&self, request: &Request, rules: Rules) -> bool {
        self.request == *request && self.rules == rules
    }
}

/// Settings that affect plans, besides the call's arguments. All ranks must have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The algorithm to use wherever it can make the call; `None` for the cheapest.
    pub forced: Option<Algorithm>,
    /// True if reductions must be folded as ((r0 + r1) + r2) + .., where an algorithm can.
    pub in_order: bool,
    /// For a part of a larger call (a conversion, a list of buffers), that call's digest; or 0.
    pub part_of: u64,
    /// True if the direct algorithm, which is forced, can use registered memory of this rank.
    pub registered: bool,
}

/// The planner of one rank.
#[derive(Debug)]
pub struct Planner {
    pub(super) ring: Ring,
    pub(super) me: u32,
    pub(super) slots: Slots,
    least_chunk: usize,
    /// True if all ranks share the region of one host.
    pub(super) shares_host: bool,
    /// True if there are several hosts, and the ranks of each share a region.
    pub(super) shares_each_host: bool,
    /// Whether all ranks can read each other's memory.
    pub(super) peer_reads: PeerReads,
    /// The schedules made so far.
    pub(super) schedules: Vec<(Collective, Algorithm, Schedule)>,
    /// The user's schedules of this rank, by the digest of all ranks' schedules.
    pub(super) user_schedules: Vec<(u64, Schedule)>,
    /// The speeds of links, if known; equal on all ranks.
    pub(super) speeds: Option<Speeds>,
    /// The measured factors of algorithms, which take 8 KiB; `None` before they are known.
    tuning: Option<Box<Tuning>>,
    pub(super) rules: Rules,
    /// The cached plans, and the index of the latest.
    calls: Vec<CachedPlan>,
    last: usize,
    /// State of the random numbers that choose which plan is replaced.
    random: u32,
    /// The chunks of an uneven call's input and output, in bytes. Kept here to reuse the memory.
    pub(super) chunk_tables: [Vec<Range<usize>>; 2],
    /// A digest of everything that all calls depend on: ring, hosts, slots, links, least chunk.
    pub(crate) world_digest: u64,
}

impl Planner {
    /// The planner of rank `me` on `ring`, over links with these slots. A chunk of less than
    /// `least_chunk` bytes is not worth a message.
    ///
    /// # Panics
    /// If a slot shape breaks the capacity law: fused steps would deadlock.
    #[must_use]
    pub fn new(ring: Ring, me: u32, slots: Slots, least_chunk: usize) -> Self {
        for shape in [slots.ring, slots.other] {
            assert!(shape.capacity > shape.slices_per_round(), "links of {} slots", shape.capacity);
        }
        Self {
            me,
            slots,
            least_chunk,
            shares_host: false,
            shares_each_host: false,
            peer_reads: PeerReads::Untested,
            schedules: Vec::new(),
            user_schedules: Vec::new(),
            speeds: None,
            tuning: None,
            rules: Rules::default(),
            calls: Vec::new(),
            last: 0,
            random: 1,
            chunk_tables: [Vec::new(), Vec::new()],
            world_digest: fingerprint::of_world(&ring, slots, least_chunk),
            ring,
        }
    }

    /// Sets the speeds by which algorithms are chosen from now on. All ranks must set the same.
    pub fn set_speeds(&mut self, speeds: Speeds) {
        self.speeds = Some(speeds);
        self.calls.clear();
    }

    /// Sets the corrections of predicted times. All ranks must set the same.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = Some(Box::new(tuning));
        self.calls.clear();
    }

    /// Lets calls go through the region of each host, which its ranks share if they are not too
    /// many. Several hosts must have the same number of ranks, and the ring must visit the ranks of
    /// each in their order: a rank's part has the number of the rank both there and in the region.
    pub fn share_host(&mut self) {
        let is_one_host = self.ring.crossings() == 0;
        self.shares_host = is_one_host && StageShape::is_for(self.ring.size() as usize);
        let each = self.ring.grid().map(|grid| grid.ranks as usize);
        let is_in_order = self.ring.hosts().all(<[u32]>::is_sorted);
        self.shares_each_host = is_in_order && each.is_some_and(StageShape::is_for);
    }

    /// True if all ranks share the region of one host.
    #[must_use]
    pub fn shares_host(&self) -> bool {
        self.shares_host
    }

    /// The corrections of predicted times.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        self.tuning.as_deref().unwrap_or(&Tuning::UNMEASURED)
    }

    /// Sets whether ranks can read each other's memory. All ranks must set the same.
    pub fn set_peer_reads(&mut self, peer_reads: PeerReads) {
        self.peer_reads = peer_reads;
        self.calls.clear();
    }

    /// The speeds, if they were set.
    #[must_use]
    pub fn speeds(&self) -> Option<Speeds> {
        self.speeds
    }

    /// The ring of the plans.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Sets the rules of the plans made from now on.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// The slots of the link from one rank to another.
    #[must_use]
    pub fn slots(&self, from: u32, to: u32) -> SlotShape {
        if self.ring.after(from, 1) == to { self.slots.ring } else { self.slots.other }
    }

    /// The smallest slots of all links, at any rank, that an algorithm uses.
    pub(super) fn shape(&self, algorithm: Algorithm, collective: Collective) -> SlotShape {
        let ring = algorithm == Algorithm::Ring && collective.keeps_to(&self.ring);
        let slots = if ring { self.slots.ring } else { self.least_slots() };
        slots.shared(algorithm.window()).unwrap_or(slots)
    }

    /// The smallest slots of all links.
    #[must_use]
    pub fn least_slots(&self) -> SlotShape {
        let Slots { ring, other } = self.slots;
        let other = if self.ring.size() <= 2 { ring } else { other };
        let (bytes, capacity) = (ring.bytes.min(other.bytes), ring.capacity.min(other.capacity));
        SlotShape { bytes, capacity }
    }

    /// The plan for a call.
    #[inline]
    pub fn plan(&mut self, request: &Request) -> Plan<'_> {
        if !self.calls.get(self.last).is_some_and(|plan| plan.is_for(request, self.rules)) {
            self.last = self.cache_plan(request);
        }
        let last = &self.calls[self.last];
        let (_, algorithm, schedule) = &self.schedules[last.schedule];
        let partition = last.partition.with_scratch(&schedule.scratch);
        let (fingerprint, parts) = (last.fingerprint, last.parts.as_ref());
        Plan { algorithm: *algorithm, schedule, partition, fingerprint, parts }
    }

    /// The index of a call in the cache, where the call is added if it is missing.
    #[cold]
    fn cache_plan(&mut self, request: &Request) -> usize {
        if let Some(cached) = self.calls.iter().position(|plan| plan.is_for(request, self.rules)) {
            return cached;
        }
        let algorithm = self.choose(request);
        let schedule = self.schedule(request.collective, algorithm);
        let parts = self.parts(request, algorithm, schedule);
        let plan = CachedPlan {
            request: *request,
            rules: self.rules,
            schedule,
            partition: match &parts {
                Some(parts) => self.own_part(request, parts),
                None => self.cut(request, schedule),
            },
            fingerprint: self.fingerprint(request, algorithm),
            parts,
        };
        if self.calls.len() < CACHED_PLANS {
            self.calls.push(plan);
            return self.calls.len() - 1;
        }
        let at = self.replaceable();
        self.calls[at] = plan;
        at
    }

    /// The index of the plan that makes room: any but the latest. In turns, each call of a cycle
    /// that is longer than the cache would find that its plan has just been replaced.
    fn replaceable(&mut self) -> usize {
        // Xorshift (Marsaglia 2003), with a start that is not 0.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let other = self.random as usize % (CACHED_PLANS - 1);
        (self.last + 1 + other) % CACHED_PLANS
    }

    /// The index of a schedule, which is made if it is missing.
    pub(super) fn schedule(&mut self, collective: Collective, algorithm: Algorithm) -> usize {
        let found = self.schedules.iter().position(|(c, a, _)| (*c, *a) == (collective, algorithm));
        found.unwrap_or_else(|| {
            let fresh = match algorithm {
                Algorithm::TwoLevel => between_hosts(collective, &self.ring, self.me),
                _ => algorithm.schedule(collective, &self.ring, self.me),
            };
            let fresh = fresh.unwrap_or_else(|| collective.schedule(&self.ring, self.me));
            self.schedules.push((collective, algorithm, fresh));
            self.schedules.len() - 1
        })
    }

    /// The parts of the ranks of a host, if the call is two-level. Few bytes are not worth a
    /// message of each rank between hosts.
    fn parts(&self, request: &Request, algorithm: Algorithm, schedule: usize) -> Option<Parts> {
        let grid = self.ring.grid().filter(|_| algorithm == Algorithm::TwoLevel)?;
        let (count, size, slots) = (request.count, request.element_size(), self.least_slots());
        let parts = Partition::even(count, size, grid.ranks as usize, self.least_chunk, slots);
        let bytes = parts.bytes(Place::output(0));
        let cut = self.cut(&Request { count: bytes / size, ..*request }, schedule);
        Some(Parts { bytes, cut })
    }

    /// The partition of this rank's part.
    fn own_part(&self, request: &Request, parts: &Parts) -> Partition<'static> {
        let total = request.count * request.element_size();
        let each = self.ring.grid().map_or(1, |grid| grid.ranks);
        let before = parts.bytes * (self.ring.position(self.me) % each) as usize;
        parts.cut.clipped(total.saturating_sub(before))
    }

    fn cut(&self, request: &Request, schedule: usize) -> Partition<'static> {
        let (collective, algorithm, schedule) = &self.schedules[schedule];
        let slots = self.shape(*algorithm, *collective);
        // Fewer chunks are fewer hops on a ring; for direct messages they only share less work.
        let ring = *algorithm == Algorithm::Ring;
        let least = if ring { self.least_chunk } else { algorithm.least_chunk() };
        partition_of(request, schedule, least, slots)
    }
}

/// The partition of a call's buffers for a schedule and for these slots.
pub(super) fn partition_of(
    request: &Request,
    schedule: &Schedule,
    least: usize,
    slots: SlotShape,
) -> Partition<'static> {
    let (count, size) = (request.count, request.element_size());
    let slots = slots.for_elements(size);
    if request.collective.has_blocks() {
        Partition::exact(count, size, slots)
    } else {
        Partition::even(count, size, schedule.output as usize, least, slots)
    }
}

#[cfg(test)]
mod tests;
