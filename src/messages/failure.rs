//! How a message fails: the error that names both ends.

use std::time::Duration;

use super::Messages;
use super::progress::State;
use crate::element::DataType;
use crate::error::{Error, Peer, Place, Result};
use crate::matching::{Expected, MAX_PENDING, Outcome, Status};

/// Why a wait ended before its request did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Timeout(Duration),
    Aborted,
    /// The observer of the wait knows that a rank will not answer.
    PeerFailed,
    /// There are no messages any more.
    Closed(&'static str),
}

/// A call of the user's, for its error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// The method's name.
    pub(crate) call: &'static str,
    /// The number of the request.
    pub(crate) number: u64,
    /// The other end: the receiver of a send, as its only source, or what a receive takes.
    pub(crate) expected: Expected,
}

impl Messages {
    /// The message of a call, or its error.
    pub(crate) fn conclude(&self, context: Context, outcome: Outcome) -> Result<Status> {
        let at = || self.place(context);
        let peer = |rank: u32| self.peers[rank as usize].clone();
        Err(match outcome {
            Outcome::Done(status) => return Ok(status),
            Outcome::Differs { peer: other, ours, theirs } => {
                let (field, values) = difference(ours, theirs);
                let ranks = Box::new([peer(other), self.peers[self.me].clone()]);
                Error::Mismatch { at: at(), ranks, field, values }
            }
            Outcome::Withdrawn { peer: other } => {
                Error::Aborted { at: at(), by: Box::new(peer(other)) }
            }
            Outcome::Lost(lost) => self.lost(context, lost),
        })
    }

    fn lost(&self, context: Context, lost: Option<u32>) -> Error {
        let at = self.place(context);
        let state = self.lock();
        let all = || (0..self.peers.len()).find(|&rank| rank != self.me).unwrap_or(self.me);
        let rank = lost.map_or_else(all, |rank| rank as usize);
        let mut evidence = state.evidence(rank).to_owned();
        if lost.is_none() {
            evidence.push_str("; all other ranks are lost as well");
        }
        Error::PeerLost { at, peer: Box::new(self.peers[rank].clone()), evidence }
    }

    /// The error of a call whose wait has ended early.
    pub(crate) fn stopped(&self, context: Context, stop: Stop) -> Error {
        let me = || Box::new(self.peers[self.me].clone());
        match stop {
            Stop::Closed(why) => Error::Broken { call: context.call, first: why.into() },
            Stop::PeerFailed => self.lost(context, context.expected.source),
            Stop::Aborted => Error::Aborted { at: self.place(context), by: me() },
            Stop::Timeout(after) => match context.expected.source {
                Some(source) => {
                    let peer: Peer = self.peers[source as usize].clone();
                    Error::Timeout { at: self.place(context), peer: Box::new(peer), after }
                }
                None => Error::NoMessage { at: self.place(context), after },
            },
        }
    }

    /// The error of a request beyond the limit.
    pub(crate) fn too_many(Context { call, expected, .. }: Context) -> Error {
        let peer = expected.source.map_or("any rank".into(), |rank| format!("rank {rank}"));
        let tag = tag_in_words(expected.tag);
        let given = format!("one more than {MAX_PENDING} pending ones, with {peer} and {tag}");
        Error::argument(call, "request", given, "fewer; wait for some of them first")
    }

    /// This rank's place in a call, for an error.
    fn place(&self, Context { call, number, expected }: Context) -> Box<Place> {
        let Peer { rank, host, .. } = self.peers[self.me].clone();
        let tag = Some(tag_in_words(expected.tag));
        let communicator = self.name.copy();
        let (operation, sequence) = (call, number);
        Box::new(Place { rank, host, operation, sequence, tag, communicator, step: 0 })
    }
}

fn tag_in_words(tag: Option<u32>) -> String {
    tag.map_or("any tag".into(), |tag| format!("tag {tag}"))
}

impl State {
    /// The context of the request that was started last.
    pub(crate) fn numbered(&self, context: Context) -> Context {
        Context { number: self.started, ..context }
    }

    /// # Errors
    /// If there are no messages any more.
    pub(crate) fn check_open(&self, call: &'static str) -> Result<()> {
        let broken = |why: &str| Error::Broken { call, first: why.into() };
        self.closed.map_or(Ok(()), |why| Err(broken(why)))
    }
}

/// The field in which a send and a receive differ, and its values there and here.
fn difference(ours: (DataType, u64), theirs: (DataType, u64)) -> (&'static str, [String; 2]) {
    if ours.0 != theirs.0 {
        return ("the type", [theirs.0, ours.0].map(|dtype| dtype.name().into()));
    }
    ("the length", [theirs.1, ours.1].map(|bytes| format!("{bytes} bytes")))
}
