//! The driver of ringreduce in the race with its peers: `race ordinary|registered`, then the
//! arguments of loop.h, whose loop this is.

use std::error::Error;
use std::io::{Write, stdout};
use std::ops::DerefMut;
use std::time::Instant;

use ringreduce::{Communicator, ReduceOp};

const BATCHES: usize = 3;
const WARM_UP_CALLS: usize = 5;
const MIN_BATCH_SECONDS: f64 = 0.004;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Elements of a cache line, at which buffers begin, as those of loop.h do.
const LINE_ELEMENTS: usize = 16;

struct Race<M> {
    comm: Communicator,
    collective: String,
    budget_seconds: f64,
    refill: bool,
    timed_alone: bool,
    send: M,
    recv: M,
}

fn value(rank: usize, at: usize) -> f32 {
    (rank + 1 + at % 7) as f32
}

impl<M: DerefMut<Target = [f32]>> Race<M> {
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
        let (send, recv) = (&send[..sent], &mut recv[..received]);
        let called = match &*self.collective {
            "all_reduce" => comm.all_reduce(recv, ReduceOp::Sum),
            "broadcast" => comm.broadcast(recv, 0),
            "all_gather" => comm.all_gather(send, recv),
            "reduce_scatter" => comm.reduce_scatter(send, recv, ReduceOp::Sum),
            "reduce" => comm.reduce(recv, ReduceOp::Sum, 0),
            "all_to_all" => comm.all_to_all(send, recv),
            other => return Err(format!("{other} is no collective of benches/peers/run").into()),
        };
        Ok(called?)
    }

    fn fill(&mut self, [sent, _]: [usize; 2]) {
        let is_in_place = matches!(&*self.collective, "all_reduce" | "broadcast" | "reduce");
        let input = if is_in_place { &mut self.recv } else { &mut self.send };
        let elements = input[..sent].iter_mut().enumerate();
        elements.for_each(|(at, element)| *element = value(self.comm.rank(), at));
    }

    /// Makes one call. A wrong element is an error.
    fn check(&mut self, counts: [usize; 2]) -> Result<()> {
        let (rank, ranks, [sent, received]) = (self.comm.rank(), self.comm.size(), counts);
        self.fill(counts);
        self.call(counts)?;
        let part = sent / ranks;
        let sum = |at: usize| (ranks * (ranks + 1) / 2 + ranks * (at % 7)) as f32;
        let right = |at: usize| match &*self.collective {
            "broadcast" => value(0, at),
            "all_gather" => value(at / sent, at % sent),
            "reduce_scatter" => sum(rank * part + at),
            "all_to_all" => value(at / part, rank * part + at % part),
            _ => sum(at),
        };
        let has_result = self.collective != "reduce" || rank == 0;
        match (0..received).find(|&at| has_result && self.recv[at] != right(at)) {
            Some(at) => Err(format!("rank {rank}: element {at} is {}", self.recv[at]).into()),
            None => Ok(()),
        }
    }

    /// The seconds that these calls took the slowest rank.
    fn batch(&mut self, counts: [usize; 2], calls: usize) -> Result<f64> {
        self.comm.barrier()?;
        let (mut start, mut seconds) = (Instant::now(), 0.0);
        for _ in 0..calls {
            if self.refill {
                self.fill(counts);
            }
            if self.timed_alone {
                self.comm.barrier()?;
                start = Instant::now();
            }
            self.call(counts)?;
            if self.timed_alone {
                seconds += start.elapsed().as_secs_f64();
            }
        }
        let mut slowest = [if self.timed_alone { seconds } else { start.elapsed().as_secs_f64() }];
        self.comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        Ok(slowest[0])
    }

    fn measure(&mut self, bytes: usize) -> Result<()> {
        let counts = self.counts(bytes);
        self.check(counts)?;
        self.batch(counts, WARM_UP_CALLS)?;
        let mut calls = 1;
        let mut seconds = self.batch(counts, calls)?;
        while seconds < MIN_BATCH_SECONDS && calls < 1 << 20 {
            calls *= 4;
            seconds = self.batch(counts, calls)?;
        }
        let fit = self.budget_seconds / BATCHES as f64 / (seconds / calls as f64);
        let calls = (fit as usize).clamp(1, 1_000_000);
        for _ in 0..BATCHES {
            let us = self.batch(counts, calls)? / calls as f64 * 1e6;
            if self.comm.rank() == 0 {
                // A harness that has gone away ends the job by itself.
                let _ = writeln!(stdout(), "{bytes} {us:.4}");
            }
        }
        Ok(())
    }
}

fn race<M: DerefMut<Target = [f32]>>(
    comm: Communicator,
    [mut send, mut recv]: [M; 2],
    arguments: &[String],
) -> Result<()> {
    // The first touch of a page is not part of any measurement.
    send.fill(0.0);
    recv.fill(0.0);
    let (collective, refill) = (arguments[1].clone(), arguments[3] == "1");
    let timed_alone = refill || matches!(&*collective, "broadcast" | "reduce");
    let budget_seconds = arguments[2].parse()?;
    let mut race = Race { comm, collective, budget_seconds, refill, timed_alone, send, recv };
    arguments[4..].iter().try_for_each(|bytes| race.measure(bytes.parse()?))
}

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() < 5 {
        return Err("ordinary|registered COLLECTIVE BUDGET_SECONDS REFILL BYTES...".into());
    }
    let bytes = arguments[4..].iter().filter_map(|bytes| bytes.parse::<usize>().ok());
    let most = bytes.max().map_or(0, |bytes| bytes / 4).max(comm.size());
    if arguments[0] == "registered" {
        let memory = [comm.alloc(most)?, comm.alloc(most)?];
        return race(comm, memory, &arguments);
    }
    let mut memory = [vec![0.0; most + LINE_ELEMENTS], vec![0.0; most + LINE_ELEMENTS]];
    let at_a_line = memory.each_mut().map(|memory| {
        let start = memory.as_ptr().align_offset(LINE_ELEMENTS * size_of::<f32>());
        &mut memory[start..start + most]
    });
    race(comm, at_a_line, &arguments)
}
