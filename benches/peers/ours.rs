//! The driver of ringreduce in the race with its peers: `race ordinary|registered`, then the
//! arguments of loop.h, whose loop this is.

use std::error::Error;
use std::io::{Write, stdout};
use std::time::Instant;

use ringreduce::{Communicator, ReduceOp, Registered};

const BATCHES: usize = 3;
const WARM_UP_CALLS: usize = 5;
const MIN_BATCH_SECONDS: f64 = 0.004;

enum Memory {
    Ordinary(Vec<f32>),
    Registered(Registered<'static, f32>),
}

impl Memory {
    fn get(&mut self, len: usize) -> &mut [f32] {
        match self {
            Self::Ordinary(memory) => &mut memory[..len],
            Self::Registered(memory) => &mut memory[..len],
        }
    }
}

struct Race {
    comm: Communicator,
    collective: String,
    budget_seconds: f64,
    refill: bool,
    send: Memory,
    recv: Memory,
}

fn value(rank: usize, at: usize) -> f32 {
    (rank + 1 + at % 7) as f32
}

fn fill(rank: usize, memory: &mut [f32]) {
    memory.iter_mut().enumerate().for_each(|(at, element)| *element = value(rank, at));
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

impl Race {
    fn is_in_place(&self) -> bool {
        matches!(&*self.collective, "all_reduce" | "broadcast" | "reduce")
    }

    /// The elements that a rank sends and receives.
    fn counts(&self, bytes: usize) -> [usize; 2] {
        let ranks = self.comm.size();
        let part = (bytes / 4 / ranks).max(1);
        match &*self.collective {
            "all_gather" => [part, part * ranks],
            "reduce_scatter" => [part * ranks, part],
            "all_to_all" => [part * ranks; 2],
            _ => [(bytes / 4).max(1); 2],
        }
    }

    fn call(&mut self, [sent, received]: [usize; 2]) -> Result<()> {
        let Self { comm, send, recv, .. } = self;
        let recv = recv.get(received);
        let called = match &*self.collective {
            "all_reduce" => comm.all_reduce(recv, ReduceOp::Sum),
            "broadcast" => comm.broadcast(recv, 0),
            "all_gather" => comm.all_gather(send.get(sent), recv),
            "reduce_scatter" => comm.reduce_scatter(send.get(sent), recv, ReduceOp::Sum),
            "reduce" => comm.reduce(recv, ReduceOp::Sum, 0),
            "all_to_all" => comm.all_to_all(send.get(sent), recv),
            other => return Err(format!("{other} is no collective of benches/peers/run").into()),
        };
        Ok(called?)
    }

    fn refill_input(&mut self, counts: [usize; 2]) {
        let rank = self.comm.rank();
        let input = if self.is_in_place() { &mut self.recv } else { &mut self.send };
        fill(rank, input.get(counts[0]));
    }

    /// Makes one call. A wrong element is an error.
    fn check(&mut self, counts: [usize; 2]) -> Result<()> {
        let (rank, ranks, part) = (self.comm.rank(), self.comm.size(), counts[1]);
        self.refill_input(counts);
        self.call(counts)?;
        let sum = |at: usize| (ranks * (ranks + 1) / 2 + ranks * (at % 7)) as f32;
        let right = |at: usize| match &*self.collective {
            "broadcast" => value(0, at),
            "all_gather" => value(at / counts[0], at % counts[0]),
            "reduce_scatter" => sum(rank * part + at),
            "all_to_all" => value(at / (part / ranks), rank * (part / ranks) + at % (part / ranks)),
            _ => sum(at),
        };
        let has_result = self.collective != "reduce" || rank == 0;
        let result = self.recv.get(part);
        match result.iter().enumerate().find(|&(at, &element)| element != right(at)) {
            Some((at, &element)) if has_result => {
                let right = right(at);
                Err(format!("rank {rank}: element {at} of {part} is {element}, not {right}").into())
            }
            _ => Ok(()),
        }
    }

    /// The seconds that these calls took this rank.
    fn batch(&mut self, counts: [usize; 2], calls: usize) -> Result<f64> {
        self.comm.barrier()?;
        if !self.refill {
            let start = Instant::now();
            for _ in 0..calls {
                self.call(counts)?;
            }
            return Ok(start.elapsed().as_secs_f64());
        }
        let mut seconds = 0.0;
        for _ in 0..calls {
            self.refill_input(counts);
            self.comm.barrier()?;
            let start = Instant::now();
            self.call(counts)?;
            seconds += start.elapsed().as_secs_f64();
        }
        Ok(seconds)
    }

    /// The seconds of a batch at the slowest rank.
    fn slowest(&mut self, counts: [usize; 2], calls: usize) -> Result<f64> {
        let mut seconds = [self.batch(counts, calls)?];
        self.comm.all_reduce(&mut seconds, ReduceOp::Max)?;
        Ok(seconds[0])
    }

    fn measure(&mut self, bytes: usize) -> Result<()> {
        let counts = self.counts(bytes);
        self.check(counts)?;
        self.batch(counts, WARM_UP_CALLS)?;
        let mut calls = 1;
        let mut seconds = self.slowest(counts, calls)?;
        while seconds < MIN_BATCH_SECONDS && calls < 1 << 20 {
            calls *= 4;
            seconds = self.slowest(counts, calls)?;
        }
        let fit = self.budget_seconds / BATCHES as f64 / (seconds / calls as f64);
        let calls = (fit as usize).clamp(1, 1_000_000);
        for _ in 0..BATCHES {
            let us = self.slowest(counts, calls)? / calls as f64 * 1e6;
            if self.comm.rank() == 0 {
                // A harness that has gone away ends the job by itself.
                let _ = writeln!(stdout(), "{bytes} {us:.4}");
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [memory, collective, budget, refill, sizes @ ..] = &arguments[..] else {
        return Err(
            "arguments: ordinary|registered COLLECTIVE BUDGET_SECONDS REFILL BYTES...".into()
        );
    };
    let sizes =
        sizes.iter().map(|size| size.parse()).collect::<std::result::Result<Vec<usize>, _>>()?;
    let most = sizes.iter().max().map_or(0, |&bytes| bytes / 4).max(comm.size());
    let mut allocate = || match &**memory {
        "registered" => comm.alloc(most).map(Memory::Registered),
        _ => Ok(Memory::Ordinary(vec![0.0; most])),
    };
    let (mut send, mut recv) = (allocate()?, allocate()?);
    // The first touch of a page is not part of any measurement.
    send.get(most).fill(0.0);
    recv.get(most).fill(0.0);
    let (collective, refill) = (collective.clone(), refill == "1");
    let mut race = Race { comm, collective, budget_seconds: budget.parse()?, refill, send, recv };
    sizes.into_iter().try_for_each(|bytes| race.measure(bytes))
}
