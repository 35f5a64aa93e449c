//! What messages cost here: a few barriers and larger calls that all ranks make together before
//! their first collective, and what `tune` adds, unless rank 0 remembers from another time.
//! May touch: as `comm`.
//! Law: rank 0's figures are everybody's, so that all choose the same algorithms.

use std::time::Instant;

use super::cache::{Figures, Memory};
use crate::api::Seat;
use crate::api::options::Settings;
use crate::element::{DataType, ReduceOp};
use crate::engine::{Engine, Head, PROBE, Ways};
use crate::error::Result;
use crate::exec::{Halt, Wait};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::{Request, Rules, Source, digest, mix};
use crate::schedule::{Algorithm, Collective, Ring, Schedule};

/// Bytes of a rank's part in the larger calls.
const PART: usize = 64 << 10;
/// Of so many tries the best counts: what else the machine does is not ours.
const TRIES: usize = 4;
/// The number of the first call that all ranks make after those of single hosts, which are fewer.
const ALL_TOGETHER: u64 = 1 << 16;
/// Calls in one try: small ones, and large ones.
const SMALL: usize = 16;
const LARGE: usize = 3;

impl Engine {
    /// Finds out what messages cost, before the first call that there is a choice for.
    #[cold]
    pub(crate) fn find_speed(&mut self, seat: &Seat, settings: &Settings) -> Result<()> {
        let found = self.agree(seat, settings);
        found.map_err(|halt| self.fail(seat, settings, "the first probe", halt))
    }

    fn agree(&mut self, seat: &Seat, settings: &Settings) -> Result<(), Halt> {
        let mut tool = Tool { engine: self, seat, settings, calls: 0 };
        let place = (seat.rank == 0).then(|| Memory::of(seat));
        let known = place.as_ref().and_then(Memory::recall);
        if let Some(figures) = tool.share(known, 0)? {
            self.planner.set_speeds(figures.speeds(Source::Remembered));
            self.planner.set_tuning(figures.tuning);
            return Ok(());
        }
        // Not everybody's clock says the same.
        let measured = tool.measure()?;
        let measured = tool.share(Some(measured), 0)?.unwrap_or(measured);
        tool.engine.planner.set_speeds(measured.speeds(Source::Measured));
        let measured = Figures { tuning: tool.tune()?, ..measured };
        if let Some(memory) = place {
            memory.keep(measured);
        }
        self.planner.set_tuning(measured.tuning);
        Ok(())
    }
}

/// Whose calls are timed.
pub(super) struct Circle {
    /// Its ranks, in the order of their ring.
    ranks: Vec<u32>,
    /// How many of the ring's links are of the kind that is looked for, and how long those of the
    /// other kind take.
    of_the_kind: f64,
    other_latency: f64,
    /// Has it links between all pairs?
    all_pairs: bool,
    /// Is it the world?
    whole: bool,
}

/// Makes calls on the links as they are.
pub(super) struct Tool<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) seat: &'a Seat,
    settings: &'a Settings,
    /// Made so far: each has a number of its own.
    calls: u64,
}

impl Tool<'_> {
    /// What the rank `root` knows, to all.
    fn share(&mut self, known: Option<Figures>, root: u32) -> Result<Option<Figures>, Halt> {
        let Figures { speeds, tuning } = known.unwrap_or_default();
        let flag = [f64::from(u8::from(known.is_some()))];
        let words = flag.iter().chain(speeds.iter().flatten()).chain(tuning.0.iter().flatten());
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        let collective = Collective::Broadcast { root };
        let request = Request { collective, count: bytes.len(), dtype: DataType::U8, op: None };
        self.call(None, Algorithm::Ring, &request, &Buffer::in_place(&mut bytes))?;
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map(f64::from_le_bytes));
        let mut next = || words.next().and_then(Result::ok).unwrap_or(0.0);
        let known = next() > 0.0;
        let mut shared = Figures::default();
        let Figures { speeds, tuning } = &mut shared;
        speeds
            .iter_mut()
            .flatten()
            .chain(tuning.0.iter_mut().flatten())
            .for_each(|it| *it = next());
        Ok(known.then_some(shared))
    }

    /// Where there are several hosts, the ranks of each that has several first make calls among
    /// themselves; the figures of the first such host are everybody's.
    fn measure(&mut self) -> Result<Figures, Halt> {
        let ring = self.engine.planner.ring();
        let (size, crossings, me) = (ring.size(), ring.crossings(), self.seat.rank as u32);
        let all_pairs = Algorithm::AllPairs.reaches(ring);
        let several = |host: &&[u32]| crossings > 0 && host.len() > 1;
        let first = ring.hosts().find(several).map(|host| host[0]);
        let own = ring.hosts().find(|host| host.contains(&me)).filter(several).map(<[u32]>::to_vec);
        let circle = |ranks: Vec<u32>, whole| {
            let (of_the_kind, other_latency) = (ranks.len() as f64, 0.0);
            Circle { ranks, of_the_kind, other_latency, all_pairs, whole }
        };
        let mut world = circle((0..size).collect(), true);
        let mut near = own.map(|host| self.figures(&circle(host, false))).transpose()?;
        if let Some(first) = first {
            // Who made no calls has to number the next ones as the others do.
            self.calls = ALL_TOGETHER;
            let ours = near.map(|near| Figures { speeds: [near; 2], ..Figures::default() });
            near = self.share(ours, first)?.map(|figures| figures.speeds[0]);
        }
        if let Some([latency, ..]) = near {
            (world.of_the_kind, world.other_latency) = (f64::from(crossings), latency);
        }
        let far = self.figures(&world)?;
        Ok(Figures { speeds: [near.unwrap_or(far), far], ..Figures::default() })
    }

    /// From the closed forms of the ring's and all pairs' barrier, of an all-gather and of an
    /// all-reduce on the ring: see the files of the algorithms. A lap of a ring waits for each of
    /// its links once, of whichever kind.
    fn figures(&mut self, circle: &Circle) -> Result<[f64; 4], Halt> {
        let size = circle.ranks.len() as f64;
        let hops = size - 1.0;
        let ours = circle.of_the_kind / size;
        let others = (1.0 - ours) * circle.other_latency;
        let mut memory = vec![0_u8; circle.ranks.len() * PART];
        let round = self.barrier(circle, Algorithm::Ring)? - 2.0 * hops * others;
        let (step, latency) = if circle.all_pairs {
            let pairs = self.barrier(circle, Algorithm::AllPairs)?;
            if circle.ranks.len() == 2 {
                // 3o + 2a and 2o + a.
                let step = (2.0 * pairs - round).max(0.0);
                (step, pairs - 2.0 * step)
            } else {
                // (2n-1)o + 2(n-1)a and (2n-1)o + a.
                let latency = (round - pairs) / (2.0 * hops * ours - 1.0);
                ((pairs - latency) / (2.0 * size - 1.0), latency)
            }
        } else {
            // Half and half.
            let each = round / (2.0 * size - 1.0 + 2.0 * hops * ours);
            (each, each)
        };
        let (step, latency) = (step.max(1e-9), latency.max(1e-9));
        let at = circle.ranks.iter().position(|&rank| rank as usize == self.seat.rank);
        let mine = at.unwrap_or(0) * PART..(at.unwrap_or(0) + 1) * PART;
        let request = request(Collective::AllGather, PART, None);
        let gathered = self.best(LARGE, |tool| {
            let whole = 0..memory.len();
            let buffer = Buffer::within(&mut memory, mine.clone(), whole);
            tool.call(Some(circle), Algorithm::Ring, &request, &buffer)
        })?;
        let (part, hop) = (PART as f64, ours * latency + others);
        let byte = ((gathered - hops * hop) / size - step).max(0.0) / part;
        let reduced = self.all_reduce(circle, &mut memory)?;
        let moved = (2.0 * size - 1.0) * (step + part * byte) + 2.0 * hops * hop;
        let reduce = (reduced - moved).max(0.0) / (hops * part);
        Ok([latency, step, byte.max(1e-13), reduce])
    }

    fn barrier(&mut self, circle: &Circle, by: Algorithm) -> Result<f64, Halt> {
        let request = request(Collective::Barrier, 1, Some(ReduceOp::Max));
        let mut token = [0];
        self.best(SMALL, |tool| {
            tool.call(Some(circle), by, &request, &Buffer::in_place(&mut token))
        })
    }

    fn all_reduce(&mut self, circle: &Circle, memory: &mut [u8]) -> Result<f64, Halt> {
        let mut request = request(Collective::AllReduce, memory.len() / 4, Some(ReduceOp::Sum));
        request.dtype = DataType::F32;
        self.best(LARGE, |tool| {
            tool.call(Some(circle), Algorithm::Ring, &request, &Buffer::in_place(memory))
        })
    }

    /// Seconds of one call, of the best try.
    fn best(
        &mut self,
        times: usize,
        mut call: impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<f64, Halt> {
        // This one fills caches.
        self.seconds(times, &mut call)?;
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            best = best.min(self.seconds(times, &mut call)?);
        }
        Ok(best)
    }

    /// Seconds of one call, of so many.
    pub(super) fn seconds(
        &mut self,
        times: usize,
        call: &mut impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<f64, Halt> {
        let start = Instant::now();
        (0..times).try_for_each(|_| call(self))?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    }

    /// One call, among all ranks or those of a circle.
    pub(super) fn call(
        &mut self,
        circle: Option<&Circle>,
        algorithm: Algorithm,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Result<(), Halt> {
        let op = request.op.unwrap_or_else(|| ReduceOp::Max.into());
        let Some(kernel) = Kernel::select(request.dtype, op, self.seat.peers.len()) else {
            return Ok(());
        };
        self.calls += 1;
        let engine = &mut *self.engine;
        engine.planner.go_by(Rules { forced: Some(algorithm), ..Rules::default() });
        let of_few = circle.filter(|circle| !circle.whole);
        let plan = match of_few.and_then(|few| few.schedule(request, algorithm, self.seat.rank)) {
            None => engine.planner.plan(request),
            Some(schedule) => {
                // The same for all ranks of all hosts.
                let name = digest(request.collective.name().as_bytes());
                let number = mix(mix(PROBE ^ algorithm as u64) ^ name);
                engine.planner.adopt(&schedule, number);
                engine.planner.own(request, number)
            }
        };
        let ways = Ways {
            me: self.seat.rank,
            known: None,
            residents: self.seat.local_size,
            cache: engine.cache,
            registry: &mut engine.registry,
            links: &mut engine.links,
            scratch: &mut engine.scratch,
            lanes: &mut engine.lanes,
        };
        let wait = Wait::new(&engine.patience, self.settings.timeout, &engine.abort);
        let wait = wait.recorded(&self.seat.flight);
        ways.make(&plan, &Head::of(request, kernel), PROBE | self.calls, buffer, &wait)
    }
}

impl Circle {
    /// A rank's steps of a call among its ranks alone.
    fn schedule(&self, request: &Request, algorithm: Algorithm, rank: usize) -> Option<Schedule> {
        let at = self.ranks.iter().position(|&one| one as usize == rank)?;
        let ring = Ring::natural(self.ranks.len() as u32);
        let mut schedule = algorithm.schedule(request.collective, &ring, at as u32)?;
        for step in &mut schedule.steps {
            step.from = self.ranks[step.from as usize];
            step.to = self.ranks[step.to as usize];
        }
        Some(schedule)
    }
}

fn request(collective: Collective, count: usize, op: Option<ReduceOp>) -> Request {
    Request { collective, count, dtype: DataType::U8, op: op.map(Into::into) }
}
