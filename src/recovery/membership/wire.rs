//! The encoding of messages: all of one size, with zeros in unused bytes, by the fields of `codec`.
//! Law: `decode` accepts exactly the bytes that `encode` makes, and returns `None` for all others.

use super::message::{
    AgreementKind, Ballot, Body, Call, Cause, Evidence, LastVotes, Message, Recovery, Report,
    Value, Vote,
};
use super::ranks::Ranks;
use crate::codec::{Buffer, Decoder, Encoder, Malformed};

/// The first byte of every message: the number of this layout.
const LAYOUT: u8 = 2;

/// The bytes of a message.
pub const MESSAGE_BYTES: usize = 272;

/// The message as bytes.
#[must_use]
pub fn encode(message: &Message) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    let out = &mut bytes[..];
    let to = |kind| Encoder(out).u8(LAYOUT).u8(kind).u32(message.epoch).u32(message.slot);
    match &message.body {
        Body::Ask => to(0),
        Body::Goodbye(votes) => to(1).votes(votes),
        Body::Evicted => to(2),
        Body::Revoke(cause, votes) => {
            let to = to(3).cause(Some(*cause)).u8(u8::from(votes.is_some()));
            to.votes(&votes.unwrap_or_default())
        }
        Body::Enter(kind) => to(4).kind(*kind),
        Body::Prepare(ballot) => to(5).ballot(*ballot),
        Body::Promise(ballot, report) => to(6).ballot(*ballot).report(report),
        Body::Refuse(refused, promised) => to(7).ballot(*refused).ballot(*promised),
        Body::Propose(ballot, value, participants) => {
            to(8).ballot(*ballot).value(value).ranks(*participants)
        }
        Body::Accept(ballot) => to(9).ballot(*ballot),
        Body::Decide(value) => to(10).value(value),
    };
    bytes
}

/// The message of these bytes; `None` if no message has them.
#[must_use]
pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
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
        3 => Body::Revoke(from.cause()?.ok_or(Malformed::UnknownValue)?, from.optional_votes()?),
        4 => Body::Enter(from.kind()?),
        5 => Body::Prepare(from.ballot()?),
        6 => Body::Promise(from.ballot()?, from.report()?),
        7 => Body::Refuse(from.ballot()?, from.ballot()?),
        8 => Body::Propose(from.ballot()?, from.value()?, from.ranks()?),
        9 => Body::Accept(from.ballot()?),
        10 => Body::Decide(from.value()?),
        _ => return Err(Malformed::UnknownValue),
    };
    from.zeros()?;
    Ok(Message { epoch, slot, body })
}

impl<B: Buffer> Encoder<B> {
    fn ranks(self, ranks: Ranks) -> Self {
        ranks.words().into_iter().fold(self, Self::u64)
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
        let to = self.kind(value.kind).ranks(value.members).u64(value.flags);
        to.u64(value.recovery.low).u64(value.recovery.high).cause(value.cause)
    }

    fn votes(self, votes: &LastVotes) -> Self {
        let both = [&votes.settle, &votes.call].into_iter();
        both.fold(self, |to, vote| {
            let to = to.u32(vote.promised_in.0).u32(vote.promised_in.1).ballot(vote.promised);
            let to = to.u32(vote.accepted_in.0).u32(vote.accepted_in.1).ballot(vote.accepted);
            to.ranks(vote.participants)
        })
    }

    fn report(self, report: &Report) -> Self {
        let to = self.ranks(report.suspected).u64(report.done).u64(report.full);
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
        Ok(Ranks::of_words([self.u64()?, self.u64()?, self.u64()?, self.u64()?]))
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

    /// Last votes that may be absent: then all their bytes are zero.
    fn optional_votes(&mut self) -> Result<Option<LastVotes>, Malformed> {
        match (self.u8()?, self.votes()?) {
            (0, nothing) if nothing == LastVotes::default() => Ok(None),
            (1, votes) => Ok(Some(votes)),
            _ => Err(Malformed::UnknownValue),
        }
    }

    fn report(&mut self) -> Result<Report, Malformed> {
        Ok(Report {
            suspected: self.ranks()?,
            done: self.u64()?,
            full: self.u64()?,
            call: Call { kind: self.kind()?, flags: self.u64()? },
            cause: self.cause()?,
            accepted: match self.u8()? {
                0 => None,
                1 => Some((self.ballot()?, self.value()?)),
                _ => return Err(Malformed::UnknownValue),
            },
        })
    }
}
