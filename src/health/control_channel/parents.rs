//! Failures in the communicators that a subgroup was made of. A subgroup begins without an exchange
//! of its own, so a rank that fails or waits in the call of the parent that made it never comes to
//! it. The others then report the cause as the failure of that call.

use std::sync::Arc;
use std::time::Duration;

use super::channels::Channels;
use crate::error::cause::FailureReason;
use crate::error::communicator_name::CommunicatorName;
use crate::error::{Error, Peer, Place, Stall};
use crate::health::control_message::ControlMessage;

/// The ranks of a communicator, as its subgroups name them.
#[derive(Clone, Debug)]
pub(crate) struct ParentNames {
    pub(crate) peers: Arc<[Peer]>,
    pub(crate) name: Arc<CommunicatorName>,
}

/// The communicator that a subgroup was made of.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) channels: Channels,
    pub(super) names: ParentNames,
    /// The ranks that those of the subgroup have there, and this rank's.
    pub(super) members: Box<[usize]>,
    pub(super) me: usize,
    /// The number of the call that made the subgroup; `None` if its members made it alone.
    pub(super) call: Option<u64>,
}

impl Channels {
    /// True for those of a subgroup that shares the connections of its parent.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// The error of the parent's call, if the failure of the subgroup's rank `peer` follows from
    /// that of another rank there. After a wait of `waited`, a rank that is silent there counts.
    pub(crate) fn failure_in_parents(
        &self,
        peer: usize,
        waited: Option<Duration>,
    ) -> Option<Error> {
        let parent = self.parent.as_deref()?;
        let peer = *parent.members.get(peer)?;
        // A process that died without a word is the cause itself.
        if parent.channels.has_died(peer) {
            return None;
        }
        let found = parent.reported(peer).or_else(|| parent.died());
        let found = found.or_else(|| parent.silent(peer, waited?));
        found.or_else(|| parent.channels.failure_in_parents(peer, waited))
    }

    /// True if the process of `rank` has ended without a last message.
    fn has_died(&self, rank: usize) -> bool {
        let connections = &self.received();
        self.channel(connections, rank).is_some_and(|channel| channel.silent_end().is_some())
    }
}

impl Parent {
    /// The first failure that a rank reports, of another rank than `peer`; one that the rank has
    /// found itself, if there is any.
    fn reported(&self, peer: usize) -> Option<Error> {
        let connections = &self.channels.received();
        let failures = self.channels.all(connections).filter_map(|(rank, channel)| {
            match channel.inbox.final_message {
                Some(ControlMessage::Failed(failure)) => Some((rank, failure)),
                _ => None,
            }
        });
        let failures = failures.filter(|(_, failure)| failure.cause.is_within(self.size()));
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by_key(|(_, failure)| !failure.first_hand);
        failures.into_iter().find_map(|(rank, failure)| {
            let culprit = failure.cause.culprit;
            match failure.cause.reason {
                _ if culprit == peer => None,
                FailureReason::Lost { .. } if culprit == self.me => {
                    Some(self.lost(rank, "it gave up on this rank".into()))
                }
                FailureReason::Lost { .. } if culprit == rank => None,
                FailureReason::Lost { .. } => {
                    Some(self.lost(culprit, format!("rank {rank} gave up on it")))
                }
                FailureReason::Stalled(state, millis) => {
                    Some(self.stalled(culprit, state, Duration::from_millis(millis)))
                }
                FailureReason::Aborted | FailureReason::NoMemory | FailureReason::Differs(_) => {
                    None
                }
            }
        })
    }

    /// The rank that died first.
    fn died(&self) -> Option<Error> {
        let connections = &self.channels.received();
        let ends = self.channels.all(connections);
        let ends = ends.filter_map(|(rank, channel)| Some((channel.silent_end()?, rank)));
        let ((_, how), rank) = ends.min_by_key(|((since, _), _)| *since)?;
        Some(self.lost(rank, how))
    }

    /// The silent rank at the end of the waits that begin with `peer`.
    fn silent(&self, peer: usize, waited: Duration) -> Option<Error> {
        let (silent, call) = self.channels.silent_peer_behind(peer, self.size(), waited)?;
        (silent != peer).then(|| self.stalled(silent, Stall::Silent { waited: call }, waited))
    }

    fn size(&self) -> usize {
        self.names.peers.len()
    }

    fn lost(&self, rank: usize, evidence: String) -> Error {
        Error::PeerLost { at: self.place(), peer: self.peer(rank), evidence }
    }

    fn stalled(&self, rank: usize, state: Stall, after: Duration) -> Error {
        Error::Stalled { at: self.place(), peer: self.peer(rank), state, after }
    }

    fn peer(&self, rank: usize) -> Box<Peer> {
        Box::new(self.names.peers[rank].clone())
    }

    /// This rank's place in the call that made the subgroup.
    fn place(&self) -> Box<Place> {
        let Peer { rank, host, .. } = self.names.peers[self.me].clone();
        let (operation, sequence) = match self.call {
            Some(number) => ("all_gather", number),
            None => ("create_group", 0),
        };
        let communicator = self.names.name.copy();
        Box::new(Place { rank, host, operation, sequence, tag: None, communicator, step: 0 })
    }
}
