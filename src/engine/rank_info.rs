//! The facts about a communicator's rank that its calls need and that never change.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Peer;
use crate::error::communicator_name::CommunicatorName;
use crate::memory::RegistrationTable;
use crate::messages::MessageEngine;
use crate::sync::Process;
use crate::trace::RecordWriter;

/// This rank's number, its peers, and how they are connected. The engine, the communicator and the
/// communicator of its worker share it.
pub(crate) struct RankInfo {
    pub(crate) rank: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    /// In the order of ranks. A subgroup whose calls are parts of another communicator's calls has
    /// that communicator's names of its ranks here.
    pub(crate) peers: Arc<[Peer]>,
    /// The communicator's name in errors; of a subgroup as above, that other communicator's.
    pub(crate) name: Arc<CommunicatorName>,
    pub(crate) transports: Vec<&'static str>,
    /// The number of streams of a link over TCP.
    pub(crate) streams_per_link: usize,
    /// True if every rank can map the memory of every other one.
    pub(crate) shares_memory: bool,
    /// The registered memory of this rank.
    pub(crate) registrations: Arc<RegistrationTable>,
    /// The messages between two ranks.
    pub(crate) messages: MessageEngine,
    /// The flight recorder of this communicator's calls.
    pub(crate) record: RecordWriter,
    /// The process of this rank.
    pub(crate) process: Process,
    pub(crate) speeds: SpeedsAreIn,
}

/// Where the measured speeds of a machine are remembered.
pub(crate) enum SpeedsAreIn {
    /// The memory of the process whose threads the ranks are.
    Process,
    /// A folder, if there is one; and the address of this rank for other ranks, if it has one.
    Folder(Option<PathBuf>, Option<IpAddr>),
}

impl RankInfo {
    /// The address of this rank for other ranks; none if it has no links over TCP.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.speeds {
            SpeedsAreIn::Folder(_, address) => *address,
            SpeedsAreIn::Process => None,
        }
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }
}
