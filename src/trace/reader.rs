//! A record as others read it: while it is written, or when its writer is no more.
//! May touch: link's mappings. Law: nothing in it is trusted; what was torn is left out.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use super::layout::{Board, CALL, KEPT, MAGIC, MEMBERS, bytes};
use super::operation::What;
use super::recorder::Where;
use crate::error::Result;
use crate::memory::mapping::Region;

/// Reads the record of one rank.
#[derive(Debug)]
pub struct Reader(Board);

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has begun and waits for nobody yet.
    Entered,
    /// It is at a step of its schedule.
    AtStep,
    /// It is over.
    Done,
    /// It failed.
    Failed,
}

/// An operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number among all of this rank, from 1.
    pub number: u64,
    /// Its communicator's place among [`Record::members`].
    pub member: Option<usize>,
    /// The number on that communicator, from 1.
    pub sequence: u64,
    /// Do two ranks make it alone?
    pub is_message: bool,
    /// What it is.
    pub what: What,
    /// Elements.
    pub count: u64,
    /// Bytes of the result.
    pub bytes: u64,
    /// When it began: [`super::now`], to a few milliseconds.
    pub start: u64,
    /// When it was over or failed; its beginning, if it is not known or not so yet.
    pub end: u64,
    /// How far it is.
    pub state: State,
    /// The step that it is at.
    pub step: u64,
    /// "receiving from", "sending to" or "waiting for" a rank of its communicator.
    pub toward: Option<(&'static str, u64)>,
}

/// A communicator of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The number by which all its ranks know it.
    pub key: u64,
    /// This one's rank there.
    pub rank: u64,
    /// How many there are.
    pub size: u64,
    /// How many communicators this rank had made before.
    pub made: u64,
    /// Is it still there?
    pub open: bool,
}

/// What a record said at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The process that wrote it.
    pub pid: u64,
    /// Its rank.
    pub rank: u64,
    /// By place; none where there is no communicator.
    pub members: Vec<Option<Member>>,
    /// The last operations, the oldest first.
    pub ops: Vec<Op>,
}

impl Reader {
    /// Of the memory that [`super::create`] made.
    ///
    /// # Errors
    /// If it is something else, or can't be mapped.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self(Board::new(Region::open(fd, bytes(), "the record")?)))
    }

    /// What it says now; none as long as nobody has written anything, and of another version.
    #[must_use]
    pub fn read(&self) -> Option<Record> {
        record(&self.0)
    }

    /// True if a library of another version writes the record, in a format that is not read here.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        ![0, MAGIC].contains(&self.0.head().magic.load(Ordering::Acquire))
    }
}

/// What is on a board.
pub(super) fn record(board: &Board) -> Option<Record> {
    let head = board.head();
    if head.magic.load(Ordering::Acquire) != MAGIC {
        return None;
    }
    let members: Vec<_> = (0..MEMBERS).map(|at| member(board, at)).collect();
    let mut ops: Vec<_> = (0..KEPT).filter_map(|at| op(board, at, &members)).collect();
    ops.sort_unstable_by_key(|op| op.number);
    let [pid, rank] = [&head.pid, &head.rank].map(|word| word.load(Ordering::Relaxed));
    Some(Record { pid, rank, members, ops })
}

fn member(board: &Board, at: usize) -> Option<Member> {
    let group = board.group(at);
    let key = group.key.load(Ordering::Acquire);
    let words = [&group.rank, &group.size, &group.made, &group.taken];
    let [rank, size, made, taken] = words.map(|word| word.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let same = key != 0 && group.key.load(Ordering::Relaxed) == key && rank < size;
    same.then_some(Member { key, rank, size, made, open: taken != 0 })
}

/// The operation in this place, unless it is being written.
fn op(board: &Board, at: u64, members: &[Option<Member>]) -> Option<Op> {
    let entry = board.entry(at);
    let number = entry.number.load(Ordering::Acquire);
    let words = [
        &entry.what,
        &entry.sequence,
        &entry.count,
        &entry.bytes,
        &entry.start,
        &entry.end,
        &entry.place,
    ];
    let words = words.map(|word| word.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let torn = entry.number.load(Ordering::Relaxed) != number;
    if number == 0 || torn || number % KEPT != at {
        return None;
    }
    let [what, sequence, count, bytes, start, end, place] = words;
    let what = What::from_word(what);
    let place = Where::from_word(place);
    let member = Some(what.at()).filter(|&at| members.get(at).is_some_and(Option::is_some));
    let (call, is_message) = (sequence & CALL, sequence >> 63 != 0);
    let (state, step, toward) = (place.state()?, place.step(), place.toward());
    let (sequence, end) = (call, end.max(start));
    let op = Op {
        number,
        member,
        sequence,
        is_message,
        what,
        count,
        bytes,
        start,
        end,
        state,
        step,
        toward,
    };
    Some(op)
}
