//! How far a rank is, for whoever has started it. May touch: nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far a rank is, by what it has said to the store.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

/// How far a rank can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// It has said nothing: nobody knows of it.
    Silent,
    /// It meets the others, or waits to be let in.
    Meets,
    /// It has links to the others. It says so before its program can make a call; [`Server::hear`]
    /// waits until that is known.
    ///
    /// [`Server::hear`]: super::kv::server::Server::hear
    Member,
}

impl Progress {
    /// How far is it?
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.0.load(Ordering::Acquire) {
            0 => Stage::Silent,
            1 => Stage::Meets,
            _ => Stage::Member,
        }
    }

    /// It is so far: each time that it meets others anew.
    pub(super) fn is(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Release);
    }
}
