//! The encoding of messages, by the fields of `codec`. A set of ranks is the number of its words,
//! a `u16`, and the words, so that messages are as long as the highest ranks in them need.
//! Law: `decode` accepts exactly the bytes that `encode` makes, with any zeros after them, and
//! returns `None` for all others.

use super::message::{
    AgreementKind, Ballot, Body, Call, Cause, Ends, Entry, Evidence, LastVotes, Message, Recovery,
    Report, Value, Vote,
};
use super::ranks::Ranks;
use crate::codec::{Buffer, Decoder, Encoder, Malformed};

/// The first byte of every message: the number of this layout.
const LAYOUT: u8 = 4;

/// The message as bytes.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let to = |kind| Encoder::default().u8(LAYOUT).u8(kind).u32(message.epoch).u32(message.slot);
    let to = match &message.body {
        Body::Ask => to(0),
        Body::Goodbye(votes) => to(1).votes(votes),
        Body::Evicted => to(2),
        Body::Revoke(cause, ends) => to(3).cause(Some(*cause)).ends(ends),
        Body::Enter(Entry { kind, asks }) => to(4).kind(*kind).u8(u8::from(*asks)),
        Body::Prepare(ballot) => to(5).ballot(*ballot),
        Body::Promise(ballot, report) => to(6).ballot(*ballot).report(report),
        Body::Refuse(refused, promised) => to(7).ballot(*refused).ballot(*promised),
        Body::Propose(ballot, value, participants) => {
            to(8).ballot(*ballot).value(value).ranks(participants)
        }
        Body::Accept(ballot) => to(9).ballot(*ballot),
        Body::Decide(value) => to(10).value(value),
        Body::Withdraw => to(11),
    };
    to.0
}

/// The message of these bytes; `None` if no message has them.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Message> {
    parse(Decoder(bytes)).ok()
}

fn parse(mut from: Decoder<'_>) -> Result<Message, Malformed> {
    if from.u8()? != LAYOUT {
        return Err(Malformed::UnknownValue);
    }
    let kind = from.u8()?;
    let (epoch, slot) = (from.u32()?, from.u32()?);
    let body = match kind {
        0 => Body::Ask,
        1 => Body::Goodbye(from.votes()?),
        2 => Body::Evicted,
        3 => Body::Revoke(from.cause()?.ok_or(Malformed::UnknownValue)?, from.ends()?),
        4 => Body::Enter(Entry { kind: from.kind()?, asks: from.flag()? }),
        5 => Body::Prepare(from.ballot()?),
        6 => Body::Promise(from.ballot()?, from.report()?),
        7 => Body::Refuse(from.ballot()?, from.ballot()?),
        8 => Body::Propose(from.ballot()?, from.value()?, from.ranks()?),
        9 => Body::Accept(from.ballot()?),
        10 => Body::Decide(from.value()?),
        11 => Body::Withdraw,
        _ => return Err(Malformed::UnknownValue),
    };
    from.zeros()?;
    Ok(Message { epoch, slot, body })
}

impl<B: Buffer> Encoder<B> {
    fn ranks(self, ranks: &Ranks) -> Self {
        let words = ranks.words();
        words.iter().fold(self.u16(words.len() as u16), |to, &word| to.u64(word))
    }

    fn kind(self, kind: AgreementKind) -> Self {
        self.u8(kind as u8)
    }

    fn ballot(self, ballot: Ballot) -> Self {
        self.u32(ballot.round).u32(ballot.leader)
    }

    fn cause(self, cause: Option<Cause>) -> Self {
        let Some(Cause { rank, evidence, sequence }) = cause else { return self.raw(&[0; 13]) };
        self.u8(evidence as u8).u32(rank).u64(sequence)
    }

    fn value(self, value: &Value) -> Self {
        let to = self.kind(value.kind).ranks(&value.members).u64(value.flags);
        to.u64(value.recovery.low).u64(value.recovery.high).cause(value.cause)
    }

    fn votes(self, votes: &LastVotes) -> Self {
        let both = [&votes.settle, &votes.call].into_iter();
        both.fold(self, |to, vote| {
            let to = to.u32(vote.promised_in.0).u32(vote.promised_in.1).ballot(vote.promised);
            let to = to.u32(vote.accepted_in.0).u32(vote.accepted_in.1).ballot(vote.accepted);
            to.ranks(&vote.participants)
        })
    }

    fn ends(self, ends: &Ends) -> Self {
        let to = self.ranks(&ends.dead).ranks(&ends.left).ranks(&ends.never_voted);
        match &ends.votes {
            Some((rank, votes)) => to.u8(1).u32(*rank).votes(votes),
            None => to.u8(0),
        }
    }

    fn report(self, report: &Report) -> Self {
        let to = self.ranks(&report.suspected).u64(report.done).u64(report.full);
        let to = to.kind(report.call.kind).u64(report.call.flags);
        let to = to.cause(report.cause);
        match &report.accepted {
            Some((ballot, value)) => to.u8(1).ballot(*ballot).value(value),
            None => to.u8(0),
        }
    }
}

impl Decoder<'_> {
    fn rank(&mut self) -> Result<u32, Malformed> {
        let rank = self.u32()?;
        if rank < Ranks::CAPACITY { Ok(rank) } else { Err(Malformed::UnknownValue) }
    }

    fn ranks(&mut self) -> Result<Ranks, Malformed> {
        let count = usize::from(self.u16()?);
        let (words, _) = self.raw(8 * count)?.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // No writer ends with a word that is 0, or passes the capacity.
        let ranks = Ranks::of_words(&words);
        if ranks.words() == words { Ok(ranks) } else { Err(Malformed::UnknownValue) }
    }

    fn kind(&mut self) -> Result<AgreementKind, Malformed> {
        match self.u8()? {
            0 => Ok(AgreementKind::Settle),
            1 => Ok(AgreementKind::Agree),
            2 => Ok(AgreementKind::Change),
            3 => Ok(AgreementKind::Close),
            _ => Err(Malformed::UnknownValue),
        }
    }

    fn ballot(&mut self) -> Result<Ballot, Malformed> {
        Ok(Ballot { round: self.u32()?, leader: self.rank()? })
    }

    fn cause(&mut self) -> Result<Option<Cause>, Malformed> {
        let evidence = match self.u8()? {
            0 if self.array()? == [0; 12] => return Ok(None),
            1 => Evidence::Called,
            2 => Evidence::Left,
            3 => Evidence::Suspected,
            4 => Evidence::Strong,
            5 => Evidence::Certain,
            _ => return Err(Malformed::UnknownValue),
        };
        Ok(Some(Cause { rank: self.rank()?, evidence, sequence: self.u64()? }))
    }

    fn value(&mut self) -> Result<Value, Malformed> {
        Ok(Value {
            kind: self.kind()?,
            members: self.ranks()?,
            flags: self.u64()?,
            recovery: Recovery { low: self.u64()?, high: self.u64()? },
            cause: self.cause()?,
        })
    }

    fn votes(&mut self) -> Result<LastVotes, Malformed> {
        Ok(LastVotes { settle: self.vote()?, call: self.vote()? })
    }

    fn vote(&mut self) -> Result<Vote, Malformed> {
        Ok(Vote {
            promised_in: (self.u32()?, self.u32()?),
            promised: self.ballot()?,
            accepted_in: (self.u32()?, self.u32()?),
            accepted: self.ballot()?,
            participants: self.ranks()?,
        })
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::UnknownValue),
        }
    }

    fn ends(&mut self) -> Result<Ends, Malformed> {
        let (dead, left, never_voted) = (self.ranks()?, self.ranks()?, self.ranks()?);
        let votes = if self.flag()? { Some((self.rank()?, self.votes()?)) } else { None };
        Ok(Ends { dead, left, never_voted, votes })
    }

    fn report(&mut self) -> Result<Report, Malformed> {
        Ok(Report {
            suspected: self.ranks()?,
            done: self.u64()?,
            full: self.u64()?,
            call: Call { kind: self.kind()?, flags: self.u64()? },
            cause: self.cause()?,
            accepted: if self.flag()? { Some((self.ballot()?, self.value()?)) } else { None },
        })
    }
}
