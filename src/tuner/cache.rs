//! The cache of measured speeds: in memory, and for ranks that are processes in the user's cache
//! folder too, one file for each format, CPU model, number of CPUs, numbers of ranks on hosts, set
//! of transports and network.
//! The first three starts measure, and the one in the middle counts from then on: one that met a
//! busy machine is outvoted. Of two ranks of one host, those count whose barriers took about as
//! long as one does now: the CPUs of one start are near each other, those of another far apart. A
//! sum of two has the same bits by every algorithm; among more ranks the choice stays, and with it
//! the bits. A week after the last measurement one more start measures, in place of the first of
//! the three: networks change.
//! Law: a file that is incomplete, of another version or not ours is ignored with a warning.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use nix::libc::O_NONBLOCK;
use nix::unistd::{AccessFlags, access};

use crate::engine::{RankInfo, SpeedsAreIn};
use crate::error::{Peer, warn};
use crate::files::replace;
use crate::plan::{Source, Speeds, Tuning, digest};
use crate::sim::Speed;
use crate::sync::UsableCpus;

/// The first line of a cache file. A file of another layout has another number.
const FORMAT_LINE: &str = "ringreduce speeds 13";

/// The most bytes that are read of a cache file.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// The starts that measure.
const STARTS: usize = 3;
/// The highest ratio of a start's barrier to one now, for the start that is nearest to it, and of
/// the others to that: between near CPUs a barrier takes 0.23 us, between far ones 0.37 us.
const NEAREST_RATIO: f64 = 2.0;
const SPREAD_RATIO: f64 = 1.25;
/// How long measurements count before one more start measures.
const MEASURED_AGAIN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// The least time of a byte or of its reduction that is told from none.
const LEAST_SECONDS: f64 = 1e-13;

/// The measurements that this process knows, by file and machine.
static REMEMBERED: LazyLock<Mutex<BTreeMap<Key, Measurements>>> = LazyLock::new(Mutex::default);

/// The file of a machine, if it has one, and the machine in words.
type Key = (Option<PathBuf>, String);

/// The measured speeds of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measurements {
    /// Seconds of latency, step, byte and byte reduced: of links within hosts, then of links
    /// between hosts.
    pub(super) speeds: [[f64; 4]; 2],
    pub(super) tuning: Tuning,
}

impl Measurements {
    /// All figures, one after the other.
    pub(super) fn bytes(&self) -> impl Iterator<Item = u8> {
        let Self { speeds, tuning } = self;
        let figures = speeds.iter().flatten().chain(tuning.0.iter().flatten().flatten());
        figures.flat_map(|figure| figure.to_le_bytes())
    }

    pub(super) fn digest(&self) -> u64 {
        digest(&self.bytes().collect::<Vec<u8>>())
    }

    /// Seconds of a barrier of two ranks by messages both ways: the closed form of all pairs.
    fn barrier(&self) -> f64 {
        let [latency, step, ..] = self.speeds[0];
        latency + 2.0 * step
    }

    /// The speeds in the planner's type.
    pub(super) fn speeds(self, source: Source) -> Speeds {
        let [near, far] =
            self.speeds.map(|[latency, step, byte, reduce]| Speed { latency, step, byte, reduce });
        Speeds { near, far, source }
    }
}

/// Where the measurements of a machine are cached.
pub(super) struct SpeedCache {
    /// The machine's file, `None` without one; and the machine and the ranks that the measurements
    /// hold for, in words.
    key: Key,
    /// Rank 0 tells of a file that is no use; others may read the same one.
    tells: bool,
    /// True for two ranks of one host, which choose by the distance of their CPUs.
    pub(super) is_pair: bool,
}

impl SpeedCache {
    pub(super) fn of(rank_info: &RankInfo) -> Self {
        let key = key(&rank_info.peers, &rank_info.transports, &rank_info.speeds);
        let is_pair = rank_info.local_size == 2 && rank_info.size() == 2;
        Self { key, tells: rank_info.rank == 0, is_pair }
    }

    /// The measurements of the starts that count; none as long as starts are to measure.
    pub(super) fn load(&self) -> Vec<Measurements> {
        if let Some(known) = remembered().get(&self.key) {
            return vec![*known];
        }
        let stored = self.stored(self.tells);
        if stored.len() >= STARTS && !self.is_old() { stored } else { Vec::new() }
    }

    /// True if the last measurement was long ago and another one can be stored: a folder that
    /// can't be written, as of an image, would make every start measure. A file of the future is a
    /// matter of clocks.
    fn is_old(&self) -> bool {
        let Some(file) = self.key.0.as_deref() else { return false };
        let written = fs::metadata(file).and_then(|file| file.modified()).ok();
        let age = written.and_then(|written| written.elapsed().ok());
        let folder = file.parent().unwrap_or(Path::new("."));
        age.is_some_and(|age| age > MEASURED_AGAIN_AFTER)
            && access(folder, AccessFlags::W_OK).is_ok()
    }

    /// The measurements in the file, of so many starts. `tells` the user of a file that is no use.
    fn stored(&self, tells: bool) -> Vec<Measurements> {
        let (file, machine) = &self.key;
        let Some(file) = file.as_deref() else { return Vec::new() };
        let text = match read(file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(e) => {
                if tells {
                    warn(&format!("{} can't be read and is ignored: {e}", file.display()));
                }
                return Vec::new();
            }
        };
        let found = parse(&text, machine);
        if found.is_none() && tells {
            let file = file.display();
            warn(&format!("{file} is not a file of this machine's speeds and is ignored"));
        }
        found.unwrap_or_default()
    }

    /// Stores the measurements of this start, and gives those that count from now on: the first
    /// ones that this process stored, so that communicators of threads that measure at the same
    /// time choose alike.
    pub(super) fn store(&self, measured: Measurements) -> Measurements {
        let (file, machine) = &self.key;
        // `load` has told of a file that is no use.
        let mut all = self.stored(false);
        all.push(measured);
        all.drain(..all.len().saturating_sub(STARTS));
        let text = text(&all, machine);
        // A start with figures beyond all sense, as of a stopped rank, counts for itself alone.
        if let Some(file) = file.as_deref().filter(|_| parse(&text, machine).is_some())
            && let Err(e) = write(file, &text)
        {
            warn(&format!("measured speeds can't be stored in {}: {e}", file.display()));
        }
        let barrier = self.is_pair.then(|| measured.barrier());
        *remembered().entry(self.key.clone()).or_insert(agreed(&alike(&all, barrier)))
    }

    /// Keeps what counts for all ranks for later communicators of this process.
    pub(super) fn remember(&self, measured: Measurements) {
        remembered().entry(self.key.clone()).or_insert(measured);
    }
}

/// The key of the ranks' machine, by what their speeds depend on.
fn key(peers: &[Peer], transports: &[&str], speeds: &SpeedsAreIn) -> Key {
    let (ranks, kinds) = (ranks_on_hosts(peers), transports.join("+"));
    let cpus = UsableCpus::now().count;
    let (folder, network) = match speeds {
        SpeedsAreIn::Folder(folder, address) => (folder.as_ref(), address.map(network)),
        SpeedsAreIn::Process => (None, None),
    };
    let network = network.unwrap_or_else(|| "no network".into());
    let machine =
        format!("{ranks} ranks, {cpus} cpus, {kinds}, {network}, {cpu}", cpu = *CPU_MODEL);
    let words = format!("{FORMAT_LINE}\n{machine}");
    let name = format!("speeds-{:016x}", digest(words.as_bytes()));
    (folder.map(|folder| folder.join(name)), machine)
}

/// The numbers of ranks on each host, such as 3+1+2.
fn ranks_on_hosts(peers: &[Peer]) -> String {
    let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
    for peer in peers {
        *hosts.entry(&peer.host).or_default() += 1;
    }
    let ranks: Vec<_> = hosts.values().map(usize::to_string).collect();
    ranks.join("+")
}

/// The network of an address: its first 24 bits, of IPv6 its first 64.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

fn remembered() -> MutexGuard<'static, BTreeMap<Key, Measurements>> {
    REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of starts of two ranks, those whose barriers took about as long as one does now; all of them if
/// none did, as on a busy machine.
fn alike(all: &[Measurements], barrier: Option<f64>) -> Vec<Measurements> {
    let Some(now) = barrier else { return all.to_vec() };
    let ratio = |one: &Measurements| (one.barrier() / now.max(LEAST_SECONDS)).ln().abs();
    let least = all.iter().map(ratio).fold(f64::INFINITY, f64::min);
    let most = if least < NEAREST_RATIO.ln() { least + SPREAD_RATIO.ln() } else { f64::INFINITY };
    all.iter().filter(|one| ratio(one) <= most).copied().collect()
}

/// The measurements that count of these starts, if there are any; `barrier` is the time of one now,
/// if the starts are to be compared by it.
pub(super) fn counting(starts: &[Measurements], barrier: Option<f64>) -> Option<Measurements> {
    (!starts.is_empty()).then(|| agreed(&alike(starts, barrier)))
}

/// The measurements that count after these starts: those of the start in the middle by its times,
/// and of two the faster one, since other programs only add time. They are of one start, because
/// the factors hold for the speeds of their own.
fn agreed(all: &[Measurements]) -> Measurements {
    // A time is the product of a closed form, in which the speeds are, and a factor.
    let times = |one: &Measurements| {
        let factors = one.tuning.0.as_flattened().as_flattened().iter();
        one.speeds.as_flattened().iter().chain(factors).map(|it| it.max(LEAST_SECONDS).ln()).sum()
    };
    let mut sorted: Vec<(f64, &Measurements)> = all.iter().map(|one| (times(one), one)).collect();
    sorted.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    sorted.get(all.len().saturating_sub(1) / 2).map(|(_, one)| **one).unwrap_or_default()
}

pub(crate) fn text(all: &[Measurements], machine: &str) -> String {
    fn line(numbers: &[f64]) -> String {
        let numbers: Vec<_> = numbers.iter().map(|number| format!("{number:e}")).collect();
        numbers.join(" ") + "\n"
    }
    let mut text = format!("{FORMAT_LINE}\n{machine}\n");
    for Measurements { speeds, tuning } in all {
        text.extend(speeds.iter().map(|numbers| line(numbers)));
        text.extend(tuning.0.as_flattened().iter().map(|numbers| line(numbers)));
    }
    text
}

pub(crate) fn parse(text: &str, machine: &str) -> Option<Vec<Measurements>> {
    let mut lines = text.lines().peekable();
    let is_ours = lines.next() == Some(FORMAT_LINE) && lines.next() == Some(machine);
    let mut all = Vec::new();
    while lines.peek().is_some() && all.len() < STARTS {
        all.push(parse_start(&mut lines)?);
    }
    let is_whole = lines.next().is_none() && text.ends_with('\n') && !all.is_empty();
    (is_ours && is_whole).then_some(all)
}

/// The measurements of one start.
fn parse_start<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Measurements> {
    fn numbers<const N: usize>(line: Option<&str>, range: Range<f64>) -> Option<[f64; N]> {
        let numbers = line?.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>().ok()?;
        let is_sane = numbers.iter().all(|number| range.contains(number));
        numbers.try_into().ok().filter(|_| is_sane)
    }
    let mut figures = Measurements::default();
    for speeds in &mut figures.speeds {
        *speeds = numbers(lines.next(), 0.0..1.0)?;
        // Of the four numbers only the time of reducing may be zero: too short to measure.
        if speeds[..3].contains(&0.0) {
            return None;
        }
    }
    for factors in figures.tuning.0.as_flattened_mut() {
        *factors = numbers(lines.next(), 1e-6..1e6)?;
    }
    Some(figures)
}

/// Reads a regular file. A pipe of the same name must not make the call wait, hence `O_NONBLOCK`.
fn read(file: &Path) -> io::Result<String> {
    let opened = fs::File::options().read(true).custom_flags(O_NONBLOCK).open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    opened.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes the whole file or nothing, even if other processes write it at the same time.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    replace(file, text, |_| Ok(()))
}

static CPU_MODEL: LazyLock<String> = LazyLock::new(|| {
    let all = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = all.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or("some cpu").to_owned()
});

#[cfg(test)]
mod tests;
