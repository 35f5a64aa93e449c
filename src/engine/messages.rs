//! Messages between two ranks as a call of the communicator, on the flight record beside its
//! collectives.

use std::mem::take;
use std::time::Duration;

use super::Engine;
use super::settings::Settings;
use crate::error::cause::FailureCause;
use crate::error::{Error, Result};
use crate::health::{CAUSE_WAIT, WaitTime};
use crate::messages::Transfer;
use crate::trace::Direction;

impl Engine {
    /// Sends and receives messages with this tag. The loss of a rank and an abort break the
    /// communicator; after that there are no more calls.
    pub(crate) fn exchange(
        &mut self,
        settings: &Settings,
        (name, tag): (&'static str, u32),
        transfers: &mut [Transfer<'_>],
    ) -> Result<()> {
        self.check_usable(name)?;
        if settings.is_dry_run {
            return Ok(());
        }
        let bytes = transfers.iter().map(Transfer::len).sum();
        self.rank_info.record.enter((name, false), None, self.sequence, bytes);
        if let Some(transfer) = transfers.iter().min_by_key(|transfer| transfer.is_sent()) {
            let toward = if transfer.is_sent() { Direction::To } else { Direction::From };
            self.rank_info.record.set_direction(toward, transfer.peer);
        }
        let _span = settings.tag.as_deref().map(|tag| {
            tracing::debug_span!("call", name, tag, rank = self.rank_info.rank, bytes).entered()
        });
        let (messages, mut requests) =
            (self.rank_info.messages.shared(), take(&mut self.message_requests));
        let (peers, sequence, timeout) = (&mut self.peers, self.sequence, settings.timeout);
        let (mut failed_since, mut has_waited) = (None, false);
        let mut observer = |peer, waited| {
            has_waited = true;
            peers.send_heartbeats_in_message(WaitTime { waited, timeout }, (sequence, peer));
            if peers.control_channels().unreachable_fault(peer).is_some() {
                return false;
            }
            // A rank that has failed makes no more calls; what it sent before may still come.
            let since = peers.has_failed(peer).then(|| *failed_since.get_or_insert(waited));
            since.is_none_or(|since| waited < since + CAUSE_WAIT)
        };
        let done = messages.exchange((name, tag), transfers, &mut requests, timeout, &mut observer);
        self.message_requests = requests;
        // After a timeout others may be about to ask what this rank has waited for.
        if has_waited && done.is_ok() {
            self.peers.local_detector().wait_for_message(None);
        }
        let done = done.map_err(|error| {
            let error = self.with_cause(error);
            self.at_this_call(error, settings)
        });
        // No collective can succeed any more, so all ranks are told why, as in a collective.
        let cause = match &done {
            Err(Error::Aborted { by, .. }) if by.rank == self.rank_info.rank => {
                Some(FailureCause::aborted(by.rank))
            }
            Err(Error::PeerLost { peer, .. }) => Some(FailureCause::lost(peer.rank)),
            _ => None,
        };
        let done = done.map_err(|error| match cause {
            Some(cause) => {
                self.announce_cause(self.rank_info.rank, cause, true, false);
                self.broken_by(error)
            }
            None => error,
        });
        // A rank may go on after such an error. If it leaves, others learn why.
        self.stalled_message = match &done {
            Err(Error::Stalled { peer, state, after, .. }) => {
                Some(FailureCause::stalled(peer.rank, *state, *after))
            }
            _ => None,
        };
        self.rank_info.record.leave(done.as_ref().err());
        done
    }

    /// The error with this call's number and the user's tag.
    fn at_this_call(&self, mut error: Error, settings: &Settings) -> Error {
        if let Error::Mismatch { at, .. }
        | Error::PeerLost { at, .. }
        | Error::Timeout { at, .. }
        | Error::Stalled { at, .. }
        | Error::Aborted { at, .. } = &mut error
        {
            let call = settings.parent_call.unwrap_or((at.operation, self.sequence));
            (at.operation, at.sequence) = call;
            at.tag = settings.tag.as_deref().map(Into::into);
        }
        error
    }

    /// The error with the first cause, as far as the failure detector knows it: the rank that is
    /// stuck, or because of which the peer has failed.
    fn with_cause(&mut self, error: Error) -> Error {
        match error {
            Error::Timeout { at, peer, after } => {
                let stalled = self.peers.stalled_behind(peer.rank, self.sequence, after);
                if let Some((rank, state)) = stalled {
                    let peer = Box::new(self.rank_info.peers[rank].clone());
                    return Error::Stalled { at, peer, state, after };
                }
                let last = self.peers.local_detector().end_of_messages(peer.rank);
                let peer = Box::new(self.rank_info.peers[last].clone());
                // The peer may have failed a moment ago, by its own timeout.
                let found = if self.peers.has_failed(last) {
                    self.lost(at, &peer, Duration::ZERO)
                } else {
                    Err(at)
                };
                found.unwrap_or_else(|at| Error::Timeout { at, peer, after })
            }
            Error::PeerLost { at, peer, evidence } => {
                self.lost(at, &peer, CAUSE_WAIT).unwrap_or_else(|at| {
                    self.with_launcher_status(Error::PeerLost { at, peer, evidence })
                })
            }
            // The peer gave the message up. If it has failed, it tells so once it knows the cause.
            Error::Aborted { at, by } if by.rank != self.rank_info.rank => {
                let found = self.lost(at, &by, 2 * CAUSE_WAIT);
                found.unwrap_or_else(|at| Error::Aborted { at, by })
            }
            error => error,
        }
    }
}
