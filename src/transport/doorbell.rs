//! A doorbell (RDMA's term): a counter of the system, eventfd(2), by which other ranks of the host
//! wake a rank that sleeps for several links at once. Sockets stand beside it in one poll.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::descriptor_passing::{pass, receive};
use super::poll;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result};
use crate::sync::Instant;

/// A doorbell of this rank, or the descriptor of another rank's.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new doorbell.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags);
        bell.map(|bell| Self(bell.into()))
            .map_err(|e| Error::io("making a doorbell", name_refused_call("eventfd2", e)))
    }

    /// Passes this rank's doorbell to the rank that errors call `peer`.
    pub(crate) fn pass(&self, stream: &impl AsRawFd, peer: &str) -> Result<()> {
        let fd = self.0.try_clone().map_err(|e| Error::io("duplicating a doorbell", e))?;
        pass(stream, fd, peer)
    }

    /// Receives the doorbell of the rank that errors call `peer`.
    pub(crate) fn receive(stream: &impl AsRawFd, peer: &str, until: Instant) -> Result<Self> {
        receive(stream, "doorbell", peer, until).map(Self)
    }

    /// Wakes the rank that sleeps at this doorbell, or keeps it from its next sleep.
    pub(crate) fn ring(&self) {
        // A write fails only if the counter is full, and a full one wakes as well.
        let _ = nix::unistd::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }

    /// Sleeps until the doorbell rings, one of these sockets can be read or written, or `limit` has
    /// passed; may return early. True if the doorbell has rung.
    pub(crate) fn sleep(&self, readable: &[RawFd], writable: &[RawFd], limit: Duration) -> bool {
        let own = [self.descriptor()];
        poll::sleep(limit, own.iter().chain(readable).copied(), writable);
        self.silence()
    }

    /// As [`Self::sleep`], beside other doorbells and sockets; the indices of those that are ready.
    pub(crate) fn sleep_beside(&self, others: &[RawFd], limit: Duration) -> Vec<usize> {
        let ready = poll::sleep_for_any(limit, self.descriptor(), others);
        self.silence();
        ready
    }

    /// Lets the next sleep last until the doorbell rings again.
    pub(crate) fn silence(&self) -> bool {
        // The read empties the counter; an empty one needs none.
        nix::unistd::read(self.0.as_fd(), &mut [0; 8]).is_ok()
    }

    /// The descriptor that another doorbell sleeps at beside its own.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_ends_the_sleep_even_if_it_came_before() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        bell.ring();
        let began = Instant::now();
        bell.sleep(&[], &[], Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30));
        let began = Instant::now();
        bell.sleep(&[], &[], Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(19), "two rings are one");
    }
}
