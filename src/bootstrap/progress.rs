//! Progress of a rank's start-up, as its launcher reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Progress of a rank, as its requests to the store tell.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

/// A stage of start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum StartupStage {
    /// The rank has not yet spoken to the store.
    Silent,
    /// The rank is in the rendezvous, or waits in the join queue.
    Connecting,
    /// The rank has links to the others. It reports this before its program can make a call;
    /// [`Server::process_pending`] waits until such reports are processed.
    ///
    /// [`Server::process_pending`]: super::kv::server::Server::process_pending
    Member,
}

impl Progress {
    /// The present stage.
    #[must_use]
    pub fn stage(&self) -> StartupStage {
        match self.0.load(Ordering::Acquire) {
            0 => StartupStage::Silent,
            1 => StartupStage::Connecting,
            _ => StartupStage::Member,
        }
    }

    /// Sets the stage. A rank that starts another rendezvous goes back.
    pub(super) fn set(&self, stage: StartupStage) {
        self.0.store(stage as u8, Ordering::Release);
    }
}
