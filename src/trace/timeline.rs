//! Every call and step of a rank, as Chrome and Perfetto read them. May touch: the file system.
//! Law: the file is whole JSON after every write, whatever comes next.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::precise;
use super::layout::{CALL, Entry};
use super::operation::What;
use super::recorder::Where;
use crate::error::{Error, Result, warn};
use crate::memory::resource_limit::in_a_file;

/// Events are written when there are so many bytes of them, or after so long.
const FULL: usize = 64 << 10;
const LONG: u64 = 100_000_000;

/// The file of a rank.
#[derive(Debug)]
pub(super) struct Trace {
    rank: usize,
    state: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    file: File,
    path: PathBuf,
    /// Where the closing bracket is.
    end: u64,
    /// What is not written yet.
    text: String,
    written: u64,
    /// The step under way, by communicator.
    steps: BTreeMap<usize, (Where, u64)>,
    failed: bool,
}

impl Trace {
    /// `rank.N.json` in `folder`; of a second world of a process `rank.N.2.json`, as of a rank that
    /// lives `again`.
    ///
    /// # Errors
    /// If it can't be written.
    pub(super) fn create(folder: &Path, rank: usize, again: bool) -> Result<Self> {
        static MADE: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let times = made.entry(folder.join(format!("rank.{rank}.json"))).or_default();
        let (file, path) = loop {
            *times += 1;
            let name = match *times {
                1 => format!("rank.{rank}.json"),
                times => format!("rank.{rank}.{times}.json"),
            };
            let path = folder.join(name);
            let failed = |cause| Error::io(format!("writing {}", path.display()), cause);
            std::fs::create_dir_all(folder).map_err(failed)?;
            let mut way = File::options();
            way.write(true).truncate(!again).create(true).create_new(again);
            match way.open(&path) {
                Err(taken) if again && taken.kind() == io::ErrorKind::AlreadyExists => {}
                file => break (file.map_err(failed)?, path),
            }
        };
        let failed = |cause: io::Error| Error::io(format!("writing {}", path.display()), cause);
        in_a_file(1 << 10).map_err(|errno| failed(errno.into()))?;
        let head = format!(
            "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"tid\":0,\"args\":\
             {{\"name\":\"rank {rank}\"}}}}"
        );
        file.write_all_at(format!("{head}\n]\n").as_bytes(), 0).map_err(failed)?;
        let (end, text, steps) = (head.len() as u64, String::new(), BTreeMap::new());
        let written = precise();
        let state = Pages { file, path, end, text, written, steps, failed: false };
        Ok(Self { rank, state: Mutex::new(state) })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A communicator begins a step, and is over with the one before.
    pub(super) fn step(&self, at: Option<usize>, place: Where) {
        let (now, at) = (precise(), at.unwrap_or(usize::MAX));
        let mut pages = self.pages();
        if let Some(before) = pages.steps.insert(at, (place, now)) {
            pages.event(self.rank, at, before, now);
        }
    }

    /// It is over with a call.
    pub(super) fn call(&self, at: Option<usize>, key: u64, entry: &Entry, failed: bool) {
        let at = at.unwrap_or(usize::MAX);
        let words = [&entry.what, &entry.sequence, &entry.count, &entry.bytes];
        let [what, sequence, count, bytes] = words.map(|word| word.load(Ordering::Relaxed));
        let [start, end] = [&entry.start, &entry.end].map(|word| word.load(Ordering::Relaxed));
        let what = What::from_word(what);
        let mut pages = self.pages();
        if let Some(last) = pages.steps.remove(&at) {
            pages.event(self.rank, at, last, end);
        }
        let name = what.name();
        pages.begin(self.rank, at, name, "call", (start, end));
        let call = sequence & CALL;
        let _ = write!(
            pages.text,
            "\"communicator\":\"{key:016x}\",\"call\":{call},\"count\":{count},\"bytes\":{bytes},\
             \"dtype\":\"{}\",\"op\":\"{}\",\"algorithm\":\"{}\",\"failed\":{failed}}}}}",
            what.dtype().unwrap_or(""),
            what.op().unwrap_or(""),
            what.algorithm().unwrap_or(""),
        );
        if failed || pages.text.len() >= FULL || end.saturating_sub(pages.written) >= LONG {
            pages.write();
        }
    }
}

impl Pages {
    fn begin(&mut self, rank: usize, at: usize, name: &str, kind: &str, times: (u64, u64)) {
        let tid = at.wrapping_add(1);
        let micros = |nanos: u64| (nanos / 1000, nanos % 1000);
        let ((start, more), (length, rest)) =
            (micros(times.0), micros(times.1.saturating_sub(times.0)));
        let _ = write!(
            self.text,
            ",\n{{\"name\":\"{name}\",\"cat\":\"{kind}\",\"ph\":\"X\",\"pid\":{rank},\
             \"tid\":{tid},\"ts\":{start}.{more:03},\"dur\":{length}.{rest:03},\"args\":{{"
        );
    }

    /// A step that ended.
    fn event(&mut self, rank: usize, at: usize, (place, start): (Where, u64), end: u64) {
        let step = place.step();
        self.begin(rank, at, &format!("step {step}"), "step", (start, end));
        if let Some((how, peer)) = place.toward() {
            let _ = write!(self.text, "\"{how}\":{peer}");
        }
        self.text += "}}";
    }

    /// Over the bracket that closes the file, and a new one behind.
    fn write(&mut self) {
        let more = self.text.len() as u64;
        self.text += "\n]\n";
        let end = self.end + self.text.len() as u64;
        let written = in_a_file(end).map_err(io::Error::from);
        let written = written.and_then(|()| self.file.write_all_at(self.text.as_bytes(), self.end));
        self.written = precise();
        self.text.clear();
        let Err(cause) = written else {
            self.end += more;
            return;
        };
        // Without these events, and closed where it was.
        let closed = self.file.set_len(self.end + 3);
        let closed = closed.and_then(|()| self.file.write_all_at(b"\n]\n", self.end));
        if !std::mem::replace(&mut self.failed, true) {
            let path = self.path.display();
            warn(&format!("writing {path}: {cause}; it lacks events from here on"));
            if let Err(cause) = closed {
                warn(&format!("writing {path}: {cause}; it is not whole"));
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn who_lives_again_keeps_what_it_told_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["rank.1.json", "rank.1.2.json", "rank.2.json"] {
            std::fs::write(path(name), "before").unwrap();
        }
        let told = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        Trace::create(folder.path(), 1, true).unwrap();
        assert_eq!((&*told("rank.1.json"), &*told("rank.1.2.json")), ("before", "before"));
        assert!(told("rank.1.3.json").starts_with("[\n"));
        // What is of an earlier job goes.
        Trace::create(folder.path(), 2, false).unwrap();
        assert!(told("rank.2.json").starts_with("[\n"));
    }
}
