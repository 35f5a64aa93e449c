//! A record written as lines of JSON after a failure, for ranks that were not started by ringrun:
//! its operations, and then the connections that were made anew.

use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;
use std::{fs, io};

use super::reader::{CommunicatorRecord, OperationRecord, State, record};
use super::recorder::Recorder;
use crate::error::communicator_name::escaped;
use crate::files::{OpenMode, open_for_writing};
use crate::memory::resource_limit::check_file_size;

/// Writes the last operations of a rank to its own file in `folder`, replacing an earlier dump.
pub(super) fn dump(recorder: &Recorder, folder: &Path) -> io::Result<()> {
    let Some(record) = record(&recorder.memory) else { return Ok(()) };
    let mut text = String::new();
    for op in &record.ops {
        let member = op.communicator.and_then(|at| record.communicators.get(at).copied().flatten());
        line(&mut text, recorder.rank, record.pid, op, member);
    }
    recorder.reconnections.write(&mut text, (recorder.rank, record.pid));
    check_file_size(text.len() as u64)?;
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("rank.{}.jsonl", recorder.rank));
    open_for_writing(&path, OpenMode::Truncate)?.write_all(text.as_bytes())
}

/// Appends one operation. All strings but the communicator's name are names of this library, which
/// need no JSON escapes.
fn line(
    text: &mut String,
    rank: usize,
    pid: u64,
    op: &OperationRecord,
    member: Option<CommunicatorRecord>,
) {
    let state = match op.state {
        State::Entered => "entered",
        State::AtStep => "at_step",
        State::Done => "done",
        State::Failed => "failed",
    };
    let _ = write!(text, "{{\"rank\":{rank},\"pid\":{pid},\"number\":{}", op.number);
    if let Some(CommunicatorRecord { key, rank, size, name, .. }) = member {
        let _ = write!(text, ",\"communicator\":\"{key:016x}\",\"comm_rank\":{rank}");
        let _ = write!(text, ",\"comm_size\":{size}");
        if !name.is_empty() {
            let _ = write!(text, ",\"comm_name\":\"{}\"", escaped(&name.to_string()));
        }
    }
    let _ = write!(text, ",\"call\":{},\"collective\":\"{}\"", op.sequence, op.code.name());
    let names = [("dtype", op.code.dtype()), ("op", op.code.op())];
    let algorithm = ("algorithm", op.code.algorithm());
    for (key, name) in names.into_iter().chain([algorithm]) {
        if let Some(name) = name {
            let _ = write!(text, ",\"{key}\":\"{name}\"");
        }
    }
    if let Some(root) = op.code.root() {
        let _ = write!(text, ",\"root\":{root}");
    }
    let OperationRecord { count, bytes, start, end, step, .. } = op;
    let _ = write!(text, ",\"count\":{count},\"bytes\":{bytes},\"state\":\"{state}\"");
    let _ = write!(text, ",\"step\":{step}");
    if let Some((how, peer)) = op.waits_for {
        let _ = write!(text, ",\"{}\":{peer}", how.replace(' ', "_"));
    }
    let _ = writeln!(text, ",\"start_ns\":{start},\"end_ns\":{end}}}");
}
