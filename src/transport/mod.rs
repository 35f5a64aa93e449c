//! Links: one-way FIFOs of slots between two ranks. `Tx` lends an empty slot and commits it, `Rx`
//! lends the oldest committed one and releases it; nothing is copied between the two on shared
//! memory. May touch: memory, partition, sync, OS crates. One conformance suite
//! (`tests/threads/links`) holds for every implementation.
//!
//! The capacity law: `commit` never waits for the peer, whatever it does; `ready` of a `Tx` is
//! true while fewer than `capacity` slots are committed and not yet released (shared memory) or
//! handed to the network (TCP).

pub mod aead;
pub(crate) mod descriptor_passing;
#[cfg(any(test, feature = "internals"))]
pub mod fault_injection;
mod fifo;
#[cfg(fuzzing)]
pub mod fuzz;
mod link_set;
#[cfg(any(test, feature = "internals"))]
pub mod link_trace;
pub mod loopback;
mod poll;
pub mod shm;
mod store_policy;
pub mod tcp;

pub use crate::error::fault::Fault;
pub use descriptor_passing::{recv_fd, send_fd};
pub use link_set::LinkSet;

use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::memory::{Dst, Src};

/// What every slot and every frame on a wire says of its payload. A receiver knows what it expects
/// and refuses everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of payload.
    pub len: u32,
    /// The number of the call on its communicator.
    pub sequence: u64,
    /// A digest of what is called, and how: collective, type, operation, count, root; the ring's
    /// order, the slots, and how long the chunk is.
    pub fingerprint: u64,
}

/// In the number of a message between two, which is that of the last call of all: no slot of a call
/// that all ranks make has it.
pub(crate) const MESSAGE: u64 = 1 << 63;

impl Frame {
    /// Is `found` the frame that `self` expects?
    ///
    /// # Errors
    /// Names the first field that differs.
    pub fn check(&self, found: &Self) -> Result<(), Fault> {
        if self == found {
            return Ok(());
        }
        let fields = [
            ("sequence", self.sequence, found.sequence),
            ("fingerprint", self.fingerprint, found.fingerprint),
            ("len", u64::from(self.len), u64::from(found.len)),
        ];
        match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            Some((field, ours, theirs)) => Err(Fault::Mismatch { field, ours, theirs }),
            None => Ok(()),
        }
    }
}

/// The receiving end.
pub trait Rx: Send {
    /// Is the next slot here? It must be as `expect` says. Never blocks.
    ///
    /// # Errors
    /// If the peer is gone and the slot is not here, or if it is another one.
    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault>;

    /// What it runs over: `threads`, `shm` or `tcp`.
    fn transport(&self) -> &'static str;

    /// Is every look (`ready`) a system call? Then `land` saves a copy.
    fn is_dear(&self) -> bool {
        false
    }

    /// The stream that ends with the peer's process, if there is one; descriptors can go over it.
    fn life(&self) -> Option<&UnixStream> {
        None
    }

    /// How many slots have come and were taken, where one that was sent may be on its way.
    fn taken(&self) -> Option<u64> {
        None
    }

    /// The next slot's payload; only after `ready` said true for the same frame.
    ///
    /// # Panics
    /// If there is none.
    fn peek(&self, len: usize) -> Src<'_>;

    /// As `ready`, and the payload goes to `out`, as long as `expect` says; call it with the same
    /// arguments until it says true, then `release`. Nothing is written before the frame was found
    /// to be the expected one.
    ///
    /// # Errors
    /// As `ready`.
    fn land(&mut self, expect: &Frame, out: Dst<'_>) -> Result<bool, Fault> {
        let here = self.ready(expect)?;
        if here {
            out.fill(self.peek(expect.len as usize));
        }
        Ok(here)
    }

    /// Gives the slot lent by `peek` back to the sender.
    fn release(&mut self);

    /// Sequence and fingerprint of the next slot, if it is here. Never blocks, takes nothing.
    fn glimpse(&mut self) -> Option<(u64, u64)>;

    /// Sleeps until `ready` may have changed, or `limit` has passed, or one of `outgoing` can take
    /// bytes; may return early. Called only after `ready` said false.
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]);

    /// Looks for the peer's death, which `ready` need not notice by itself. Called now and then
    /// while waiting.
    ///
    /// # Errors
    /// If the peer is gone and nothing it sent before is left.
    fn check_alive(&mut self) -> Result<(), Fault>;
}

/// The sending end.
pub trait Tx: Send {
    /// The stream that ends with the peer's process, if there is one; descriptors can go over it.
    fn life(&self) -> Option<&UnixStream> {
        None
    }

    /// How many slots were committed, where they may be on their way.
    fn sent(&self) -> u64 {
        0
    }

    /// What was committed and has not gone need not go any more.
    fn forsake(&mut self) {}

    /// Is there an empty slot? Never blocks.
    ///
    /// # Errors
    /// If the peer is gone.
    fn ready(&mut self) -> Result<bool, Fault>;

    /// The next empty slot, `len` bytes of it; only after `ready` said true.
    ///
    /// # Panics
    /// If there is none, or `len` exceeds it.
    fn reserve(&mut self, len: usize) -> Dst<'_>;

    /// Hands over the slot lent by `reserve`, described by `frame`. Never waits for the peer.
    ///
    /// # Errors
    /// If the peer is gone.
    fn commit(&mut self, frame: &Frame) -> Result<(), Fault>;

    /// Fills the next empty slot with `payload` and hands it over; only after `ready` said true.
    ///
    /// # Errors
    /// As `commit`.
    fn give(&mut self, frame: &Frame, payload: Src<'_>) -> Result<(), Fault> {
        self.reserve(payload.len()).fill(payload);
        self.commit(frame)
    }

    /// What it runs over: `threads`, `shm` or `tcp`.
    fn transport(&self) -> &'static str;

    /// Is every look (`ready`) a system call, and may bytes stay behind after `commit`, to be moved
    /// on by `flush`? Then `give` saves a copy.
    fn is_dear(&self) -> bool {
        false
    }

    /// Moves committed bytes on, as far as goes without waiting; true when none are left.
    ///
    /// # Errors
    /// If the peer is gone.
    fn flush(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    /// The descriptor to poll for writing while `flush` says false; `None` if it never does.
    fn outgoing(&self) -> Option<RawFd> {
        None
    }

    /// Sleeps until `ready` (or `flush`) may have changed, or `limit` has passed, or one of
    /// `outgoing` can take bytes; may return early.
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]);

    /// Looks for the peer's death, which `ready` need not notice by itself.
    ///
    /// # Errors
    /// If the peer is gone.
    fn check_alive(&mut self) -> Result<(), Fault>;
}

/// Has the other end of `stream` been closed, by its owner or by its death?
pub(crate) fn hung_up(stream: &UnixStream) -> bool {
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    nix::poll::poll(&mut fds, PollTimeout::ZERO)
        .is_ok_and(|_| fds[0].revents().is_some_and(|events| events.intersects(gone)))
}
