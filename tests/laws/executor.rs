//! The executor walks the schedules that the simulator proved: over small slots and scarce
//! capacity, where every wait happens, each rank sends just the slices of its schedule and gets the
//! right bytes.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering as MemoryOrdering};
use std::time::Duration;

use harness::ranks::in_threads;
use ringreduce::exec::{Backoff, LinkCall, Wait, run};
use ringreduce::health::Peers;
use ringreduce::kernel::Kernel;
use ringreduce::memory::{Buffer, Dst};
use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Algorithm, Collective, Place, Ring, Schedule};
use ringreduce::sim::{Shape, check};
use ringreduce::transport::{Fault, Frame, LinkSet, Tx, loopback};
use ringreduce::{DataType, ReduceOp};

/// A link whose commits are counted.
struct Counted {
    link: Box<dyn Tx>,
    commits: Arc<AtomicUsize>,
}

impl Tx for Counted {
    fn ready(&mut self) -> Result<bool, Fault> {
        self.link.ready()
    }

    fn reserve(&mut self, len: usize) -> Result<Dst<'_>, Fault> {
        self.link.reserve(len)
    }

    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        self.commits.fetch_add(1, MemoryOrdering::Relaxed);
        self.link.commit(frame)
    }

    fn transport(&self) -> &'static str {
        self.link.transport()
    }

    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.link.park(limit, outgoing);
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        self.link.check_alive()
    }
}

struct World<'a> {
    algorithm: Algorithm,
    collective: Collective,
    schedules: Vec<Schedule>,
    partition: Partition<'a>,
    slots: SlotShape,
    in_place: bool,
}

/// The contribution of `rank` at position `i`.
fn before(rank: usize, i: usize) -> u32 {
    (rank * 1000 + i) as u32
}

/// The content of an output before the call.
const NOTHING: u32 = u32::MAX;

impl World<'_> {
    fn size(&self) -> usize {
        self.schedules.len()
    }

    /// The elements of all chunks of a space.
    fn count(&self, chunks: u32, place: fn(u32) -> Place) -> usize {
        (0..chunks).map(|chunk| self.partition.bytes(place(chunk)) / 4).sum()
    }

    fn input(&self) -> usize {
        self.count(self.schedules[0].input, Place::input)
    }

    fn output(&self) -> usize {
        self.count(self.schedules[0].output, Place::output)
    }

    /// The right output of `rank` at position `i` after the call.
    fn after(&self, rank: usize, i: usize) -> u32 {
        let sum = |i| (0..self.size()).map(|rank| before(rank, i)).sum();
        match self.collective {
            Collective::AllReduce | Collective::Barrier => sum(i),
            Collective::ReduceScatter => sum(rank * self.output() + i),
            Collective::AllGather => before(i / self.input(), i % self.input()),
            Collective::Broadcast { root } => before(root as usize, i),
            Collective::Reduce { root } if rank == root as usize => sum(i),
            Collective::Gather { root } if rank == root as usize => {
                before(i / self.input(), i % self.input())
            }
            Collective::Scatter { root } => before(root as usize, rank * self.output() + i),
            Collective::AllToAll => {
                let block = self.output() / self.size();
                before(i / block, rank * block + i % block)
            }
            Collective::Scan => (0..=rank).map(|rank| before(rank, i)).sum(),
            Collective::Exscan if rank > 0 => (0..rank).map(|rank| before(rank, i)).sum(),
            _ => self.untouched(rank, i),
        }
    }

    /// The unchanged output of a rank without a result; in place it is the contribution.
    fn untouched(&self, rank: usize, i: usize) -> u32 {
        let gathers = matches!(self.collective, Collective::Gather { .. });
        let first = if gathers { rank * self.input() } else { 0 };
        match i.checked_sub(first) {
            Some(i) if self.in_place && i < self.input() => before(rank, i),
            _ => NOTHING,
        }
    }

    /// All pairs of a sender and a receiver.
    fn pairs(&self) -> BTreeSet<(usize, usize)> {
        let sends = |(from, schedule): (usize, &Schedule)| {
            let to = schedule.steps.iter().filter(|step| step.op.sends());
            to.map(|step| (from, step.to as usize)).collect::<Vec<_>>()
        };
        self.schedules.iter().enumerate().flat_map(sends).collect()
    }

    /// The slices that `rank` sends by its schedule.
    fn sends(&self, rank: usize) -> usize {
        let partition = self.partition.with_scratch(&self.schedules[rank].scratch);
        let steps = self.schedules[rank].steps.iter().filter(|step| step.op.sends());
        let slices =
            |round, place| partition.slices(round, partition.piece(round, place).len()).count();
        let rounds = 0..partition.rounds();
        steps.map(|step| rounds.clone().map(|round| slices(round, step.src)).sum::<usize>()).sum()
    }

    /// Makes the call, checks the memory beside the output and gives the output.
    fn walk(&self, rank: usize, peers: &mut Peers) -> Vec<u32> {
        let partition = self.partition.with_scratch(&self.schedules[rank].scratch);
        let call = LinkCall {
            schedule: &self.schedules[rank],
            partition: &partition,
            frame: Frame { len: 0, sequence: 1, fingerprint: 2 },
            kernel: &Kernel::select(DataType::U32, ReduceOp::Sum, self.size()).unwrap(),
            streaming: false,
        };
        let abort = AtomicBool::new(false);
        let backoff = Backoff::for_ranks(self.size(), 2);
        let wait = Wait::new(&backoff, Duration::from_secs(60), &abort);
        let (input, output) = (self.input(), self.output());
        let mut scratch = vec![0xEE; call.partition.scratch_bytes()];
        let given: Vec<u32> = (0..input).map(|i| before(rank, i)).collect();
        if !self.in_place {
            let mut result = vec![NOTHING; output];
            let bytes = bytemuck::cast_slice_mut(&mut result);
            let buffer = Buffer::out_of_place(bytemuck::cast_slice(&given), bytes);
            run(&call, &buffer.with_scratch(&mut scratch), peers, &wait).unwrap();
            return result;
        }
        // The smaller of input and output is the rank's own block of the larger one.
        let mine = |part: usize| rank * part..(rank + 1) * part;
        let (from, to) = match input.cmp(&output) {
            Ordering::Less => (mine(input), 0..output),
            Ordering::Equal => (0..input, 0..output),
            Ordering::Greater => (0..input, mine(output)),
        };
        let mut buf = vec![NOTHING; input.max(output)];
        buf[from.clone()].copy_from_slice(&given);
        let bytes = |range: &Range<usize>| 4 * range.start..4 * range.end;
        let parts = [bytes(&from), bytes(&to)];
        let [input, output] = parts;
        let buffer = Buffer::in_one_memory(bytemuck::cast_slice_mut(&mut buf), input, output);
        run(&call, &buffer.with_scratch(&mut scratch), peers, &wait).unwrap();
        for i in (0..buf.len()).filter(|i| !to.contains(i)) {
            assert_eq!(buf[i], before(rank, i), "memory beside the output is unchanged");
        }
        buf[to].to_vec()
    }

    fn check(&self) {
        let n = self.size();
        let mut peers: Vec<Peers> = (0..n).map(|_| Peers::new(LinkSet::new(n))).collect();
        let commits: Vec<Arc<AtomicUsize>> = (0..n).map(|_| Arc::default()).collect();
        for (from, to) in self.pairs() {
            let (link, rx) = loopback::pair(self.slots).unwrap();
            let counted = Counted { link, commits: Arc::clone(&commits[from]) };
            peers[from].links.add_tx(to, Box::new(counted));
            peers[to].links.add_rx(from, rx);
        }
        let ranks = peers.iter_mut().enumerate();
        let results = in_threads(ranks, |(rank, peers)| self.walk(rank, peers));
        for (rank, result) in results.iter().enumerate() {
            let want: Vec<u32> = (0..self.output()).map(|i| self.after(rank, i)).collect();
            // The value of a barrier's token is not defined.
            let right = *result == want || self.collective == Collective::Barrier;
            assert!(right, "{} {:?} n={n} rank={rank}", self.algorithm, self.collective);
            let sent = commits[rank].load(MemoryOrdering::Relaxed);
            assert_eq!(
                sent,
                self.sends(rank),
                "{} {:?} n={n} rank={rank}",
                self.algorithm,
                self.collective
            );
        }
    }
}

fn worlds(algorithm: Algorithm, collective: Collective, ring: &Ring, count: usize) {
    let Some(schedules) = algorithm.schedules(collective, ring) else { return };
    for capacity in [2, 3, 8] {
        let slot_shape = SlotShape { bytes: 64, capacity };
        let Some(slots) = slot_shape.shared(algorithm.window()) else { continue };
        let partition = if collective.has_blocks() {
            Partition::exact(count, 4, slots)
        } else {
            Partition::even(count, 4, schedules[0].output as usize, 64, slots)
        };
        let volume = algorithm.volume(collective, ring).unwrap();
        let shape: Vec<_> = schedules.iter().map(|s| partition.with_scratch(&s.scratch)).collect();
        check(collective, volume, &schedules, &Shape::of(&shape, capacity), 1).unwrap();
        for in_place in [false, true] {
            let schedules = schedules.clone();
            let world =
                World { algorithm, collective, schedules, partition, slots: slot_shape, in_place };
            world.check();
        }
    }
}

fn all_worlds(algorithm: Algorithm, ring: &Ring) {
    for collective in Collective::all(ring.size()) {
        for count in [0, 1, 17, 333] {
            worlds(algorithm, collective, ring, count);
        }
    }
}

#[test]
fn the_executor_walks_every_proved_schedule() {
    for n in 2..=5 {
        for algorithm in Algorithm::ALL.into_iter().filter(|it| !it.is_in_shared_memory()) {
            all_worlds(algorithm, &Ring::natural(n));
        }
        let reversed = Ring::new((0..n).rev().collect()).unwrap();
        all_worlds(Algorithm::Ring, &reversed);
    }
    all_worlds(Algorithm::HalvingDoubling, &Ring::natural(8));
    let equal: [&[u32]; 6] = [&[2; 2], &[3; 2], &[2; 3], &[4; 2], &[2; 4], &[3; 3]];
    let others: [&[u32]; 6] =
        [&[2, 1], &[1, 3, 1], &[4, 2], &[3, 1, 2], &[1, 2, 1, 2], &[1, 1, 3, 1, 1]];
    for hosts in equal.into_iter().chain(others) {
        let mut next = 0..;
        let ranks = hosts.iter().map(|&ranks| next.by_ref().take(ranks as usize).collect());
        let ring = Ring::through(&ranks.collect::<Vec<_>>()).unwrap();
        assert!(Algorithm::Hierarchical.makes(Collective::AllReduce, &ring));
        all_worlds(Algorithm::Hierarchical, &ring);
    }
}
