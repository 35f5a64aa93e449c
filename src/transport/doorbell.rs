//! A doorbell (RDMA's term) is the place where a rank sleeps for several links at once, until
//! another rank of the host rings its bell, a counter of the system (eventfd(2)). Sockets stand
//! beside it in one poll.
//!
//! A communicator and its subgroups share the bell of each process. No sleeper reads the counter,
//! because that would take the ring from the others: each waits for the bell's edges (epoll(7)).

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::descriptor_passing::{pass, receive};
use super::poll;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result};
use crate::sync::Instant;

/// The bell of this process, or the descriptor of another one's.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new bell.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags);
        bell.map(|bell| Self(bell.into()))
            .map_err(|e| Error::io("making a doorbell", name_refused_call("eventfd2", e)))
    }

    /// Passes this process's bell to the rank that errors call `peer`.
    pub(crate) fn pass(&self, stream: &impl AsRawFd, peer: &str) -> Result<()> {
        let fd = self.0.try_clone().map_err(|e| Error::io("duplicating a doorbell", e))?;
        pass(stream, fd, peer)
    }

    /// Receives the bell of the rank that errors call `peer`.
    pub(crate) fn receive(stream: &impl AsRawFd, peer: &str, until: Instant) -> Result<Self> {
        receive(stream, "doorbell", peer, until).map(Self)
    }

    /// Wakes all that sleep at this bell, or keeps them from their next sleep.
    pub(crate) fn ring(&self) {
        // A write fails only if the counter is full, after 2^64 rings.
        let _ = nix::unistd::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// The place where one communicator sleeps until the bell of its process rings.
#[derive(Debug)]
pub struct Doorbell {
    bell: Arc<Bell>,
    /// Made at the first sleep; `None` if the system refused it. Then the sleeper reads the bell
    /// itself, and other sleepers may miss a ring until their next look at their links.
    edges: OnceLock<Option<Epoll>>,
}

impl Doorbell {
    /// A doorbell at this bell, which is of this process.
    #[must_use]
    pub fn at(bell: Arc<Bell>) -> Self {
        Self { bell, edges: OnceLock::new() }
    }

    /// The bell, for this process's subgroups and for peers of this process.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Wakes the thread that sleeps here, or keeps it from its next sleep.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    fn edges(&self) -> Option<&Epoll> {
        let edges = || {
            let edges = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            edges.add(&self.bell.0, EpollEvent::new(flags, 0)).ok()?;
            Some(edges)
        };
        self.edges.get_or_init(edges).as_ref()
    }

    /// Sleeps until the bell rings, one of these sockets can be read or written, or `limit` has
    /// passed; may return early. True if the bell has rung.
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

    /// Lets the next sleep last until the bell rings again; true if it has rung.
    pub(crate) fn silence(&self) -> bool {
        match self.edges() {
            Some(edges) => {
                let mut events = [EpollEvent::empty()];
                edges.wait(&mut events, EpollTimeout::ZERO).is_ok_and(|count| count > 0)
            }
            // The read empties the counter; an empty one needs none.
            None => nix::unistd::read(self.bell.0.as_fd(), &mut [0; 8]).is_ok(),
        }
    }

    /// The descriptor that another doorbell sleeps at beside its own.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.edges().map_or(self.bell.0.as_raw_fd(), |edges| edges.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_ends_the_sleep_even_if_it_came_before() {
        let bell = Doorbell::at(Arc::new(Bell::new().unwrap()));
        bell.ring();
        bell.ring();
        let began = Instant::now();
        bell.sleep(&[], &[], Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30));
        let began = Instant::now();
        bell.sleep(&[], &[], Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(19), "two rings are one");
    }

    #[test]
    fn a_ring_reaches_every_sleeper_at_the_bell() {
        let bell = Arc::new(Bell::new().unwrap());
        let sleepers = [(); 3].map(|()| Doorbell::at(Arc::clone(&bell)));
        for round in 0..3 {
            bell.ring();
            for sleeper in &sleepers {
                assert!(sleeper.sleep(&[], &[], Duration::from_secs(60)), "round {round}");
            }
            // Each has taken the ring, and the next sleep lasts.
            for sleeper in &sleepers {
                assert!(!sleeper.sleep(&[], &[], Duration::from_millis(1)), "round {round}");
            }
        }
    }
}
