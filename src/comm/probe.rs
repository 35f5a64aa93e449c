//! What messages cost here: a few barriers and larger calls that all ranks make together before
//! their first collective, unless rank 0 remembers from another time. May touch: as `comm`.
//! Law: rank 0's figures are everybody's, so that all choose the same algorithms.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;
use std::{fs, io};

use super::engine::Engine;
use super::options::Settings;
use super::{Origin, Seat};
use crate::element::{DataType, ReduceOp};
use crate::error::Result;
use crate::exec::{self, Call, Halt, Wait};
use crate::kernel::Kernel;
use crate::link::Frame;
use crate::memory::Buffer;
use crate::plan::{Request, digest};
use crate::schedule::{Algorithm, Collective};
use crate::sim::Speed;
use crate::sync::cpus;

/// Bytes of a rank's part in the larger calls.
const PART: usize = 64 << 10;
/// Of so many tries the best counts: what else the machine does is not ours.
const TRIES: usize = 3;
/// Calls in one try: small ones, and large ones.
const SMALL: usize = 16;
const LARGE: usize = 3;
/// In the numbers of these calls, which no others have.
const MARK: u64 = 1 << 62;
/// The first words of a remembered file; another layout gets another number.
const VERSION: &str = "ringreduce speeds 1";

/// What thread ranks of this process remember.
static REMEMBERED: LazyLock<Mutex<BTreeMap<String, [f64; 4]>>> = LazyLock::new(Mutex::default);

impl Engine {
    /// Finds out what messages cost, before the first call that there is a choice for.
    #[cold]
    pub(super) fn find_speed(&mut self, seat: &Seat, settings: &Settings) -> Result<()> {
        let found = self.agree(seat, settings);
        self.planner.force(settings.algorithm.map(|(algorithm, _)| algorithm));
        let [latency, step, byte, reduce] =
            found.map_err(|halt| self.fail(seat, settings, "the first probe", halt))?;
        self.planner.set_speed(Speed { latency, step, byte, reduce });
        Ok(())
    }

    fn agree(&mut self, seat: &Seat, settings: &Settings) -> Result<[f64; 4], Halt> {
        let mut tool = Tool { engine: self, seat, settings, calls: 0 };
        let place = (seat.rank == 0).then(|| Memory::of(seat));
        let known = place.as_ref().and_then(Memory::recall);
        let shared = tool.share(known)?;
        if let Some(speed) = shared {
            return Ok(speed);
        }
        let measured = tool.measure()?;
        if let Some(memory) = place {
            memory.keep(measured);
        }
        // Not everybody's clock says the same.
        Ok(tool.share(Some(measured))?.unwrap_or(measured))
    }
}

/// Makes calls on the links as they are.
struct Tool<'a> {
    engine: &'a mut Engine,
    seat: &'a Seat,
    settings: &'a Settings,
    /// Made so far: each has a number of its own.
    calls: u64,
}

impl Tool<'_> {
    /// What rank 0 knows, to all.
    fn share(&mut self, known: Option<[f64; 4]>) -> Result<Option<[f64; 4]>, Halt> {
        let words = known.map_or([0.0; 5], |[a, o, b, g]| [1.0, a, o, b, g]);
        let mut bytes: Vec<u8> = words.into_iter().flat_map(f64::to_le_bytes).collect();
        let collective = Collective::Broadcast { root: 0 };
        let request = Request { collective, count: bytes.len(), dtype: DataType::U8, op: None };
        self.call(Algorithm::Ring, &request, &Buffer::in_place(&mut bytes))?;
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map(f64::from_le_bytes));
        let mut next = || words.next().and_then(Result::ok).unwrap_or(0.0);
        Ok((next() > 0.0).then(|| [next(), next(), next(), next()]))
    }

    /// From the closed forms of the ring's and all pairs' barrier, of an all-gather and of an
    /// all-reduce on the ring: see the files of the algorithms.
    fn measure(&mut self) -> Result<[f64; 4], Halt> {
        let n = self.seat.peers.len();
        let (size, hops) = (n as f64, n as f64 - 1.0);
        let mut memory = vec![0_u8; n * PART];
        let round = self.barrier(Algorithm::Ring)?;
        let (step, latency) = if Algorithm::AllPairs.reaches(n as u32) {
            let pairs = self.barrier(Algorithm::AllPairs)?;
            if n == 2 {
                // 3o + 2a and 2o + a.
                let step = (2.0 * pairs - round).max(0.0);
                (step, pairs - 2.0 * step)
            } else {
                // (2n-1)o + 2(n-1)a and (2n-1)o + a.
                let latency = (round - pairs) / (2.0 * size - 3.0);
                ((pairs - latency) / (2.0 * size - 1.0), latency)
            }
        } else {
            // Half and half.
            let each = round / (4.0 * size - 3.0);
            (each, each)
        };
        let (step, latency) = (step.max(1e-9), latency.max(1e-9));
        let mine = self.seat.rank * PART..(self.seat.rank + 1) * PART;
        let request = request(Collective::AllGather, PART, None);
        let gathered = self.best(LARGE, |tool| {
            let whole = 0..memory.len();
            let buffer = Buffer::within(&mut memory, mine.clone(), whole);
            tool.call(Algorithm::Ring, &request, &buffer)
        })?;
        let part = PART as f64;
        let byte = ((gathered - hops * latency) / size - step).max(0.0) / part;
        let reduced = self.all_reduce(&mut memory)?;
        let moved = (2.0 * size - 1.0) * (step + part * byte) + 2.0 * hops * latency;
        let reduce = (reduced - moved).max(0.0) / (hops * part);
        Ok([latency, step, byte.max(1e-13), reduce])
    }

    fn barrier(&mut self, algorithm: Algorithm) -> Result<f64, Halt> {
        let request = request(Collective::Barrier, 1, Some(ReduceOp::Max));
        self.best(SMALL, |tool| tool.call(algorithm, &request, &Buffer::in_place(&mut [0])))
    }

    fn all_reduce(&mut self, memory: &mut [u8]) -> Result<f64, Halt> {
        let mut request = request(Collective::AllReduce, memory.len() / 4, Some(ReduceOp::Sum));
        request.dtype = DataType::F32;
        self.best(LARGE, |tool| tool.call(Algorithm::Ring, &request, &Buffer::in_place(memory)))
    }

    /// Seconds of one call, of the best try.
    fn best(
        &mut self,
        times: usize,
        mut call: impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<f64, Halt> {
        let mut best = f64::INFINITY;
        // The first one fills caches.
        for attempt in 0..=TRIES {
            let start = Instant::now();
            (0..times).try_for_each(|_| call(self))?;
            if attempt > 0 {
                best = best.min(start.elapsed().as_secs_f64() / times as f64);
            }
        }
        Ok(best)
    }

    fn call(
        &mut self,
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
        engine.planner.force(Some(algorithm));
        let plan = engine.planner.plan(request);
        let fingerprint = plan.fingerprint;
        let frame = Frame { len: 0, epoch: 0, sequence: MARK | self.calls, fingerprint };
        let (schedule, partition, streaming) = (plan.schedule, plan.partition, false);
        let call = Call { schedule, partition, frame, kernel, streaming };
        if engine.scratch.len() < partition.scratch_bytes() {
            engine.scratch.resize(partition.scratch_bytes(), 0);
        }
        let buffer = buffer.with_scratch(&mut engine.scratch);
        let wait = Wait::new(&engine.patience, self.settings.timeout, &engine.abort);
        exec::run(&call, &buffer, &mut engine.links, &wait)
    }
}

fn request(collective: Collective, count: usize, op: Option<ReduceOp>) -> Request {
    Request { collective, count, dtype: DataType::U8, op: op.map(Into::into) }
}

/// Where figures are remembered: in this process for its threads, else in the user's cache.
struct Memory {
    /// What the figures hold for.
    machine: String,
    /// A file of its own for each; `None` within the process.
    file: Option<PathBuf>,
    threads: bool,
}

impl Memory {
    fn of(seat: &Seat) -> Self {
        let (n, kinds) = (seat.peers.len(), seat.transports.join("+"));
        let (local, cpus, model) = (seat.local_size, cpus(), cpu_model());
        let machine = format!("{n} ranks, {local} here, {cpus} cpus, {kinds}, {model}");
        let name = format!("speeds-{:016x}", digest(machine.as_bytes()));
        let (file, threads) = match &seat.origin {
            Origin::Processes(meeting) => {
                (meeting.config().cache.as_ref().map(|folder| folder.join(name)), false)
            }
            Origin::Threads(_) => (None, true),
        };
        Self { machine, file, threads }
    }

    fn recall(&self) -> Option<[f64; 4]> {
        if self.threads {
            let all = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
            return all.get(&self.machine).copied();
        }
        let file = self.file.as_deref()?;
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("{} can't be read and is ignored: {e}", file.display());
                return None;
            }
        };
        let found = parse(&text, &self.machine);
        if found.is_none() {
            let file = file.display();
            tracing::warn!("{file} is no file of this machine's speeds and is ignored");
        }
        found
    }

    fn keep(&self, speed: [f64; 4]) {
        if self.threads {
            let mut all = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(self.machine.clone(), speed);
        } else if let Some(file) = &self.file
            && let Err(e) = write(file, &text(speed, &self.machine))
        {
            tracing::warn!("measured speeds can't be kept in {}: {e}", file.display());
        }
    }
}

fn text([latency, step, byte, reduce]: [f64; 4], machine: &str) -> String {
    format!("{VERSION}\n{machine}\n{latency:e} {step:e} {byte:e} {reduce:e}\n")
}

fn parse(text: &str, machine: &str) -> Option<[f64; 4]> {
    let [version, of, numbers] = *text.lines().collect::<Vec<_>>() else { return None };
    let numbers: Vec<f64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let speed: [f64; 4] = numbers.try_into().ok()?;
    let sane = speed.iter().all(|&number| (0.0..1.0).contains(&number));
    (version == VERSION && of == machine && sane).then_some(speed)
}

/// Whole or not at all, whoever else writes.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = file.with_extension(std::process::id().to_string());
    fs::write(&draft, text)?;
    fs::rename(&draft, file)
}

fn cpu_model() -> String {
    let all = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = all.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or("some cpu").to_owned()
}

#[cfg(test)]
mod tests {
    use super::{parse, text};

    #[test]
    fn what_is_kept_is_read_back_and_nothing_else() {
        let speed = [1e-6, 2.5e-7, 1e-10, 0.0];
        let kept = text(speed, "4 ranks");
        assert_eq!(parse(&kept, "4 ranks"), Some(speed));
        assert_eq!(parse(&kept, "5 ranks"), None);
        let cut = &kept[..kept.len() - 6];
        for wrong in
            ["", "\n\n\n", cut, &kept.replace("speeds 1", "speeds 2"), &kept.replace('1', "x")]
        {
            assert_eq!(parse(wrong, "4 ranks"), None, "{wrong}");
        }
        let negative = kept.replace("2.5e-7", "-1");
        assert_eq!(parse(&negative, "4 ranks"), None);
    }
}
