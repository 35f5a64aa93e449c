//! Reading a record from another process: while the rank writes it, or after its death.
//! Law: nothing in the memory is trusted; an entry that was torn by a concurrent write is left out.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use super::layout::{CALL, MAGIC, MESSAGE, OPERATIONS, RecordMemory, bytes, entry_in};
use super::operation::OperationCode;
use super::recorder::Position;
use super::short_name::ShortName;
use crate::error::Result;
use crate::memory::mapping::Region;

/// Entries of communicators that are read at a time: about a page of them.
const READ_AT_ONCE: usize = 64;
/// Words of a communicator and of an operation, outside the memory of a record.
const MEMBER_WORDS: usize = 8;
const OP_WORDS: usize = 8;

/// Reads the record of one rank.
#[derive(Debug)]
pub struct Reader(RecordMemory);

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Begun, and not yet at a step.
    Entered,
    /// At a step of its schedule.
    AtStep,
    /// Completed.
    Done,
    /// Failed.
    Failed,
}

/// An operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationRecord {
    /// The operation's number among all of this rank, from 1.
    pub number: u64,
    /// The index of its communicator in [`Record::communicators`].
    pub communicator: Option<usize>,
    /// The operation's number on its communicator, from 1.
    pub sequence: u64,
    /// True for a message between two ranks; false for a call that all ranks make.
    pub is_message: bool,
    /// Name, type, reduction, algorithm and root.
    pub code: OperationCode,
    /// Number of elements.
    pub count: u64,
    /// Bytes of the result.
    pub bytes: u64,
    /// Start time in nanoseconds, by [`super::now`], accurate to a few milliseconds.
    pub start: u64,
    /// Time of completion or failure, in nanoseconds; the start time if it is unknown or has not
    /// come.
    pub end: u64,
    /// How far the operation is.
    pub state: State,
    /// The current step of its schedule, from 0.
    pub step: u64,
    /// "receiving from", "sending to" or "waiting for", and a rank of the communicator.
    pub waits_for: Option<(&'static str, u64)>,
}

/// A communicator of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorRecord {
    /// The key of the communicator, equal on all its ranks.
    pub key: u64,
    /// The number of this rank there.
    pub rank: u64,
    /// The number of ranks there.
    pub size: u64,
    /// Communicators that this rank had made before it.
    pub created_before: u64,
    /// True until the communicator is dropped.
    pub is_open: bool,
    /// Its name at this rank; empty if it has none.
    pub name: ShortName,
}

/// The contents of a record at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The process that wrote it.
    pub pid: u64,
    /// The rank of that process in the job.
    pub rank: u64,
    /// The communicators by entry, of all entries that were ever in use; `None` for an empty one.
    pub communicators: Vec<Option<CommunicatorRecord>>,
    /// The last operations, 1024 at most, oldest first.
    pub ops: Vec<OperationRecord>,
}

impl Record {
    /// The record that [`Reader::words`] gave; `None` if the words are none.
    #[must_use]
    pub fn of_words(words: &[u64]) -> Option<Self> {
        let ([pid, rank, entries], rest) = words.split_first_chunk()?;
        let entries = usize::try_from(*entries).ok()?.checked_mul(MEMBER_WORDS)?;
        let (members, ops) = rest.split_at_checked(entries)?;
        let communicators: Vec<_> = members.as_chunks().0.iter().copied().map(member_of).collect();
        let ops = ops.as_chunks().0.iter().filter_map(|op| op_of(*op, &communicators));
        let mut ops: Vec<_> = ops.take(OPERATIONS as usize).collect();
        ops.sort_unstable_by_key(|op| op.number);
        Some(Self { pid: *pid, rank: *rank, communicators, ops })
    }

    /// Moves all times by so many nanoseconds, from the clock of another host to the own one.
    pub fn shift_times(&mut self, nanoseconds: i64) {
        for op in &mut self.ops {
            op.start = op.start.saturating_add_signed(nanoseconds);
            op.end = op.end.saturating_add_signed(nanoseconds);
        }
    }
}

impl Reader {
    /// Opens the memory that [`super::create`] made.
    ///
    /// # Errors
    /// If the descriptor is something else, or cannot be mapped.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self(RecordMemory::new(Region::open(fd, bytes(), "the record")?)))
    }

    /// The contents now; `None` before a rank has written to it, or if its version is unknown.
    #[must_use]
    pub fn read(&self) -> Option<Record> {
        record(&self.0)
    }

    /// The contents now as words, for [`Record::of_words`], also on another host: of the operations
    /// that have ended, the last ones of each communicator alone. `None` as for [`Self::read`].
    #[must_use]
    pub fn words(&self) -> Option<Vec<u64>> {
        words(&self.0, current)
    }

    /// True if a library of another version writes the record, in a format unknown here.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        ![0, MAGIC].contains(&self.0.header().magic.load(Ordering::Acquire))
    }
}

/// The contents of a record's memory.
pub(super) fn record(memory: &RecordMemory) -> Option<Record> {
    Record::of_words(&words(memory, |ops| ops)?)
}

/// The words of a record: its process, rank and number of entries of communicators, the entries of
/// communicators, and those of the operations that `select` leaves. `None` before a rank has
/// written to it, or if its version is unknown.
fn words(
    memory: &RecordMemory,
    select: impl FnOnce(Vec<[u64; OP_WORDS]>) -> Vec<[u64; OP_WORDS]>,
) -> Option<Vec<u64>> {
    let header = memory.header();
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return None;
    }
    let [pid, rank] = [&header.pid, &header.rank].map(|word| word.load(Ordering::Relaxed));
    let members = members(memory);
    let mut words = vec![pid, rank, members.len() as u64];
    words.extend(members.into_iter().flatten());
    let ops = (0..OPERATIONS).filter_map(|at| op_words(memory, at)).collect();
    words.extend(select(ops).into_iter().flatten());
    Some(words)
}

/// The operations that are under way, and the last call and message of each communicator.
fn current(mut ops: Vec<[u64; OP_WORDS]>) -> Vec<[u64; OP_WORDS]> {
    let mut last = BTreeMap::new();
    for [number, _, sequence, ..] in &ops {
        let of_its_kind = last.entry(sequence & !CALL).or_insert(*number);
        *of_its_kind = (*of_its_kind).max(*number);
    }
    ops.retain(|[number, _, sequence, .., position]| {
        let is_last = last.get(&(sequence & !CALL)) == Some(number);
        let state = Position::from_word(*position).state();
        is_last || matches!(state, Some(State::Entered | State::AtStep))
    });
    ops
}

/// The words of the communicators by entry.
fn members(memory: &RecordMemory) -> Vec<[u64; MEMBER_WORDS]> {
    let (used, mut members) = (memory.used(), vec![]);
    while members.len() < used {
        let first = members.len();
        members.extend((first..used.min(first + READ_AT_ONCE)).map(|at| member(memory, at)));
        // The number of entries is not trusted: to read where none was written takes memory.
        if members[first..].iter().all(|member| member[0] == 0) {
            break;
        }
    }
    members
}

/// The words of a communicator; zeros if its entry is empty or being written.
fn member(memory: &RecordMemory, at: usize) -> [u64; MEMBER_WORDS] {
    let group = memory.communicator(at);
    let key = group.key.load(Ordering::Acquire);
    let words = [&group.rank, &group.size, &group.made, &group.taken];
    let [rank, size, made, taken] = words.map(|word| word.load(Ordering::Relaxed));
    let [one, two, three] = group.name.each_ref().map(|word| word.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    match group.key.load(Ordering::Relaxed) == key {
        true => [key, rank, size, made, taken, one, two, three],
        false => [0; MEMBER_WORDS],
    }
}

fn member_of(
    [key, rank, size, made, taken, name @ ..]: [u64; MEMBER_WORDS],
) -> Option<CommunicatorRecord> {
    (key != 0 && rank < size).then(|| CommunicatorRecord {
        key,
        rank,
        size,
        created_before: made,
        is_open: taken != 0,
        name: ShortName::from_words(name),
    })
}

/// The operation with this number, if it is still recorded and is not being written.
pub(super) fn operation(memory: &RecordMemory, number: u64) -> Option<OperationRecord> {
    op_words(memory, number % OPERATIONS)
        .and_then(|words| op_of(words, &[]))
        .filter(|op| op.number == number)
}

/// The words of the operation of an entry, unless it is being written.
fn op_words(memory: &RecordMemory, at: u64) -> Option<[u64; OP_WORDS]> {
    let entry = memory.entry(at);
    let number = entry.number.load(Ordering::Acquire);
    let words = [
        &entry.what,
        &entry.sequence,
        &entry.count,
        &entry.bytes,
        &entry.start,
        &entry.end,
        &entry.position,
    ];
    let [what, sequence, count, bytes, start, end, position] =
        words.map(|word| word.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let torn = entry.number.load(Ordering::Relaxed) != number;
    let is_whole = number != 0 && !torn && number % OPERATIONS == at;
    is_whole.then_some([number, what, sequence, count, bytes, start, end, position])
}

fn op_of(
    [number, what, sequence, count, bytes, start, end, position]: [u64; OP_WORDS],
    members: &[Option<CommunicatorRecord>],
) -> Option<OperationRecord> {
    let (code, position) = (OperationCode::from_word(what), Position::from_word(position));
    let member =
        Some(entry_in(sequence)).filter(|&at| members.get(at).is_some_and(Option::is_some));
    Some(OperationRecord {
        number,
        communicator: member,
        sequence: sequence & CALL,
        is_message: sequence & MESSAGE != 0,
        code,
        count,
        bytes,
        start,
        end: end.max(start),
        state: position.state()?,
        step: position.step(),
        waits_for: position.toward(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::super::create;
    use super::super::recorder::{RecordWriter, Recorder};
    use super::{Reader, Record};

    fn begin(writer: &RecordWriter, number: u64) {
        writer.enter(("send", false), None, number, 8);
    }

    #[test]
    fn words_have_the_calls_under_way_and_the_last_ones_of_each_communicator() {
        let fd = create().unwrap();
        let shared = Recorder::shared(fd.as_fd()).unwrap();
        let recorder = Recorder::new(Some(shared), (0, 1), None, None, false).unwrap();
        let reader = Reader::open(fd.as_fd()).unwrap();
        let [first, second, third] =
            [7, 8, 9].map(|key| recorder.communicator(key, 0, Arc::default(), Arc::default()));
        let call = |writer: &RecordWriter, number| {
            begin(writer, number);
            writer.leave(None);
        };
        (1..=9).for_each(|number| call(&first, number));
        begin(&second, 1);
        (1..=10).for_each(|number| call(&third, number));
        begin(&first, 10);
        let all = reader.read().unwrap();
        let current = Record::of_words(&reader.words().unwrap()).unwrap();
        assert_eq!((all.ops.len(), &current.communicators), (21, &all.communicators));
        assert_eq!(current.ops, [10, 20, 21].map(|number| all.ops[number - 1]));
    }
}
