//! The engine of a communicator makes one call: from plan to bytes on links or in shared memory.
//! The communicator owns its engine, and lends it to the worker thread while operations are
//! pending.
//! Law: a call that succeeds allocates nothing, once an equal call was made, and slots get memory
//! only in the first call of a size class.

mod call;
mod conversion;
mod executor;
pub(crate) mod failure;
pub(crate) mod group_failure;
mod kernel;
mod losses;
mod make;
pub(crate) mod membership_driver;
mod messages;
mod peer_reads;
mod piecewise;
mod rank_info;
pub(crate) mod recovery_frames;
pub(crate) mod registry;
pub(crate) mod settings;
mod undo_copy;
mod uniform;
mod walk;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::error::Error;
use crate::error::cause::FailureCause;
use crate::health::Peers;
use crate::memory::{Pieces, Scratch, last_level_cache};
use crate::messages::Waiting;
use crate::plan::Planner;
use crate::sync::Backoff;
pub(crate) use call::{CheckedCall, PlanBy, linked_up_to};
pub use conversion::wire_error;
pub(crate) use executor::Executor;
use group_failure::GroupFailure;
use kernel::LastKernel;
pub(crate) use rank_info::{RankInfo, SpeedsAreIn};
use registry::Registry;
use uniform::AllOrNone;

/// A rank's facts, links and planner, and the memory that calls use again.
pub(super) struct Engine {
    pub(super) rank_info: Arc<RankInfo>,
    pub(super) planner: Planner,
    pub(super) peers: Peers,
    pub(super) registry: Registry,
    pub(super) backoff: Backoff,
    pub(super) last_kernel: LastKernel,
    /// Memory of schedules for data on its way, and of inputs that peers can't read in place.
    pub(super) scratch: Scratch,
    /// Memory of calls that are made in pieces.
    pub(super) piece_memory: Scratch,
    /// A copy of the bytes that a call in place overwrites, if the call must be safe to retry.
    pub(super) undo_copy: Scratch,
    /// Memory for the list of buffers of an `all_reduce_many`; empty between two calls.
    pub(super) buffer_list: Pieces<'static>,
    /// Memory for the requests of a call of messages; empty between two calls.
    pub(super) message_requests: Vec<Waiting>,
    /// The rank for which the latest message has waited in vain.
    pub(super) stalled_message: Option<FailureCause>,
    /// Bytes of the last-level cache. Larger results are stored past it.
    pub(super) cache_bytes: usize,
    pub(super) abort: Arc<AtomicBool>,
    /// Collectives made so far.
    pub(super) sequence: u64,
    /// The first failure, which every later call reports.
    pub(super) broken: Arc<OnceLock<Error>>,
    /// State of the agreement by which all ranks end a failed call alike.
    pub(super) all_or_none: AllOrNone,
    /// The failure cause that this rank sends as its goodbye, if a subgroup has failed.
    pub(super) group_failure: Arc<GroupFailure>,
}

/// The bit that the numbers of the probe's calls have, and no others. The two highest bits of a
/// number say which kind of call it is, for links too.
pub(super) const PROBE_SEQUENCE_BIT: u64 = 1 << 62;

impl Engine {
    pub(super) fn new(
        rank_info: Arc<RankInfo>,
        planner: Planner,
        peers: Peers,
        backoff: Backoff,
        abort: Arc<AtomicBool>,
    ) -> Self {
        Self {
            registry: Registry::of(&rank_info.registrations),
            rank_info,
            planner,
            peers,
            backoff,
            last_kernel: LastKernel::default(),
            scratch: Scratch::default(),
            piece_memory: Scratch::default(),
            undo_copy: Scratch::default(),
            buffer_list: Pieces::default(),
            message_requests: Vec::new(),
            stalled_message: None,
            cache_bytes: last_level_cache(),
            abort,
            sequence: 0,
            broken: Arc::default(),
            all_or_none: AllOrNone::default(),
            group_failure: Arc::default(),
        }
    }
}

impl Drop for Engine {
    /// Takes leave of the survivors of a failure, so that they need not wait for this rank's vote.
    fn drop(&mut self) {
        if let Some(mut driver) = self.all_or_none.driver.take() {
            driver.leave(&mut self.peers);
        }
    }
}
