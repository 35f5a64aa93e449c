//! Messages as bytes: all of one size, little-endian, unused bytes zero. May touch: message, ranks.
//! Law: `decode` takes exactly what `encode` makes, and never fails but by `None`.

use super::message::{
    Ballot, Body, Call, Cause, Evidence, Kind, Message, Recovery, Report, Testament, Value, Vote,
};
use super::ranks::Ranks;

/// The first byte of every message, so that another layout is told from this one.
const LAYOUT: u8 = 1;

/// The bytes of a message.
pub const MESSAGE_BYTES: usize = 272;

/// The message as bytes.
#[must_use]
pub fn encode(message: &Message) -> [u8; MESSAGE_BYTES] {
    let mut to = Writer { bytes: [0; MESSAGE_BYTES], at: 0 };
    to.u8(LAYOUT);
    to.u8(number(&message.body));
    to.u32(message.epoch);
    to.u32(message.slot);
    match &message.body {
        Body::Ask | Body::Evicted => {}
        Body::Goodbye(testament) => to.testament(testament),
        Body::Revoke(cause, testament) => {
            to.cause(Some(*cause));
            to.u8(u8::from(testament.is_some()));
            to.testament(&testament.unwrap_or_default());
        }
        Body::Enter(kind) => to.kind(*kind),
        Body::Gather(ballot) | Body::Accept(ballot) => to.ballot(*ballot),
        Body::Promise(ballot, report) => {
            to.ballot(*ballot);
            to.report(report);
        }
        Body::Refuse(refused, promised) => {
            to.ballot(*refused);
            to.ballot(*promised);
        }
        Body::Propose(ballot, value, takers) => {
            to.ballot(*ballot);
            to.value(value);
            to.ranks(*takers);
        }
        Body::Decide(value) => to.value(value),
    }
    to.bytes
}

/// The message that `bytes` are; `None` if they are none.
#[must_use]
pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
    let mut from = Reader(bytes);
    if from.u8()? != LAYOUT {
        return None;
    }
    let number = from.u8()?;
    let (epoch, slot) = (from.u32()?, from.u32()?);
    let body = match number {
        0 => Body::Ask,
        1 => Body::Goodbye(from.testament()?),
        2 => Body::Evicted,
        3 => Body::Revoke(from.cause()??, from.bequest()?),
        4 => Body::Enter(from.kind()?),
        5 => Body::Gather(from.ballot()?),
        6 => Body::Promise(from.ballot()?, from.report()?),
        7 => Body::Refuse(from.ballot()?, from.ballot()?),
        8 => Body::Propose(from.ballot()?, from.value()?, from.ranks()?),
        9 => Body::Accept(from.ballot()?),
        10 => Body::Decide(from.value()?),
        _ => return None,
    };
    let unused = from.0;
    unused.iter().all(|&byte| byte == 0).then_some(Message { epoch, slot, body })
}

const fn number(body: &Body) -> u8 {
    match body {
        Body::Ask => 0,
        Body::Goodbye(_) => 1,
        Body::Evicted => 2,
        Body::Revoke(..) => 3,
        Body::Enter(_) => 4,
        Body::Gather(_) => 5,
        Body::Promise(..) => 6,
        Body::Refuse(..) => 7,
        Body::Propose(..) => 8,
        Body::Accept(_) => 9,
        Body::Decide(_) => 10,
    }
}

struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.at..end) {
            room.copy_from_slice(bytes);
        }
        self.at = end;
    }

    fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn ranks(&mut self, ranks: Ranks) {
        for word in ranks.words() {
            self.u64(word);
        }
    }

    fn kind(&mut self, kind: Kind) {
        self.u8(match kind {
            Kind::Settle => 0,
            Kind::Agree => 1,
            Kind::Change => 2,
        });
    }

    fn ballot(&mut self, ballot: Ballot) {
        self.u32(ballot.round);
        self.u32(ballot.leader);
    }

    fn cause(&mut self, cause: Option<Cause>) {
        let Some(Cause { rank, evidence, sequence }) = cause else { return self.put(&[0; 13]) };
        self.u8(match evidence {
            Evidence::Called => 1,
            Evidence::Left => 2,
            Evidence::Suspected => 3,
            Evidence::Strong => 4,
            Evidence::Certain => 5,
        });
        self.u32(rank);
        self.u64(sequence);
    }

    fn value(&mut self, value: &Value) {
        self.kind(value.kind);
        self.ranks(value.members);
        self.ranks(value.joined);
        self.u64(value.flags);
        self.u64(value.recovery.low);
        self.u64(value.recovery.high);
        self.cause(value.cause);
    }

    fn testament(&mut self, testament: &Testament) {
        self.u32(testament.epoch);
        for vote in [&testament.settle, &testament.call] {
            self.u32(vote.slot);
            self.ballot(vote.ballot);
            self.ranks(vote.takers);
        }
    }

    fn report(&mut self, report: &Report) {
        self.ranks(report.gone);
        self.ranks(report.doubted);
        self.u64(report.done);
        self.u64(report.full);
        self.kind(report.call.kind);
        self.u64(report.call.flags);
        self.ranks(report.call.joiners);
        self.cause(report.cause);
        self.u8(u8::from(report.accepted.is_some()));
        if let Some((ballot, value)) = &report.accepted {
            self.ballot(*ballot);
            self.value(value);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn rank(&mut self) -> Option<u32> {
        self.u32().filter(|&rank| rank < Ranks::CAPACITY)
    }

    fn ranks(&mut self) -> Option<Ranks> {
        Some(Ranks::of_words([self.u64()?, self.u64()?, self.u64()?, self.u64()?]))
    }

    fn kind(&mut self) -> Option<Kind> {
        match self.u8()? {
            0 => Some(Kind::Settle),
            1 => Some(Kind::Agree),
            2 => Some(Kind::Change),
            _ => None,
        }
    }

    fn ballot(&mut self) -> Option<Ballot> {
        Some(Ballot { round: self.u32()?, leader: self.rank()? })
    }

    /// `Some(None)` is no cause.
    fn cause(&mut self) -> Option<Option<Cause>> {
        let evidence = match self.u8()? {
            0 => return (self.take()? == [0; 12]).then_some(None),
            1 => Evidence::Called,
            2 => Evidence::Left,
            3 => Evidence::Suspected,
            4 => Evidence::Strong,
            5 => Evidence::Certain,
            _ => return None,
        };
        Some(Some(Cause { rank: self.rank()?, evidence, sequence: self.u64()? }))
    }

    fn value(&mut self) -> Option<Value> {
        Some(Value {
            kind: self.kind()?,
            members: self.ranks()?,
            joined: self.ranks()?,
            flags: self.u64()?,
            recovery: Recovery { low: self.u64()?, high: self.u64()? },
            cause: self.cause()?,
        })
    }

    fn testament(&mut self) -> Option<Testament> {
        Some(Testament { epoch: self.u32()?, settle: self.vote()?, call: self.vote()? })
    }

    fn vote(&mut self) -> Option<Vote> {
        Some(Vote { slot: self.u32()?, ballot: self.ballot()?, takers: self.ranks()? })
    }

    /// `Some(None)` is no testament.
    fn bequest(&mut self) -> Option<Option<Testament>> {
        let there = self.u8()?;
        let testament = self.testament()?;
        match there {
            0 => (testament == Testament::default()).then_some(None),
            1 => Some(Some(testament)),
            _ => None,
        }
    }

    fn report(&mut self) -> Option<Report> {
        Some(Report {
            gone: self.ranks()?,
            doubted: self.ranks()?,
            done: self.u64()?,
            full: self.u64()?,
            call: Call { kind: self.kind()?, flags: self.u64()?, joiners: self.ranks()? },
            cause: self.cause()?,
            accepted: match self.u8()? {
                0 => None,
                1 => Some((self.ballot()?, self.value()?)),
                _ => return None,
            },
        })
    }
}
