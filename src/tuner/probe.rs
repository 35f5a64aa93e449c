//! The probe of the links: some barriers and larger calls that all ranks make together before
//! their first collective, unless rank 0 has the speeds in its cache. `measure` adds the
//! algorithms.
//! Law: all ranks take rank 0's measurements, so that all choose the same algorithms.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cache::{Measurements, SpeedCache, counting};
use super::group::ProbeGroup;
use crate::element::{DataType, ReduceOp};
use crate::engine::settings::Settings;
use crate::engine::{CheckedCall, Engine, Executor, PROBE_SEQUENCE_BIT, RankInfo};
use crate::error::{Result, warn};
use crate::exec::{Halt, Wait};
use crate::memory::Buffer;
use crate::plan::{Request, Rules, Source, Speeds, digest, mix};
use crate::schedule::{Algorithm, Collective};

/// The most bytes of a rank's part in the larger calls, and of all parts: every rank has memory for
/// all.
const PART_BYTES: usize = 64 << 10;
const ALL_PARTS_BYTES: usize = 1 << 20;
/// Tries of each measurement. The fastest counts, because a disturbance by other programs only adds
/// time.
const TRIES_PER_PROBE: usize = 4;
/// The number of the first call of all ranks, above the numbers of calls within hosts.
const FIRST_WORLD_CALL: u64 = 1 << 16;
/// Calls in one try: of barriers, and of larger calls.
const SMALL_CALLS_PER_TRY: usize = 16;
const LARGE_CALLS_PER_TRY: usize = 3;
/// After how long the user is told that ranks still measure: the next measuring call may take
/// seconds more.
const SLOW_MEASUREMENT: Duration = Duration::from_secs(2);
/// Seconds for the tries of one measurement. A call is not repeated unless two fit: one of 64 ranks
/// on two CPUs takes 70 ms, one of 256 ranks half a second, and one of 16 ranks as long where other
/// programs have the CPUs.
const SECONDS_PER_MEASUREMENT: f64 = 0.1;

impl Engine {
    /// Measures the speeds of links and algorithms, before the first call that has a choice of
    /// algorithms.
    #[cold]
    pub(crate) fn measure_speeds(&mut self, settings: &Settings) -> Result<()> {
        let found = self.agree_on_speeds(settings);
        found.map_err(|halt| self.fail(settings, "the first measurement", halt))
    }

    fn agree_on_speeds(&mut self, settings: &Settings) -> Result<(), Halt> {
        if !self.planner.has_measurements() {
            self.planner.set_speeds(Speeds::assumed());
            return Ok(());
        }
        let rank_info = Arc::clone(&self.rank_info);
        let rank_info = &*rank_info;
        let (began, has_told) = (Instant::now(), rank_info.rank > 0);
        let has_opened = [false; Algorithm::ALL.len()];
        let mut prober = Prober {
            engine: self,
            rank_info,
            settings,
            calls: 0,
            meeting_seconds: 0.0,
            began,
            has_told,
            has_opened,
        };
        let cache = SpeedCache::of(rank_info);
        let starts = cache.load();
        let barrier = match cache.is_pair {
            true => prober.barrier_now(starts.len() < 2)?,
            false => None,
        };
        let cached = counting(&starts, barrier);
        let is_shared = prober.all_have(cached.as_ref())?;
        if let Some(figures) = if is_shared { cached } else { prober.share(cached, 0)? } {
            cache.remember(figures);
            self.planner.set_speeds(figures.speeds(Source::Remembered));
            self.planner.set_tuning(figures.tuning);
            return Ok(());
        }
        // Clocks differ from rank to rank, so all take rank 0's measurements.
        let measured = prober.measure()?;
        let measured = prober.share(Some(measured), 0)?.unwrap_or(measured);
        prober.engine.planner.set_speeds(measured.speeds(Source::Measured));
        let measured = Measurements { tuning: prober.tune()?, ..measured };
        let stored = (rank_info.rank == 0).then(|| cache.store(measured));
        let stored = prober.share(stored, 0)?.unwrap_or(measured);
        cache.remember(stored);
        self.planner.set_speeds(stored.speeds(Source::Measured));
        self.planner.set_tuning(stored.tuning);
        Ok(())
    }
}

/// The time of a measured call.
struct Timed {
    /// The seconds of one call, in the fastest try.
    seconds: f64,
    /// True if there was time for several calls. All ranks of the group have the same answer.
    is_repeated: bool,
}

/// Makes the probe's calls.
pub(super) struct Prober<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) rank_info: &'a RankInfo,
    settings: &'a Settings,
    began: Instant,
    /// True once the user was told that the measurement takes long; rank 0 tells.
    has_told: bool,
    /// The algorithms whose links are connected.
    pub(super) has_opened: [bool; Algorithm::ALL.len()],
    /// Seconds of a call by which all ranks wait for each other, once that is measured.
    pub(super) meeting_seconds: f64,
    /// Calls made so far; a call's number is this plus [`PROBE_SEQUENCE_BIT`].
    calls: u64,
}

impl Prober<'_> {
    /// True if all ranks know the same measurements, or all know none: by numbers that fit the
    /// heads of slots, where a broadcast of the measurements would need memory of every link.
    fn all_have(&mut self, known: Option<&Measurements>) -> Result<bool, Halt> {
        // A float has all numbers of 52 bits.
        let number = known.map_or(0.0, |known| (known.digest() >> 12) as f64 + 1.0);
        let mut bounds = [number, -number];
        self.reduce(&mut bounds, ReduceOp::Max)?;
        Ok(bounds == [number, -number])
    }

    /// Broadcasts the measurements of rank `root`, if it has any.
    fn share(
        &mut self,
        known: Option<Measurements>,
        root: u32,
    ) -> Result<Option<Measurements>, Halt> {
        let flag = f64::from(u8::from(known.is_some()));
        let mut bytes = flag.to_le_bytes().to_vec();
        bytes.extend(known.unwrap_or_default().bytes());
        let collective = Collective::Broadcast { root };
        let request = Request { collective, count: bytes.len(), dtype: DataType::U8, op: None };
        self.call(None, Algorithm::Binomial, &request, &Buffer::in_place(&mut bytes))?;
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map(f64::from_le_bytes));
        let mut next = || words.next().and_then(Result::ok).unwrap_or(0.0);
        let is_known = next() > 0.0;
        let mut shared = Measurements::default();
        let Measurements { speeds, tuning } = &mut shared;
        speeds
            .iter_mut()
            .flatten()
            .chain(tuning.0.iter_mut().flatten().flatten())
            .for_each(|figure| *figure = next());
        Ok(is_known.then_some(shared))
    }

    /// The time of a barrier of two ranks now, by messages both ways, as the rank that took longer
    /// has measured it: whether their CPUs are near each other or far apart differs from start to
    /// start. None if a rank `has_no_choice` among several starts.
    fn barrier_now(&mut self, has_no_choice: bool) -> Result<Option<f64>, Halt> {
        let mut vetoes = [f64::from(u8::from(has_no_choice))];
        self.reduce(&mut vetoes, ReduceOp::Max)?;
        if vetoes[0] > 0.0 {
            return Ok(None);
        }
        let mut longest = [self.barrier(&self.world(), Algorithm::AllPairs)?];
        self.reduce(&mut longest, ReduceOp::Max)?;
        Ok(Some(longest[0]))
    }

    /// All ranks of the communicator.
    fn world(&self) -> ProbeGroup {
        let ring = self.engine.planner.ring();
        ProbeGroup::of((0..ring.size()).collect(), Algorithm::AllPairs.reaches(ring), true)
    }

    /// Measures the links. If there are several hosts, the ranks of each host first make calls
    /// among themselves; the figures of the first host with several ranks count for all.
    fn measure(&mut self) -> Result<Measurements, Halt> {
        let ring = self.engine.planner.ring();
        let (crossings, me) = (ring.crossings(), self.rank_info.rank as u32);
        let has_all_pairs = Algorithm::AllPairs.reaches(ring);
        let several = |host: &&[u32]| crossings > 0 && host.len() > 1;
        let first = ring.hosts().find(several).map(|host| host[0]);
        let own = ring.hosts().find(|host| host.contains(&me)).filter(several).map(<[u32]>::to_vec);
        let mut world = self.world();
        let own = own.map(|host| ProbeGroup::of(host, has_all_pairs, false));
        let mut near = own.map(|host| self.link_speeds(&host)).transpose()?;
        if let Some(first) = first {
            // Ranks that made no calls within a host number the next calls as the others do.
            self.calls = FIRST_WORLD_CALL;
            let ours =
                near.map(|near| Measurements { speeds: [near; 2], ..Measurements::default() });
            near = self.share(ours, first)?.map(|figures| figures.speeds[0]);
        }
        if let Some([latency, ..]) = near {
            (world.links_of_kind, world.other_latency) = (f64::from(crossings), latency);
        }
        let far = self.link_speeds(&world)?;
        Ok(Measurements { speeds: [near.unwrap_or(far), far], ..Measurements::default() })
    }

    /// Solves the closed forms of four calls for latency, step, byte and reduce: barriers by the
    /// ring and by all pairs, an all-gather and an all-reduce on the ring. The algorithms' files
    /// have the closed forms. A round of the ring waits for each of its links once, of either kind.
    fn link_speeds(&mut self, group: &ProbeGroup) -> Result<[f64; 4], Halt> {
        let size = group.ranks.len() as f64;
        let hops = size - 1.0;
        let ours = group.links_of_kind / size;
        let others = (1.0 - ours) * group.other_latency;
        let part_bytes = (ALL_PARTS_BYTES / group.ranks.len()).min(PART_BYTES);
        let mut memory = vec![0_u8; group.ranks.len() * part_bytes];
        let round = self.barrier(group, Algorithm::Ring)? - 2.0 * hops * others;
        let (step, latency) = if group.has_all_pairs {
            let pairs = self.barrier(group, Algorithm::AllPairs)?;
            if group.ranks.len() == 2 {
                // The ring's barrier takes 3 steps and 2 latencies, all pairs' 2 steps and 1
                // latency.
                let step = (2.0 * pairs - round).clamp(0.0, pairs / 2.0);
                (step, pairs - 2.0 * step)
            } else {
                // The ring's barrier takes 2n-1 steps and 2(n-1) latencies, all pairs' 2n-1 steps
                // and 1 latency.
                let latency = (round - pairs) / (2.0 * hops * ours - 1.0);
                ((pairs - latency) / (2.0 * size - 1.0), latency)
            }
        } else {
            // With one equation for two unknowns, a step is taken to cost as much as a latency.
            let each = round / (2.0 * size - 1.0 + 2.0 * hops * ours);
            (each, each)
        };
        let (step, latency) = (step.max(1e-9), latency.max(1e-9));
        let at = group.ranks.iter().position(|&rank| rank as usize == self.rank_info.rank);
        let mine = at.unwrap_or(0) * part_bytes..(at.unwrap_or(0) + 1) * part_bytes;
        let request = request(Collective::AllGather, part_bytes, None);
        let Timed { seconds: gathered, is_repeated } =
            self.fastest_try(group, LARGE_CALLS_PER_TRY, true, |prober| {
                let all_parts = 0..memory.len();
                let buffer = Buffer::in_one_memory(&mut memory, mine.clone(), all_parts);
                prober.call(Some(group), Algorithm::Ring, &request, &buffer)
            })?;
        let (part, hop) = (part_bytes as f64, ours * latency + others);
        let byte = ((gathered - hops * hop) / size - step).max(0.0) / part;
        // The all-gather has opened the links of the all-reduce. Where one call takes long, none is
        // made for the caches alone.
        let reduced = self.all_reduce(group, &mut memory, is_repeated)?;
        let moved = (2.0 * size - 1.0) * (step + part * byte) + 2.0 * hops * hop;
        let reduce = (reduced - moved).max(0.0) / (hops * part);
        Ok([latency, step, byte.max(1e-13), reduce])
    }

    fn barrier(&mut self, group: &ProbeGroup, by: Algorithm) -> Result<f64, Halt> {
        let request = request(Collective::Barrier, 1, Some(ReduceOp::Max));
        let mut token = [0];
        let timed = self.fastest_try(group, SMALL_CALLS_PER_TRY, true, |prober| {
            prober.call(Some(group), by, &request, &Buffer::in_place(&mut token))
        });
        Ok(timed?.seconds)
    }

    fn all_reduce(
        &mut self,
        group: &ProbeGroup,
        memory: &mut [u8],
        warms_up: bool,
    ) -> Result<f64, Halt> {
        let mut request = request(Collective::AllReduce, memory.len() / 4, Some(ReduceOp::Sum));
        request.dtype = DataType::F32;
        let timed = self.fastest_try(group, LARGE_CALLS_PER_TRY, warms_up, |prober| {
            prober.call(Some(group), Algorithm::Ring, &request, &Buffer::in_place(memory))
        });
        Ok(timed?.seconds)
    }

    /// The fastest of some tries of up to `calls` calls, as many as there is time for. Where
    /// `warms_up` is true, untimed calls before them open the links, fill the caches and wait for
    /// ranks that come late.
    fn fastest_try(
        &mut self,
        group: &ProbeGroup,
        calls: usize,
        warms_up: bool,
        mut call: impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<Timed, Halt> {
        if warms_up {
            self.open_links(&mut call)?;
        }
        // The next call tells all ranks how many calls there is time for.
        let mine = self.seconds_per_call(1, &mut call)?;
        let first = self.longest_of_all(group, mine)?;
        let affordable = (SECONDS_PER_MEASUREMENT / first.max(f64::MIN_POSITIVE)) as usize;
        let calls = calls.min(affordable.div_ceil(TRIES_PER_PROBE));
        let tries = if affordable > 1 { TRIES_PER_PROBE.min(affordable) } else { 0 };
        let mut best = first;
        if tries > 0 {
            // The ranks have left the call between, another one, at other times.
            call(self)?;
        }
        for _ in 0..tries {
            best = best.min(self.seconds_per_call(calls, &mut call)?);
        }
        Ok(Timed { seconds: best, is_repeated: tries > 0 })
    }

    /// Makes untimed calls, which connect all streams of their links: each is connected at its
    /// first slot, and a call may send one slot.
    pub(super) fn open_links(
        &mut self,
        call: &mut impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        (0..self.rank_info.streams_per_link).try_for_each(|_| call(self))
    }

    /// The longest of the times that the ranks of a group have measured.
    fn longest_of_all(&mut self, group: &ProbeGroup, seconds: f64) -> Result<f64, Halt> {
        let (mut bytes, op) = (seconds.to_ne_bytes(), Some(ReduceOp::Max));
        let mut request = request(Collective::AllReduce, 1, op);
        request.dtype = DataType::F64;
        // The ranks of one host among several may have no other links to each other.
        let algorithm = if group.is_world { Algorithm::Binomial } else { Algorithm::Ring };
        self.call(Some(group), algorithm, &request, &Buffer::in_place(&mut bytes))?;
        Ok(f64::from_ne_bytes(bytes))
    }

    /// Seconds of one call, as the mean of `times` calls.
    pub(super) fn seconds_per_call(
        &mut self,
        times: usize,
        call: &mut impl FnMut(&mut Self) -> Result<(), Halt>,
    ) -> Result<f64, Halt> {
        let start = Instant::now();
        (0..times).try_for_each(|_| call(self))?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    }

    /// Tells the user once that the measurement takes long.
    fn tell_if_slow(&mut self) {
        let waited = self.began.elapsed();
        if waited > SLOW_MEASUREMENT && !std::mem::replace(&mut self.has_told, true) {
            warn(&format!(
                "rank {} has measured the links between the ranks for {waited:.0?}, before the \
                 first call; a slow network or a busy host takes longer",
                self.rank_info.rank
            ));
        }
    }

    /// Makes one call among all ranks, or among those of a group.
    pub(super) fn call(
        &mut self,
        group: Option<&ProbeGroup>,
        algorithm: Algorithm,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Result<(), Halt> {
        self.calls += 1;
        self.tell_if_slow();
        let engine = &mut *self.engine;
        let call = CheckedCall::of(request, buffer, self.settings);
        // All types of these requests have the reductions.
        let Ok(kernel) = engine.last_kernel.of(&call, self.rank_info.peers.len()) else {
            return Ok(());
        };
        engine.planner.set_rules(Rules { forced: Some(algorithm), ..Rules::default() });
        let subgroup = group.filter(|group| !group.is_world);
        let plan = match subgroup
            .and_then(|subgroup| subgroup.schedule(request, algorithm, self.rank_info.rank))
        {
            None => engine.planner.plan(request),
            Some(schedule) => {
                // The digest of the schedule is the same on all ranks of all hosts.
                let name = digest(request.collective.name().as_bytes());
                let number = mix(mix(PROBE_SEQUENCE_BIT ^ algorithm as u64) ^ name);
                engine.planner.add_user_schedule(&schedule, number);
                engine.planner.user_plan(request, number)
            }
        };
        let executor = Executor {
            kernel,
            registered: None,
            local_size: self.rank_info.local_size,
            cache_bytes: engine.cache_bytes,
            registry: &mut engine.registry,
            peers: &mut engine.peers,
            scratch: &mut engine.scratch,
        };
        let wait = Wait::new(&engine.backoff, self.settings.timeout, &engine.abort);
        let wait = wait.with_recorder(&self.rank_info.record);
        executor.execute(&plan, &call, PROBE_SEQUENCE_BIT | self.calls, &wait).map(drop)
    }
}

pub(super) fn request(collective: Collective, count: usize, op: Option<ReduceOp>) -> Request {
    Request { collective, count, dtype: DataType::U8, op: op.map(Into::into) }
}
