//! Every way a call can fail, typed: what happened, to whom, at which step, and what to do next.
//! May touch: the errors of element and sim, which become its own.

pub(crate) mod cause;
mod debug;
pub(crate) mod fault;
mod limit;
mod warn;
mod who;

use std::io;
use std::time::Duration;

use crate::element::UnknownName;
use crate::sim::Violation;
pub use limit::Limit;
pub(crate) use warn::{tell, warn};
pub use who::{Peer, Place, Stall};

/// The library's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What went wrong, to whom, and what to do next.
///
/// `{}` and `{:?}` print the same message: Rust shows the error that `main` returns by `{:?}`.
/// `{:#?}` prints the variant and its fields. `source()` is `None`: the message is complete.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting (environment variable or builder value) that makes no sense.
    #[non_exhaustive]
    #[error("{name}={given:?}: {expected}")]
    Config {
        /// The variable or setting.
        name: String,
        /// Its value.
        given: String,
        /// What it may be, or what is wrong with it.
        expected: String,
    },
    /// Two launchers left their variables, and they differ.
    #[non_exhaustive]
    #[error(
        "two launchers disagree: {first}; {second}. \
         Unset the variables of one, or name one in RINGREDUCE_LAUNCHER"
    )]
    Launchers {
        /// What the first one says.
        first: String,
        /// What the second one says.
        second: String,
    },
    /// An argument of a call that does not fit.
    #[non_exhaustive]
    #[error("{call}: {argument} is {given}, expected {expected}")]
    Argument {
        /// The method.
        call: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its value.
        given: String,
        /// What it must be.
        expected: String,
    },
    /// Some ranks did not come to the meeting point in time.
    #[non_exhaustive]
    #[error(
        "rank {rank}: after {after:.1?} {} of {size} ranks had not started: {missing:?}. \
         Look at their output, or raise RINGREDUCE_TIMEOUT", missing.len()
    )]
    MissingRanks {
        /// The rank that reports.
        rank: usize,
        /// Who is missing.
        missing: Vec<usize>,
        /// The world size.
        size: usize,
        /// How long this rank waited.
        after: Duration,
    },
    /// Two processes claim one rank.
    #[non_exhaustive]
    #[error("rank {rank} was claimed twice: by {first} and by {second}; give each its own")]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Who came first.
        first: String,
        /// Who came second.
        second: String,
    },
    /// The meeting point can't be reached, is silent, or speaks something else.
    #[non_exhaustive]
    #[error("store at {address}: {reason}")]
    Store {
        /// Its address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A connection that did not turn out to be the peer we expected.
    #[non_exhaustive]
    #[error("handshake with {peer}: {reason}")]
    Handshake {
        /// Who was expected.
        peer: String,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused something while a communicator was set up.
    #[non_exhaustive]
    #[error("{doing}: {answer}")]
    Io {
        /// What was attempted, on what.
        doing: String,
        /// The system's answer. It is in the message, so it is no `source()`.
        answer: io::Error,
    },
    /// The operating system refused something because a limit is reached.
    #[non_exhaustive]
    #[error("{doing}: {answer}: {limit}")]
    Exhausted {
        /// What was attempted, on what.
        doing: String,
        /// What there is too little of.
        limit: Limit,
        /// The system's answer. It is in the message, so it is no `source()`.
        answer: io::Error,
    },
    /// A CUDA driver is missing or too old, or a device refuses or lacks something.
    #[non_exhaustive]
    #[error("{doing}: {reason}")]
    Device {
        /// What was attempted.
        doing: String,
        /// The driver's answer, and what to do.
        reason: String,
    },
    /// A wait ran past the deadline.
    #[non_exhaustive]
    #[error(
        "{at}: nothing from {peer} {}; it is stuck, makes other calls or waits for somebody else. \
         RINGREDUCE_TIMEOUT sets how long to wait",
        waited(after)
    )]
    Timeout {
        /// Where we waited.
        at: Box<Place>,
        /// For whom.
        peer: Box<Peer>,
        /// How long.
        after: Duration,
    },
    /// A rank keeps all others waiting, and it is known which.
    #[non_exhaustive]
    #[error(
        "{at}: nothing from {peer} for {after:.1?}: it {state}. \
         RINGREDUCE_TIMEOUT sets how long to wait"
    )]
    Stalled {
        /// Where we waited.
        at: Box<Place>,
        /// For whom.
        peer: Box<Peer>,
        /// What it does instead.
        state: Stall,
        /// How long.
        after: Duration,
    },
    /// The peer is gone.
    #[non_exhaustive]
    #[error("{at}: lost {peer}: {evidence}")]
    PeerLost {
        /// Where we noticed.
        at: Box<Place>,
        /// Who is gone.
        peer: Box<Peer>,
        /// How we know.
        evidence: String,
    },
    /// Two ranks are in calls that differ: this one and another, or two others.
    #[non_exhaustive]
    #[error("{}", differ(at, ranks, field, values))]
    Mismatch {
        /// Where we are.
        at: Box<Place>,
        /// Who differ; this rank is the second, if it is one of them.
        ranks: Box<[Peer; 2]>,
        /// In what.
        field: &'static str,
        /// The value of each.
        values: [String; 2],
    },
    /// What a peer sent over the network came as something else.
    #[non_exhaustive]
    #[error(
        "{at}: what {peer} sent was corrupted on its way: slot {slot} of the link has the CRC-32C \
         {found:08x} here, {sent:08x} there. Look at the network's hardware"
    )]
    Corrupt {
        /// Where we are.
        at: Box<Place>,
        /// Who sent it.
        peer: Box<Peer>,
        /// The number of the slot on the link from there, from 0.
        slot: u64,
        /// Its checksum when it was sent.
        sent: u32,
        /// Its checksum here.
        found: u32,
    },
    /// Something came over an encrypted link that the peer did not send, or not as what comes next.
    #[non_exhaustive]
    #[error(
        "{at}: slot {slot} of the link from {peer} was changed, left out or sent by somebody else \
         on its way: it is not sealed with the connection's key. Look at who is between the hosts"
    )]
    Forged {
        /// Where we are.
        at: Box<Place>,
        /// Who should have sent it.
        peer: Box<Peer>,
        /// The number of the slot on the link from there, from 0.
        slot: u64,
    },
    /// Not all survivors called in time.
    #[non_exhaustive]
    #[error("{call}: after {after:.1?} ranks {missing:?} had neither called it nor ended")]
    NotAll {
        /// The method.
        call: &'static str,
        /// Who has not.
        missing: Vec<usize>,
        /// How long this rank waited.
        after: Duration,
    },
    /// Too few are left to go on: the others may be alive, and do so.
    #[non_exhaustive]
    #[error(
        "{call}: ranks {live:?} of {size} are left, and the others may go on without them; start \
         the job anew"
    )]
    QuorumLost {
        /// The method.
        call: &'static str,
        /// Who is left, as far as this rank knows.
        live: Vec<usize>,
        /// How many there were.
        size: usize,
    },
    /// The others went on without this rank.
    #[non_exhaustive]
    #[error("{call}: the others went on without this rank, which they took for lost")]
    Evicted {
        /// The method.
        call: &'static str,
        /// The number of the membership that it does not belong to.
        epoch: u32,
    },
    /// Somebody ended all calls: by an [`AbortHandle`](crate::AbortHandle), or by
    /// [`revoke`](crate::Communicator::revoke).
    #[non_exhaustive]
    #[error("{at}: aborted{}", by_whom(at, by))]
    Aborted {
        /// Where we were.
        at: Box<Place>,
        /// The rank that did so, which may be this one.
        by: Box<Peer>,
    },
    /// An earlier failure left the communicator unusable.
    #[non_exhaustive]
    #[error("{call}: this communicator failed before ({first}); make a new one")]
    Broken {
        /// The method.
        call: &'static str,
        /// The first failure.
        first: String,
    },
    /// A name that is no algorithm, data type, reduction or collective.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// A schedule of the user's making that breaks a law.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// How long, in words.
fn waited(after: &Duration) -> String {
    if after.is_zero() {
        return "yet, and the call does not wait: its timeout is zero".into();
    }
    format!("for {after:.1?}")
}

/// Who differ, in what.
fn differ(at: &Place, ranks: &[Peer; 2], field: &str, values: &[String; 2]) -> String {
    let ([one, other], [there, here]) = (ranks, values);
    if other.rank == at.rank {
        return format!(
            "{at}: {one} does not make the same call: {field} is {there} there, {here} here"
        );
    }
    let rank = other.rank;
    format!(
        "{at}: {one} does not make the same call as {other}: {field} is {there} there, {here} at \
         rank {rank}"
    )
}

/// By which other rank.
fn by_whom(at: &Place, by: &Peer) -> String {
    if by.rank == at.rank { String::new() } else { format!(" by {by}") }
}

impl Error {
    /// Where it says that it happened.
    #[cfg(feature = "cuda")]
    pub(crate) fn place_mut(&mut self) -> Option<&mut Place> {
        match self {
            Self::Timeout { at, .. }
            | Self::Stalled { at, .. }
            | Self::PeerLost { at, .. }
            | Self::Mismatch { at, .. }
            | Self::Corrupt { at, .. }
            | Self::Forged { at, .. }
            | Self::Aborted { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The other rank of which it says that the call failed.
    #[cfg(feature = "cuda")]
    pub(crate) fn peer_mut(&mut self) -> Option<&mut Peer> {
        match self {
            Self::Timeout { peer, .. } | Self::PeerLost { peer, .. } => Some(peer),
            Self::Mismatch { ranks, .. } => Some(&mut ranks[0]),
            Self::Aborted { at, by } => Some(&mut **by).filter(|by| by.rank != at.rank),
            _ => None,
        }
    }

    /// The same, of another call of which the one that failed was a part.
    #[cfg(feature = "cuda")]
    pub(crate) fn in_call(mut self, name: &'static str) -> Self {
        if let Self::Argument { call, .. } | Self::Broken { call, .. } = &mut self {
            *call = name;
        }
        self
    }

    /// An [`Error::Io`], or [`Error::Exhausted`], from the system's last word on `doing`.
    pub(crate) fn io(doing: impl Into<String>, answer: impl Into<io::Error>) -> Self {
        let (doing, answer) = (doing.into(), answer.into());
        match Limit::of(&answer) {
            Some(limit) => Self::Exhausted { doing, limit, answer },
            None => Self::Io { doing, answer },
        }
    }

    /// The same where that was to start a thread.
    pub(crate) fn no_thread(doing: impl Into<String>, answer: io::Error) -> Self {
        match answer.kind() {
            io::ErrorKind::WouldBlock => {
                Self::Exhausted { doing: doing.into(), limit: Limit::Threads, answer }
            }
            _ => Self::io(doing, answer),
        }
    }
}
