//! The loss of a rank, as ranks report it: which end of a broken connection a rank names, and what
//! it tells others. A report names both ends, the lost rank and the rank that has seen the loss.
//! Law: no rank names a third one. A rank that sees the end at its own host alive names the other
//! end. Rank 1 of host A loses rank 7 of host B:
//!
//! ```text
//! rank 1 at A, which saw it        names 7, tells "7 is lost, found by 1"
//! rank 5 at B, told by rank 1      names 1, tells "1 is lost, found by 7"
//! rank 0 at A, told by host B      names 7, tells "7 is lost, found by 1"
//! ```

use super::Peers;
use crate::error::cause::{FailureCause, FailureReason};
use crate::health::control_message::Failure;
use crate::transport::Fault;

impl Peers {
    /// The cause by what this rank sees itself, if another host reports the loss of a rank that is
    /// on this host. Such a rank tells its own failure; if it lives, the host that cannot reach it
    /// is the one that is cut off.
    pub(super) fn unless_alive(&self, (by, fault): (usize, Fault)) -> (usize, Fault) {
        let local = &self.local_detector;
        // Another rank than the reporting one may have seen the loss.
        let (lost, finder) = match &fault {
            Fault::GaveUp(cause) => match cause.reason {
                FailureReason::Lost { found_by } => (cause.culprit, found_by.unwrap_or(by)),
                _ => return (by, fault),
            },
            _ => return (by, fault),
        };
        let is_far = finder < local.size && finder != local.me && !local.has_page_of(finder);
        if lost == by || !is_far || !local.has_entry_of(lost) || local.has_ended(lost) {
            return (by, fault);
        }
        match local.failure(lost) {
            Some(own) => own.fault(lost, local.me).unwrap_or((by, fault)),
            None => {
                let evidence = format!("it gave up on rank {lost}, which lives on this host");
                (finder, Fault::Lost(evidence))
            }
        }
    }

    /// `cause` with the rank that has seen the loss of its culprit: this rank, if no report tells
    /// of another. Ranks of the culprit's own host, where it may live, must know who cannot reach
    /// it.
    pub(crate) fn with_finder(&self, mut cause: FailureCause) -> FailureCause {
        let me = self.local_detector.me;
        if let FailureReason::Lost { found_by } = &mut cause.reason
            && cause.culprit != me
        {
            *found_by = self.finder_of_loss(cause.culprit).or(*found_by).or(Some(me));
        }
        cause
    }

    /// The rank that has seen the loss of `lost` itself, as far as other ranks report it; or else a
    /// rank that `lost` has lost, since then their connection has broken.
    ///
    /// A host may hear of the other host before it hears of its own rank: the connection may be a
    /// subgroup's, and ranks outside hear of its failure when its members leave, in any order.
    fn finder_of_loss(&self, lost: usize) -> Option<usize> {
        let losses = || {
            let near = self.local_detector.failures().map(|(rank, failure)| (rank, failure.cause));
            let all = near.chain(self.control_channels.causes());
            let known = all.filter(|(_, cause)| cause.is_within(self.local_detector.size));
            known.filter_map(|(rank, cause)| match cause.reason {
                FailureReason::Lost { found_by } => Some((rank, cause.culprit, found_by)),
                _ => None,
            })
        };
        let finder =
            losses().find_map(|(_, culprit, found_by)| found_by.filter(|_| culprit == lost));
        let is_found_by = |&(rank, culprit, found_by): &(usize, usize, Option<usize>)| {
            culprit != lost && found_by.unwrap_or(rank) == lost
        };
        finder.or_else(|| losses().find(is_found_by).map(|(_, culprit, _)| culprit))
    }

    /// The rank that has lost this one, and whether others have told of it; a rank that tells so
    /// itself comes first.
    pub(super) fn accuser(&self) -> Option<(bool, usize)> {
        let (me, size) = (self.local_detector.me, self.local_detector.size);
        let all = self.local_detector.failures().chain(self.control_channels.failures());
        let accusers = all.filter(|(_, failure)| failure.cause.culprit == me);
        let finder = |(rank, Failure { cause, first_hand }): (usize, Failure)| {
            let found_by = match cause.reason {
                FailureReason::Lost { found_by } => found_by,
                _ => None,
            };
            (!first_hand, found_by.filter(|&it| it < size && it != me).unwrap_or(rank))
        };
        accusers.map(finder).min()
    }
}

#[cfg(test)]
mod tests;
