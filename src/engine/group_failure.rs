//! The first failure of a communicator's subgroups.

use std::sync::{Arc, OnceLock};

use super::Engine;
use crate::error::cause::FailureCause;

/// First failure cause of the subgroups of a communicator: the goodbye reason with which a rank
/// leaves the communicator.
#[derive(Debug, Default)]
pub(crate) struct GroupFailure {
    first_cause: OnceLock<FailureCause>,
    /// The parent's failure, and for each rank of this subgroup the rank that it has in the parent.
    parent: Option<(Arc<Self>, Vec<usize>)>,
}

impl GroupFailure {
    /// The record of a subgroup whose ranks are `members` of `parent`.
    pub(crate) fn of(parent: &Arc<Self>, members: &[usize]) -> Arc<Self> {
        let parent = Some((Arc::clone(parent), members.to_vec()));
        Arc::new(Self { parent, ..Self::default() })
    }

    pub(crate) fn first_cause(&self) -> Option<FailureCause> {
        self.first_cause.get().copied()
    }

    /// Records a failure of this communicator for all its ancestors. The first failure counts.
    pub(crate) fn record(&self, cause: FailureCause) {
        if let Some((parent, members)) = &self.parent
            && let Some(in_parent) = cause.renumbered(|rank| members.get(rank).copied())
        {
            let in_parent = *parent.first_cause.get_or_init(|| in_parent);
            parent.record(in_parent);
        }
    }
}

impl Engine {
    /// Makes the first failure of a subgroup, or else the rank for which the latest message has
    /// waited in vain, the goodbye reason of this communicator, which is about to be dropped: other
    /// ranks may wait for this rank in one of its calls.
    pub(crate) fn announce_group_failure(&mut self) {
        let of_group = self.group_failure.first_cause.get().copied();
        if let Some(because) = of_group.or(self.stalled_message) {
            self.peers.set_goodbye_cause(because);
        }
    }
}
