//! Failures in the call of the parent that made a subgroup. The subgroup begins without an exchange
//! of its own, so a rank that fails or waits in that call never comes to it. The others then report
//! the cause as the failure of that call.
//! Law: the word of a rank that is in that very call counts, and no other failure of the parent.

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
    /// The error of the parent's call that made this subgroup, if rank `peer` has failed there
    /// because of another rank.
    pub(crate) fn failure_in_parent(&self, peer: usize) -> Option<Error> {
        let parent = self.parent.as_deref()?;
        let peer = *parent.members.get(peer)?;
        let connections = &parent.channels.received();
        let channel = parent.channels.channel(connections, peer)?;
        let Some(ControlMessage::Failed { failure, call }) = channel.inbox.final_message else {
            return None;
        };
        let culprit = failure.cause.culprit;
        let is_other = culprit != peer && culprit != parent.me;
        if Some(call) != parent.call || !is_other || !failure.cause.is_within(parent.size()) {
            return None;
        }
        match failure.cause.reason {
            FailureReason::Lost { .. } => {
                Some(parent.lost(culprit, format!("rank {peer} gave up on it")))
            }
            FailureReason::Stalled(state, millis) => {
                Some(parent.stalled(culprit, state, Duration::from_millis(millis)))
            }
            FailureReason::Aborted | FailureReason::NoMemory | FailureReason::Differs(_) => None,
        }
    }

    /// The error of that call after a wait of `waited`, if rank `peer` waits there and a rank in it
    /// says which one is stopped or silent.
    pub(crate) fn wait_in_parent(&self, peer: usize, waited: Duration) -> Option<Error> {
        let parent = self.parent.as_deref()?;
        let peer = *parent.members.get(peer)?;
        let connections = &parent.channels.received();
        let in_call = parent.channels.all(connections).filter(|(_, channel)| {
            let heartbeat = channel.inbox.heartbeat;
            let is_in_call = Some(heartbeat.call) == parent.call && heartbeat.waits_for == 0;
            is_in_call && channel.inbox.has_recent_heartbeat(waited)
        });
        let in_call: Vec<_> =
            in_call.map(|(rank, channel)| (rank, channel.inbox.heartbeat.stalled)).collect();
        in_call.iter().find(|(rank, _)| *rank == peer)?;
        let named = in_call.iter().filter_map(|&(_, stalled)| (stalled as usize).checked_sub(1));
        let mut others = named.filter(|&it| it != peer && it != parent.me && it < parent.size());
        Some(parent.stalled(others.next()?, Stall::Silent { waited: 0 }, waited))
    }
}

impl Parent {
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

    /// This rank's place in the call that made the subgroup, an exchange of all ranks.
    fn place(&self) -> Box<Place> {
        let Peer { rank, host, .. } = self.names.peers[self.me].clone();
        let (operation, sequence) = ("all_gather", self.call.unwrap_or_default());
        let communicator = self.names.name.copy();
        Box::new(Place { rank, host, operation, sequence, tag: None, communicator, step: 0 })
    }
}
