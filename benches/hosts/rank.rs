//! The work of the ranks of a job, by the words of their command line. Rank 0 prints one line of
//! JSON for each result.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, Error, ReduceOp};
use serde::Serialize;

use super::figures::{Choice, Counted, Race, Regret, Timed};
use super::raw::{self, RawRing};
use super::wan::{RAW, RINGS, WanRace};
use crate::Answer;

/// Algorithms that the library's choice is compared with; names that it does not have are left out.
const ALGORITHMS: [&str; 4] = ["hierarchical", "two_level", "ring", "all_pairs"];
/// Turns of each algorithm at a size where a turn is one long call, and where it is several calls;
/// their median counts.
const REGRET_TURNS: [usize; 2] = [5, 15];
/// Seconds of one turn of calls that are short.
const TURN_SECONDS: f64 = 0.02;
const MAX_CALLS: usize = 2000;
/// Acknowledgements on their way are counted within this time.
const SETTLED: Duration = Duration::from_millis(100);

/// Runs one rank.
pub(crate) fn main(words: &[String]) -> Answer {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut comm = Communicator::from_env()?;
    match words[..] {
        ["barrier"] => Ok(comm.barrier()?),
        ["race", ref cases @ ..] => {
            let mut rank = Rank::new(comm, &[&raw::congestion()])?;
            cases.iter().try_for_each(|case| rank.race(&numbers(case)?))
        }
        ["count", bytes] => Rank::new(comm, &[&raw::congestion()])?.count(bytes.parse()?),
        ["wan", ref cases @ ..] => {
            let mut rank = Rank::new(comm, &RINGS)?;
            cases.iter().try_for_each(|case| rank.race_streams(&numbers(case)?))
        }
        ["regret", ref sizes @ ..] => {
            let mut rank = Rank::new(comm, &[&raw::congestion()])?;
            sizes.iter().try_for_each(|bytes| rank.regret(bytes.parse()?))
        }
        _ => Err(format!("a rank of this benchmark can't do {words:?}").into()),
    }
}

/// BYTES:UNTIMED CALLS:TURNS.
fn numbers(case: &str) -> Answer<[usize; 3]> {
    let numbers: Vec<usize> = case.split(':').map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| format!("{case} is not BYTES:UNTIMED:TURNS").into())
}

struct Rank {
    comm: Communicator,
    host: usize,
    hosts: usize,
    /// Of the first rank of each host; the others have none.
    rings: Vec<RawRing>,
    is_checked: bool,
}

/// Raw rings, or the library.
#[derive(Clone, Copy, PartialEq)]
enum Competitor {
    Raw { first: usize, count: usize },
    Ours,
}

impl Competitor {
    const ONE_RING: Self = Self::Raw { first: 0, count: 1 };

    fn is_raw(self) -> bool {
        self != Self::Ours
    }
}

impl Rank {
    fn new(mut comm: Communicator, rings: &[&str]) -> Answer<Self> {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let number = name.trim().strip_prefix('h').and_then(|digits| digits.parse().ok());
        let host: usize = number.ok_or_else(|| format!("{name} is no host of a cluster"))?;
        let mut hosts = [host as u64 + 1];
        comm.all_reduce(&mut hosts, ReduceOp::Max)?;
        let hosts = hosts[0] as usize;
        let rings = if comm.local_rank() == 0 { rings } else { &[] };
        let listened = (0..).zip(rings).map(|(ring, congestion)| RawRing::listen(ring, congestion));
        let listeners = listened.collect::<Result<Vec<_>, _>>()?;
        comm.barrier()?;
        // The addresses that harness::cluster gives to hosts.
        let address = |host| Ipv4Addr::new(10, 77, 0, host as u8 + 1);
        let rings = listeners.iter().zip(rings);
        let rings =
            rings.map(|(it, congestion)| RawRing::new((it, congestion), host, hosts, address));
        let rings = rings.collect::<Result<_, _>>()?;
        Ok(Self { comm, host, hosts, rings, is_checked: false })
    }

    fn call(&mut self, competitor: Competitor, buf: &mut [f32]) -> Answer {
        match competitor {
            Competitor::Ours => self.comm.all_reduce(buf, ReduceOp::Sum)?,
            // The other ranks sleep in the barrier behind the call.
            Competitor::Raw { .. } if self.rings.is_empty() => {}
            Competitor::Raw { first, count } => {
                raw::all_reduce(&mut self.rings[first..first + count], buf)?;
            }
        }
        Ok(())
    }

    /// True if this rank is busy in the competitor's calls.
    fn takes_part(&self, competitor: Competitor) -> bool {
        !competitor.is_raw() || !self.rings.is_empty()
    }

    /// The algorithm that the library chooses.
    fn choice(&mut self, bytes: usize) -> Answer<Choice> {
        let explained = self.comm.explain(Collective::AllReduce, bytes / 4, DataType::F32)?;
        let name = explained.algorithm.name().into();
        Ok(Choice { name, explanation: explained.to_string() })
    }

    /// The largest value of all ranks.
    fn most(&mut self, value: f64) -> Answer<f64> {
        let mut most = [value];
        self.comm.all_reduce(&mut most, ReduceOp::Max)?;
        Ok(most[0])
    }

    /// The slowest rank's seconds per call, after a barrier.
    fn time(&mut self, calls: usize, mut call: impl FnMut(&mut Self) -> Answer) -> Answer<f64> {
        self.comm.barrier()?;
        let began = Instant::now();
        for _ in 0..calls {
            call(self)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(self.most(seconds)? / calls as f64)
    }

    /// Checks a raw ring and the library once.
    fn check(&mut self, buf: &mut [f32]) -> Answer {
        for competitor in [Competitor::ONE_RING, Competitor::Ours] {
            let (mine, count) = match competitor {
                Competitor::Raw { .. } => (self.host, self.hosts),
                Competitor::Ours => (self.comm.rank(), self.comm.size()),
            };
            let fill = |at: usize| (mine + at % 7) as f32;
            buf.iter_mut().enumerate().for_each(|(at, element)| *element = fill(at));
            self.comm.barrier()?;
            self.call(competitor, buf)?;
            let sum = |at: usize| (count * (count - 1) / 2 + count * (at % 7)) as f32;
            let takes_part = self.takes_part(competitor);
            let wrong = (0..buf.len()).find(|&at| takes_part && buf[at] != sum(at));
            if let Some(at) = wrong {
                let who = if competitor.is_raw() { "the raw ring" } else { "ringreduce" };
                return Err(format!("{who}: element {at} is {}, not {}", buf[at], sum(at)).into());
            }
        }
        self.is_checked = true;
        Ok(())
    }

    /// Times the raw ring and the library in turns.
    fn race(&mut self, &[bytes, untimed, turns]: &[usize; 3]) -> Answer {
        let mut buf = vec![1.0; bytes / 4];
        if !self.is_checked {
            self.check(&mut buf)?;
        }
        let mut race = Race { bytes, choice: self.choice(bytes)?, ..Race::default() };
        for turn in 0..untimed + turns {
            let both = [Competitor::ONE_RING, Competitor::Ours];
            for competitor in if turn % 2 == 0 { both } else { [both[1], both[0]] } {
                let cpu = cpu_seconds()?;
                let began = Instant::now();
                let seconds = self.time(1, |rank| rank.call(competitor, &mut buf))?;
                // Of the calls and the barriers beside them.
                let share = (cpu_seconds()? - cpu) / began.elapsed().as_secs_f64();
                let takes_part = self.takes_part(competitor);
                let most = self.most(if takes_part { share } else { 0.0 })?;
                let mut sum = [share];
                self.comm.all_reduce(&mut sum, ReduceOp::Sum)?;
                if turn >= untimed {
                    race.of(competitor.is_raw()).push(seconds, most, sum[0]);
                }
            }
        }
        self.print(&race)
    }

    /// Times raw rings over several streams and the library in turns.
    fn race_streams(&mut self, &[bytes, untimed, turns]: &[usize; 3]) -> Answer {
        let mut buf = vec![1.0; bytes / 4];
        if !self.is_checked {
            self.check(&mut buf)?;
        }
        let mut race = WanRace { bytes, ..WanRace::default() };
        for turn in 0..untimed + turns {
            for ((count, congestion), seconds) in RAW.into_iter().zip(&mut race.raw) {
                let first = RINGS.iter().position(|ring| *ring == congestion).unwrap_or(0);
                let raw = Competitor::Raw { first, count };
                let took = self.time(1, |rank| rank.call(raw, &mut buf))?;
                seconds.extend((turn >= untimed).then_some(took));
            }
            let took = self.time(1, |rank| rank.call(Competitor::Ours, &mut buf))?;
            race.ours.extend((turn >= untimed).then_some(took));
        }
        race.choice = self.choice(bytes)?;
        self.print(&race)
    }

    /// Counts the bytes that each host sends in a call, as the difference between three calls and
    /// one: what surrounds the calls is in both.
    fn count(&mut self, bytes: usize) -> Answer {
        let mut buf = vec![1.0; bytes / 4];
        self.check(&mut buf)?;
        let choice = self.choice(bytes)?;
        let mut counted = Counted { bytes, choice, ..Counted::default() };
        for competitor in [Competitor::ONE_RING, Competitor::Ours] {
            let one = self.sent_by_calls(competitor, &mut buf, 1)?;
            let three = self.sent_by_calls(competitor, &mut buf, 3)?;
            let own = if !self.rings.is_empty() { (three - one) / 2.0 } else { 0.0 };
            let mut all = vec![0.0; self.hosts];
            all[self.host] = own;
            self.comm.all_reduce(&mut all, ReduceOp::Sum)?;
            *counted.of(competitor.is_raw()) = all;
        }
        self.print(&counted)
    }

    fn sent_by_calls(
        &mut self,
        competitor: Competitor,
        buf: &mut [f32],
        calls: usize,
    ) -> Answer<f64> {
        self.comm.barrier()?;
        std::thread::sleep(SETTLED);
        let before = sent_bytes()?;
        for _ in 0..calls {
            self.call(competitor, buf)?;
        }
        self.comm.barrier()?;
        std::thread::sleep(SETTLED);
        Ok(sent_bytes()? - before)
    }

    /// Times the library's own choice and each algorithm, in turns.
    fn regret(&mut self, bytes: usize) -> Answer {
        let mut buf = vec![1.0; bytes.div_ceil(4)];
        let named = ALGORITHMS.iter().filter_map(|name| name.parse().ok()).map(Some);
        let mut all: Vec<(Option<Algorithm>, Vec<f64>)> = Vec::new();
        for algorithm in [None].into_iter().chain(named) {
            match self.with(algorithm, &mut buf) {
                Err(error) if is_unable(&*error) => continue,
                called => called?,
            }
            all.push((algorithm, Vec::new()));
        }
        let mut alone = f64::INFINITY;
        for _ in 0..3 {
            alone = alone.min(self.time(1, |rank| rank.with(None, &mut buf))?);
        }
        let calls = ((TURN_SECONDS / alone) as usize).clamp(1, MAX_CALLS);
        for turn in 0..REGRET_TURNS[usize::from(calls > 1)] {
            let count = all.len();
            for at in 0..count {
                let (algorithm, times) = &mut all[(at + turn) % count];
                times.push(self.time(calls, |rank| rank.with(*algorithm, &mut buf))?);
            }
        }
        let choice = self.choice(bytes)?;
        let name = |algorithm: Option<Algorithm>| algorithm.map_or("auto", Algorithm::name).into();
        let timed = all.into_iter().map(|(it, seconds)| Timed { name: name(it), seconds });
        self.print(&Regret { bytes, choice, timed: timed.collect(), ..Regret::default() })
    }

    fn with(&mut self, algorithm: Option<Algorithm>, buf: &mut [f32]) -> Answer {
        let options = CallOptions::new();
        let options = algorithm.map_or_else(|| options, |it| CallOptions::new().algorithm(it));
        Ok(self.comm.with(options).all_reduce(buf, ReduceOp::Sum)?)
    }

    fn print(&self, result: &impl Serialize) -> Answer {
        if self.comm.rank() == 0 {
            println!("{}", serde_json::to_string(result)?);
        }
        Ok(())
    }
}

/// True if the library refused the call because the algorithm can't make it, as it does on all
/// ranks.
fn is_unable(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(Error::Argument { argument: "algorithm", .. }))
}

/// User and system time of this process.
fn cpu_seconds() -> Answer<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Bytes that this host has sent. Unlike /sys, this file is that of the process's own network.
fn sent_bytes() -> Answer<f64> {
    /// Of the columns behind the name: eight of what was received come first.
    const SENT: usize = 8;
    let counters = std::fs::read_to_string("/proc/self/net/dev")?;
    let line = counters.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let column = line.and_then(|line| line.split_whitespace().nth(SENT));
    Ok(column.ok_or("/proc/self/net/dev has no eth0")?.parse()?)
}
