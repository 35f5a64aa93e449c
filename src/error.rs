//! `Error`: every way a call can fail. The error of a call under way names the rank, the host and
//! the step.

mod argument;
pub(crate) mod cause;
pub(crate) mod communicator_name;
mod context;
mod debug;
pub(crate) mod fault;
mod limit;
pub(crate) mod refused_call;
mod warn;
mod words;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::element::UnknownName;
use crate::sim::Violation;
pub(crate) use argument::argument_error;
pub use context::{Peer, Place, Stall};
pub use limit::Limit;
pub(crate) use warn::{warn, warn_on_stderr};
use words::{abort_source, mismatch_text, timeout_text, wait_text};

/// The library's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A failure: the cause, the rank concerned, and what to do next.
///
/// `{}` and `{:?}` print the same message: Rust shows the error that `main` returns by `{:?}`.
/// `{:#?}` prints the variant and its fields. `source()` is `None`: the message is complete.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting (environment variable or builder option) has a wrong value.
    #[non_exhaustive]
    #[error("{name}={given:?}: {expected}")]
    Config {
        /// The variable or option.
        name: String,
        /// Its value.
        given: String,
        /// Permitted values, or the mistake.
        expected: String,
    },
    /// Two launchers have set their variables, and they differ.
    #[non_exhaustive]
    #[error(
        "two launchers disagree: {first}; {second}. \
         Unset the variables of one, or name one in RINGREDUCE_LAUNCHER"
    )]
    Launchers {
        /// The first launcher's variables.
        first: String,
        /// The second launcher's variables.
        second: String,
    },
    /// An argument of a call is wrong.
    #[non_exhaustive]
    #[error("{call}: {argument} is {given}, expected {expected}")]
    Argument {
        /// The method.
        call: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its value.
        given: String,
        /// Permitted values.
        expected: String,
    },
    /// An object of a rank can't be encoded there, or decoded here.
    #[non_exhaustive]
    #[error("{call}: the object of {peer} {reason}")]
    Object {
        /// The method.
        call: &'static str,
        /// The rank whose object it is.
        peer: Box<Peer>,
        /// The encoder's or decoder's reason.
        reason: String,
    },
    /// Some ranks did not come to the rendezvous store in time.
    #[non_exhaustive]
    #[error(
        "rank {rank}: after {after:.1?} {} of {size} ranks had not started: {missing:?}. \
         {notes}", missing.len()
    )]
    MissingRanks {
        /// The rank that reports.
        rank: usize,
        /// The missing ranks.
        missing: Vec<usize>,
        /// The world size.
        size: usize,
        /// How long this rank waited.
        after: Duration,
        /// Known reasons, and what to do.
        notes: String,
    },
    /// Two processes claim one rank.
    #[non_exhaustive]
    #[error("rank {rank} was claimed twice: by {first} and by {second}; give each its own")]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Host and process of the first claim.
        first: String,
        /// Host and process of the second claim.
        second: String,
    },
    /// The rendezvous store can't be reached, is silent, or is another program.
    #[non_exhaustive]
    #[error("store at {address}: {reason}")]
    Store {
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// A peer could not be connected, or failed the handshake.
    #[non_exhaustive]
    #[error("handshake with {peer}: {reason}")]
    Handshake {
        /// The expected peer.
        peer: String,
        /// The reason.
        reason: String,
    },
    /// The operating system refused an operation.
    #[non_exhaustive]
    #[error("{doing}: {answer}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The system's answer. The message has it, so it is no `source()`.
        answer: Arc<io::Error>,
    },
    /// The operating system refused an operation because a limit is reached.
    #[non_exhaustive]
    #[error("{doing}: {answer}: {limit}")]
    Exhausted {
        /// The operation and its object.
        doing: String,
        /// The limit.
        limit: Limit,
        /// The system's answer. The message has it, so it is no `source()`.
        answer: Arc<io::Error>,
    },
    /// A CUDA driver is missing or too old, or a device refuses or lacks something.
    #[non_exhaustive]
    #[error("{doing}: {reason}")]
    Device {
        /// The operation.
        doing: String,
        /// The driver's answer, and what to do.
        reason: String,
    },
    /// A wait has reached its deadline.
    #[non_exhaustive]
    #[error("{}. RINGREDUCE_TIMEOUT sets the timeout of each wait", timeout_text(at, peer, after))]
    Timeout {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The peer that this rank waited for.
        peer: Box<Peer>,
        /// How long this rank waited.
        after: Duration,
    },
    /// No rank has sent the message that a receive from any rank waits for.
    #[non_exhaustive]
    #[error(
        "{at}: no message from any rank {}. RINGREDUCE_TIMEOUT sets the timeout of each wait",
        wait_text(after)
    )]
    NoMessage {
        /// The call of this rank.
        at: Box<Place>,
        /// How long this rank waited.
        after: Duration,
    },
    /// A known rank keeps all others waiting.
    #[non_exhaustive]
    #[error(
        "{at}: nothing from {peer} for {after:.1?}: it {state}. \
         RINGREDUCE_TIMEOUT sets the timeout of each wait"
    )]
    Stalled {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The stalled rank.
        peer: Box<Peer>,
        /// Its state.
        state: Stall,
        /// How long this rank waited.
        after: Duration,
    },
    /// A peer has ended or its connection is lost.
    #[non_exhaustive]
    #[error("{at}: lost {peer}: {evidence}")]
    PeerLost {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The lost peer.
        peer: Box<Peer>,
        /// How the loss was detected.
        evidence: String,
    },
    /// Two ranks make different calls: this rank and another, or two others.
    #[non_exhaustive]
    #[error("{}", mismatch_text(at, ranks, field, values))]
    Mismatch {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The two ranks; if this rank is one of them, it is the second.
        ranks: Box<[Peer; 2]>,
        /// The field that differs.
        field: &'static str,
        /// The field's value at each of the two.
        values: [String; 2],
    },
    /// Data from a peer was corrupted in the network.
    #[non_exhaustive]
    #[error(
        "{at}: what {peer} sent was corrupted on its way: slot {slot} of the link has the CRC-32C \
         {found:08x} here, {sent:08x} there. Look at the network's hardware"
    )]
    Corrupt {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The sender.
        peer: Box<Peer>,
        /// Number of the slot on the link from the sender, from 0.
        slot: u64,
        /// The checksum when the slot was sent.
        sent: u32,
        /// The checksum when the slot arrived.
        found: u32,
    },
    /// A slot on an encrypted link was not sent by the peer, or is not the next one.
    #[non_exhaustive]
    #[error(
        "{at}: slot {slot} of the link from {peer} was changed, dropped or forged on its way: \
         its authentication tag does not fit the connection's key. Find out what stands between \
         the hosts"
    )]
    Forged {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The peer at the other end of the link.
        peer: Box<Peer>,
        /// Number of the slot on the link from the peer, from 0.
        slot: u64,
    },
    /// Not all survivors made the call in time, answered and connected.
    #[non_exhaustive]
    #[error(
        "{call}: after {after:.1?} ranks {missing:?} had not called it, not answered or not \
         connected"
    )]
    NotAll {
        /// The method.
        call: &'static str,
        /// The ranks that were waited for: of all that did not come, those that did not call or
        /// not answer, or have ended, rather than ranks that waited in their turn.
        missing: Vec<usize>,
        /// How long this rank waited.
        after: Duration,
    },
    /// No quorum: too few ranks are left, and the others may be alive and go on.
    #[non_exhaustive]
    #[error(
        "{call}: ranks {live:?} of {size} are left, and the others may go on without them; start \
         the job anew"
    )]
    QuorumLost {
        /// The method.
        call: &'static str,
        /// The ranks that are left, as far as this rank knows.
        live: Vec<usize>,
        /// The size before the failure.
        size: usize,
    },
    /// The other ranks evicted this rank.
    #[non_exhaustive]
    #[error("{call}: the others went on without this rank, which they took for lost")]
    Evicted {
        /// The method.
        call: &'static str,
        /// Number of the membership that this rank does not belong to.
        epoch: u32,
    },
    /// A rank ended all calls: by [`Monitor::abort`](crate::Monitor::abort), or by
    /// [`revoke`](crate::Communicator::revoke).
    #[non_exhaustive]
    #[error("{at}: aborted{}", abort_source(at, by))]
    Aborted {
        /// The call and step of this rank.
        at: Box<Place>,
        /// The rank that aborted, which may be this one.
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
    /// The library is in a state that its own laws rule out.
    #[non_exhaustive]
    #[error("{call}: {state}, which can't be: a bug in ringreduce, please report it")]
    Bug {
        /// The method.
        call: &'static str,
        /// The state.
        state: &'static str,
    },
    /// No algorithm, data type, reduction or collective has this name.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// A user's schedule breaks a law.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl Error {
    /// True if a rank has ended, is silent, has not come, or has ended all calls: then the ranks
    /// that are left can go on without it, by [`evict`](crate::Communicator::evict). A wait that
    /// timed out ([`Self::Timeout`]) names no rank as lost.
    #[must_use]
    pub const fn is_lost_rank(&self) -> bool {
        use Error::{Aborted, NotAll, PeerLost, Stalled};
        matches!(self, PeerLost { .. } | Stalled { .. } | Aborted { .. } | NotAll { .. })
    }

    /// The call and step that the error names.
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

    /// The other rank that the error names.
    #[cfg(feature = "cuda")]
    pub(crate) fn peer_mut(&mut self) -> Option<&mut Peer> {
        match self {
            Self::Timeout { peer, .. } | Self::PeerLost { peer, .. } => Some(peer),
            Self::Mismatch { ranks, .. } => Some(&mut ranks[0]),
            Self::Aborted { at, by } => Some(&mut **by).filter(|by| by.rank != at.rank),
            _ => None,
        }
    }

    /// Renames the call to `name`, of which the failed call was a part.
    #[cfg(feature = "cuda")]
    pub(crate) fn in_call(mut self, name: &'static str) -> Self {
        if let Self::Argument { call, .. } | Self::Broken { call, .. } = &mut self {
            *call = name;
        }
        self
    }

    /// An [`Error::Io`], or [`Error::Exhausted`] if `answer` is about a limit.
    pub(crate) fn io(doing: impl Into<String>, answer: impl Into<io::Error>) -> Self {
        let (doing, answer) = (doing.into(), Arc::new(answer.into()));
        match Limit::of(&answer) {
            Some(limit) => Self::Exhausted { doing, limit, answer },
            None => Self::Io { doing, answer },
        }
    }

    /// As [`Self::io`], for a thread that could not be started.
    pub(crate) fn no_thread(doing: impl Into<String>, answer: io::Error) -> Self {
        match answer.kind() {
            io::ErrorKind::WouldBlock => {
                let answer = Arc::new(answer);
                Self::Exhausted { doing: doing.into(), limit: Limit::Threads, answer }
            }
            _ => Self::io(doing, answer),
        }
    }
}
