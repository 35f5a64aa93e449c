//! The trace: every call and step of a rank, in the JSON format of Chrome's trace viewer and
//! Perfetto.
//! Law: the file is complete JSON after every write.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::precise;
use super::layout::{CALL, OperationEntry};
use super::operation::OperationCode;
use super::reconnections::Reconnection;
use super::recorder::Position;
use crate::error::communicator_name::escaped;
use crate::error::{Error, Result, warn};
use crate::files::{OpenMode, open_for_writing};
use crate::memory::resource_limit::check_file_size;

/// Events are written to the file when they have so many bytes, or after so many nanoseconds.
const FLUSH_BYTES: usize = 64 << 10;
const FLUSH_INTERVAL_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Trace {
    rank: usize,
    state: Mutex<TraceFile>,
}

#[derive(Debug)]
struct TraceFile {
    file: File,
    path: PathBuf,
    /// The offset of the closing bracket.
    end: u64,
    /// Events that are not written yet.
    text: String,
    written: u64,
    /// The current step of each communicator, and its start time.
    steps: BTreeMap<usize, (Position, u64)>,
    failed: bool,
    /// The rank's process. A forked child has the events too, and leaves them to its parent.
    pid: u32,
}

impl Trace {
    /// Creates `rank.N.json` in `folder`; `rank.N.2.json` and so on for a second world of this
    /// process, or for a restarted rank (`again`), whose earlier traces are kept.
    ///
    /// # Errors
    /// If the file cannot be written.
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
            let mode = if again { OpenMode::New } else { OpenMode::Truncate };
            match open_for_writing(&path, mode) {
                Err(taken) if again && taken.kind() == io::ErrorKind::AlreadyExists => {}
                file => break (file.map_err(failed)?, path),
            }
        };
        let failed = |cause: io::Error| Error::io(format!("writing {}", path.display()), cause);
        check_file_size(1 << 10).map_err(|errno| failed(errno.into()))?;
        let opening = format!(
            "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"tid\":0,\"args\":\
             {{\"name\":\"rank {rank}\"}}}}"
        );
        file.write_all_at(format!("{opening}\n]\n").as_bytes(), 0).map_err(failed)?;
        let (end, text, steps) = (opening.len() as u64, String::new(), BTreeMap::new());
        let written = precise();
        let (failed, pid) = (false, std::process::id());
        let state = TraceFile { file, path, end, text, written, steps, failed, pid };
        Ok(Self { rank, state: Mutex::new(state) })
    }

    fn file(&self) -> MutexGuard<'_, TraceFile> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a communicator begins a step, which ends the step before.
    pub(super) fn step(&self, at: Option<usize>, place: Position) {
        let (now, at) = (precise(), at.unwrap_or(usize::MAX));
        let mut file = self.file();
        if let Some(before) = file.steps.insert(at, (place, now)) {
            file.event(self.rank, at, before, now);
        }
    }

    /// Records a connection that was made anew.
    pub(super) fn reconnection(&self, Reconnection { what, peer, start, end }: &Reconnection) {
        let mut file = self.file();
        let name = format!("{what} to rank {} made anew", peer.rank);
        // No communicator has this line of the timeline.
        file.begin(self.rank, usize::MAX, &name, "connection", (*start, *end));
        let (rank, host) = (peer.rank, escaped(&peer.host));
        let _ = write!(file.text, "\"peer\":{rank},\"host\":\"{host}\"}}}}");
    }

    /// Records a call that has ended, on the communicator with this key and name.
    pub(super) fn call(
        &self,
        at: Option<usize>,
        (key, comm_name): (u64, Option<&str>),
        entry: &OperationEntry,
        failed: bool,
    ) {
        let at = at.unwrap_or(usize::MAX);
        let words = [&entry.what, &entry.sequence, &entry.count, &entry.bytes];
        let [what, sequence, count, bytes] = words.map(|word| word.load(Ordering::Relaxed));
        let [start, end] = [&entry.start, &entry.end].map(|word| word.load(Ordering::Relaxed));
        let what = OperationCode::from_word(what);
        let mut file = self.file();
        if let Some(last) = file.steps.remove(&at) {
            file.event(self.rank, at, last, end);
        }
        let name = what.name();
        file.begin(self.rank, at, name, "call", (start, end));
        let call = sequence & CALL;
        if let Some(name) = comm_name {
            let _ = write!(file.text, "\"comm_name\":\"{}\",", escaped(name));
        }
        let _ = write!(
            file.text,
            "\"communicator\":\"{key:016x}\",\"call\":{call},\"count\":{count},\"bytes\":{bytes},\
             \"dtype\":\"{}\",\"op\":\"{}\",\"algorithm\":\"{}\",\"failed\":{failed}}}}}",
            what.dtype().unwrap_or(""),
            what.op().unwrap_or(""),
            what.algorithm().unwrap_or(""),
        );
        if failed
            || file.text.len() >= FLUSH_BYTES
            || end.saturating_sub(file.written) >= FLUSH_INTERVAL_NS
        {
            file.write();
        }
    }
}

impl TraceFile {
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

    /// Appends a step that has ended.
    fn event(&mut self, rank: usize, at: usize, (place, start): (Position, u64), end: u64) {
        let step = place.step();
        self.begin(rank, at, &format!("step {step}"), "step", (start, end));
        if let Some((how, peer)) = place.toward() {
            let _ = write!(self.text, "\"{how}\":{peer}");
        }
        self.text += "}}";
    }

    /// Writes the events over the closing bracket, and a new bracket after them.
    fn write(&mut self) {
        let more = self.text.len() as u64;
        self.text += "\n]\n";
        let end = self.end + self.text.len() as u64;
        let written = check_file_size(end).map_err(io::Error::from);
        let written = written.and_then(|()| self.file.write_all_at(self.text.as_bytes(), self.end));
        self.written = precise();
        self.text.clear();
        let Err(cause) = written else {
            self.end += more;
            return;
        };
        // The write failed: drop these events and close the file where it ended before.
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

impl Drop for TraceFile {
    fn drop(&mut self) {
        if !self.text.is_empty() && self.pid == std::process::id() {
            self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_restarted_rank_keeps_its_earlier_traces() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["rank.1.json", "rank.1.2.json", "rank.2.json"] {
            std::fs::write(path(name), "before").unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        Trace::create(folder.path(), 1, true).unwrap();
        assert_eq!((&*read("rank.1.json"), &*read("rank.1.2.json")), ("before", "before"));
        assert!(read("rank.1.3.json").starts_with("[\n"));
        // The trace of an earlier job is replaced.
        Trace::create(folder.path(), 2, false).unwrap();
        assert!(read("rank.2.json").starts_with("[\n"));
    }
}
