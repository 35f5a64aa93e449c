//! What is remembered of measured speeds: within the process for thread ranks, else in a file of
//! the user's cache folder, of a version and for a machine. May touch: as `comm`. Law: what is not
//! ours, or not whole, is ignored with a warning.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{fs, io};

use nix::libc::O_NONBLOCK;

use crate::api::{Origin, Seat};
use crate::error::warn;
use crate::plan::{Source, Speeds, Tuning, digest};
use crate::sim::Speed;
use crate::sync::cpus;

/// The first words of a remembered file; another layout gets another number.
const VERSION: &str = "ringreduce speeds 4";

/// Bytes of the longest file that could be ours.
const MOST: u64 = 64 << 10;

/// What thread ranks of this process remember.
static REMEMBERED: LazyLock<Mutex<BTreeMap<String, Figures>>> = LazyLock::new(Mutex::default);

/// What is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Latency, step, byte and reduce of the links within hosts, then of those between them.
    pub(super) speeds: [[f64; 4]; 2],
    pub(super) tuning: Tuning,
}

impl Figures {
    /// As the planner takes them.
    pub(super) fn speeds(self, source: Source) -> Speeds {
        let [near, far] =
            self.speeds.map(|[latency, step, byte, reduce]| Speed { latency, step, byte, reduce });
        Speeds { near, far, source }
    }
}

/// Where figures are remembered: in this process for its threads, else in the user's cache.
pub(super) struct Memory {
    /// What the figures hold for.
    machine: String,
    /// A file of its own for each; `None` within the process.
    file: Option<PathBuf>,
    threads: bool,
}

impl Memory {
    pub(super) fn of(seat: &Seat) -> Self {
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

    pub(super) fn recall(&self) -> Option<Figures> {
        if self.threads {
            let all = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
            return all.get(&self.machine).copied();
        }
        let file = self.file.as_deref()?;
        let text = match read(file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                warn(&format!("{} can't be read and is ignored: {e}", file.display()));
                return None;
            }
        };
        let found = parse(&text, &self.machine);
        if found.is_none() {
            let file = file.display();
            warn(&format!("{file} is no file of this machine's speeds and is ignored"));
        }
        found
    }

    pub(super) fn keep(&self, speed: Figures) {
        if self.threads {
            let mut all = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(self.machine.clone(), speed);
        } else if let Some(file) = &self.file
            && let Err(e) = write(file, &text(speed, &self.machine))
        {
            warn(&format!("measured speeds can't be kept in {}: {e}", file.display()));
        }
    }
}

pub(crate) fn text(figures: Figures, machine: &str) -> String {
    fn line(numbers: &[f64]) -> String {
        let numbers: Vec<_> = numbers.iter().map(|number| format!("{number:e}")).collect();
        numbers.join(" ") + "\n"
    }
    let speeds = figures.speeds.map(|numbers| line(&numbers)).concat();
    let tuning = figures.tuning.0.map(|numbers| line(&numbers)).concat();
    format!("{VERSION}\n{machine}\n{speeds}{tuning}")
}

pub(crate) fn parse(text: &str, machine: &str) -> Option<Figures> {
    fn numbers<const N: usize>(line: Option<&str>, sane: Range<f64>) -> Option<[f64; N]> {
        let numbers = line?.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>().ok()?;
        let sane = numbers.iter().all(|number| sane.contains(number));
        numbers.try_into().ok().filter(|_| sane)
    }
    let mut lines = text.lines();
    let ours = lines.next() == Some(VERSION) && lines.next() == Some(machine);
    let mut figures = Figures::default();
    for speeds in &mut figures.speeds {
        *speeds = numbers(lines.next(), 0.0..1.0)?;
        // Only reducing may have taken no time that shows.
        if speeds[..3].contains(&0.0) {
            return None;
        }
    }
    for factors in &mut figures.tuning.0 {
        *factors = numbers(lines.next(), 1e-6..1e6)?;
    }
    (ours && lines.next().is_none() && text.ends_with('\n')).then_some(figures)
}

/// The text of a regular file; what else has its name shall not keep the call waiting.
fn read(file: &Path) -> io::Result<String> {
    let opened = fs::File::options().read(true).custom_flags(O_NONBLOCK).open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    opened.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// Whole or not at all, whoever else writes.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = file.with_extension(std::process::id().to_string());
    let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, file));
    if written.is_err() {
        // There may be none.
        let _ = fs::remove_file(&draft);
    }
    written
}

fn cpu_model() -> String {
    let all = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = all.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or("some cpu").to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Figures, parse, text};

    #[test]
    fn what_is_kept_is_read_back_and_nothing_else() {
        let speeds = [[1e-6, 2.5e-7, 1e-10, 0.0], [2e-5, 1e-6, 3e-10, 0.0]];
        let mut speed = Figures { speeds, ..Figures::default() };
        speed.tuning.0[2][3] = 1.75;
        let kept = text(speed, "4 ranks");
        assert_eq!(parse(&kept, "4 ranks"), Some(speed));
        assert_eq!(parse(&kept, "5 ranks"), None);
        let cut = &kept[..kept.len() - 6];
        for wrong in
            ["", "\n\n\n", cut, &kept.replace("speeds 4", "speeds 1"), &kept.replace('1', "x")]
        {
            assert_eq!(parse(wrong, "4 ranks"), None, "{wrong}");
        }
        for wrong in ["-1", "0", "0e0", "-0", "nan", "inf", "1", ""] {
            assert_eq!(parse(&kept.replace("2.5e-7", wrong), "4 ranks"), None, "{wrong}");
        }
    }
}
