//! The executor walks what the simulator proved: over small slots and scarce capacity, where every
//! wait happens, each rank sends just the slices of its schedule and ends with the right bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringreduce::exec::{Call, Patience, Wait, run};
use ringreduce::kernel::Kernel;
use ringreduce::link::trace::{Kind, Log, Traced};
use ringreduce::link::{Frame, Links, loopback};
use ringreduce::memory::Buffer;
use ringreduce::partition::{Partition, SlotShape};
use ringreduce::schedule::{Collective, Ring, Schedule};
use ringreduce::sim::{Shape, check};
use ringreduce::{DataType, ReduceOp};

struct World<'a> {
    collective: Collective,
    ring: &'a Ring,
    schedules: Vec<Schedule>,
    partition: Partition,
    slots: SlotShape,
    /// Elements of the buffer.
    count: usize,
}

/// What rank `rank` has at `i` before the call.
fn before(rank: usize, i: usize) -> u32 {
    (rank * 1000 + i) as u32
}

impl World<'_> {
    fn size(&self) -> usize {
        self.ring.size() as usize
    }

    /// The chunk that element `i` is in.
    fn chunk(&self, i: usize) -> u32 {
        let holds = |round, chunk| self.partition.piece(round, chunk).contains(&(4 * i));
        let chunks = 0..self.schedules[0].chunks;
        chunks.into_iter().find(|&c| (0..self.partition.rounds()).any(|r| holds(r, c))).unwrap()
    }

    /// What rank `rank` must have at `i` after the call.
    fn after(&self, rank: usize, i: usize) -> u32 {
        let sum = (0..self.size()).map(|rank| before(rank, i)).sum();
        match self.collective {
            Collective::AllReduce | Collective::Barrier => sum,
            Collective::ReduceScatter if self.chunk(i) as usize == rank => sum,
            Collective::ReduceScatter => before(rank, i),
            Collective::AllGather => before(self.chunk(i) as usize, i),
            Collective::Broadcast { root } => before(root as usize, i),
        }
    }

    /// Slices that `rank` sends, by its schedule.
    fn sends(&self, rank: usize) -> usize {
        let steps = self.schedules[rank].steps.iter().filter(|step| step.op.sends());
        let slices =
            |round, chunk| self.partition.slices(self.partition.piece(round, chunk)).count();
        let rounds = 0..self.partition.rounds();
        steps.map(|step| rounds.clone().map(|round| slices(round, step.chunk)).sum::<usize>()).sum()
    }

    fn walk(&self, rank: usize, links: &mut Links) -> Vec<u32> {
        let mut buf: Vec<u32> = (0..self.count).map(|i| before(rank, i)).collect();
        let call = Call {
            schedule: &self.schedules[rank],
            partition: self.partition,
            frame: Frame { len: 0, epoch: 0, sequence: 1, fingerprint: 2 },
            kernel: Kernel::select(DataType::U32, ReduceOp::Sum, self.size()).unwrap(),
            streaming: false,
        };
        let abort = AtomicBool::new(false);
        let patience = Patience::for_ranks(self.size());
        let wait = Wait::new(&patience, Duration::from_secs(60), &abort);
        let buffer = Buffer::in_place(bytemuck::cast_slice_mut(&mut buf));
        run(&call, &buffer, links, &wait).unwrap();
        buf
    }

    fn check(&self) {
        let n = self.size();
        let mut links: Vec<Links> = (0..n).map(|_| Links::new(n)).collect();
        let logs: Vec<_> = (0..n).map(|_| Log::new(100_000)).collect();
        for from in 0..n {
            let to = self.ring.after(from as u32, 1) as usize;
            let (tx, rx) = loopback::pair(self.slots).unwrap();
            let traced = Traced::new(tx, to as u32, Arc::clone(&logs[from]));
            links[from].add_tx(to, Box::new(traced));
            links[to].add_rx(from, rx);
        }
        let results: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let ranks = links.iter_mut().enumerate();
            let walk = |(rank, links)| scope.spawn(move || self.walk(rank, links));
            let threads: Vec<_> = ranks.map(walk).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (rank, result) in results.iter().enumerate() {
            let want: Vec<u32> = (0..self.count).map(|i| self.after(rank, i)).collect();
            assert_eq!(*result, want, "{:?} n={n} rank={rank}", self.collective);
            let sent = logs[rank].events().0.iter().filter(|e| e.kind == Kind::Commit).count();
            assert_eq!(sent, self.sends(rank), "{:?} n={n} rank={rank}", self.collective);
        }
    }
}

fn worlds(collective: Collective, ring: &Ring, slots: SlotShape, count: usize) {
    let schedules = collective.schedules(ring);
    let chunks = schedules[0].chunks as usize;
    let partition = match collective {
        Collective::ReduceScatter | Collective::AllGather => {
            Partition::exact(count, 4, chunks, slots)
        }
        _ => Partition::even(count, 4, chunks, 64, slots),
    };
    let count = match collective {
        Collective::ReduceScatter | Collective::AllGather => count * chunks,
        _ => count,
    };
    let shape = Shape::of(&partition, chunks as u32, slots.capacity);
    check(collective, &schedules, &shape, 1).unwrap();
    World { collective, ring, schedules, partition, slots, count }.check();
}

#[test]
fn walks_what_the_simulator_proved() {
    for n in 2..=5 {
        let reversed = Ring::new((0..n).rev().collect()).unwrap();
        for ring in [Ring::natural(n), reversed] {
            for capacity in [2, 3, 8] {
                let slots = SlotShape { bytes: 64, capacity };
                for count in [0, 1, 17, 333] {
                    worlds(Collective::AllReduce, &ring, slots, count);
                    worlds(Collective::ReduceScatter, &ring, slots, count);
                    worlds(Collective::AllGather, &ring, slots, count);
                    worlds(Collective::Broadcast { root: n - 1 }, &ring, slots, count);
                }
                worlds(Collective::Barrier, &ring, slots, 1);
            }
        }
    }
}
