//! Links: one-way FIFOs of slots between two ranks. The sender (`Tx`) reserves an empty slot and
//! commits it; the receiver (`Rx`) peeks at the oldest committed slot and releases it. On shared
//! memory no byte is copied between the two (zero copy). One conformance suite
//! (`tests/threads/links`) holds for every transport. A table in ARCHITECTURE.md lists the files
//! that a new transport touches.
//!
//! Capacity law, the flow control of a link: `commit` never waits for the peer. `Tx::ready` is true
//! while fewer than `capacity` slots are committed and not yet released (shared memory) or taken by
//! the system (TCP). Empty slots are the sender's credit; a sender without one waits
//! (back-pressure).

pub mod aead;
pub(crate) mod descriptor_passing;
mod doorbell;
mod fifo;
#[cfg(feature = "internals")]
pub mod fuzz;
mod linger;
mod link_set;
pub mod loopback;
#[cfg(feature = "cuda")]
mod peer_process;
mod poll;
pub mod shm;
pub mod tcp;

pub use crate::error::fault::{Fault, MismatchField};
pub use descriptor_passing::{recv_fd, send_fd};
pub use doorbell::{Bell, Doorbell};
pub(crate) use fifo::{FifoMemory, WORDS_ALIGN, slots_len, words_len};
pub use link_set::LinkSet;
#[cfg(feature = "cuda")]
pub(crate) use peer_process::PeerProcess;
pub use shm::{LinkPeer, LivenessStream};

use std::os::fd::{AsFd, RawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::memory::{Dst, Src};

/// The part of a slot's header that can be read before the slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekedHeader {
    /// As in [`Frame`].
    pub sequence: u64,
    /// As in [`Frame`].
    pub fingerprint: u64,
}

/// The content of a link's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkContent {
    /// Collective calls, in one direction.
    Calls = 1,
    /// Messages, in both directions.
    Messages = 2,
    /// No link, but the control channel beside all links of two processes.
    Control = 3,
}

impl LinkContent {
    /// The content with this number in messages.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Calls, Self::Messages, Self::Control].into_iter().find(|it| *it as u64 == number)
    }
}

/// The header of a slot. A receiver knows the header it expects and refuses every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of payload.
    pub len: u32,
    /// The number of the call on its communicator.
    pub sequence: u64,
    /// A digest of the call and its plan: collective, type, operation, count and root; the order of
    /// the ring, the slots, and the length of the chunk.
    pub fingerprint: u64,
}

impl Frame {
    /// Compares the expected header with a received one.
    ///
    /// # Errors
    /// [`Fault::Mismatch`] with the first field that differs.
    pub fn check(&self, found: &Self) -> Result<(), Fault> {
        if self == found {
            return Ok(());
        }
        let fields = [
            (MismatchField::Sequence, self.sequence, found.sequence),
            (MismatchField::Fingerprint, self.fingerprint, found.fingerprint),
            (MismatchField::Len, u64::from(self.len), u64::from(found.len)),
        ];
        match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            Some((field, ours, theirs)) => Err(Fault::Mismatch { field, ours, theirs }),
            None => Ok(()),
        }
    }
}

/// The receiving end.
pub trait Rx: Send {
    /// True if the next slot has arrived, with the header `expect`. Never blocks.
    ///
    /// # Errors
    /// If the slot has another header, or has not arrived and the peer is gone.
    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault>;

    /// The name of the transport: `threads`, `shm` or `tcp`.
    fn transport(&self) -> &'static str;

    /// True if every `ready` is a system call. Then `recv_into` saves a copy.
    fn is_syscall_backed(&self) -> bool {
        false
    }

    /// The stream to the peer's process, on shared memory between processes.
    fn liveness(&self) -> Option<&LivenessStream> {
        None
    }

    /// Says that this rank is about to sleep until its doorbell rings, or is awake again. Does
    /// nothing where sockets wake it.
    fn announce_sleep(&mut self, _asleep: bool) {}

    /// Adds the descriptors to poll for the next slot; none where a doorbell rings for it.
    fn incoming(&self, _fds: &mut Vec<RawFd>) {}

    /// The payload of the next slot. To be called only after `ready` returned true for the same
    /// header.
    ///
    /// # Panics
    /// If no slot is ready.
    fn peek(&self, len: usize) -> Src<'_>;

    /// As `peek`, the payload to read and the same memory to overwrite; `None` where the slot is
    /// not this rank's own memory. A reduction that only forwards its result then needs no memory
    /// for it.
    fn peek_mut(&mut self, _len: usize) -> Option<(Src<'_>, Dst<'_>)> {
        None
    }

    /// Receives the payload of the next slot into `out`, which is as long as `expect` says. To be
    /// called with the same arguments until it returns true, then `release`. Writes nothing before
    /// the header has been compared.
    ///
    /// # Errors
    /// As `ready`.
    fn recv_into(&mut self, expect: &Frame, out: Dst<'_>) -> Result<bool, Fault> {
        let here = self.ready(expect)?;
        if here {
            out.fill(self.peek(expect.len as usize));
        }
        Ok(here)
    }

    /// True if bytes of the next slot are here without a further system call.
    fn has_read_ahead(&self) -> bool {
        false
    }

    /// Takes over the payload that [`Self::recv_into`] has received in part: `out` is its memory,
    /// which must not be written any more. `ready` then goes on with the same header.
    fn take_over(&mut self, _out: Src<'_>) {}

    /// Returns the slot of the last `peek` to the sender.
    fn release(&mut self);

    /// The header of the next slot, if it has arrived. Never blocks or consumes a slot.
    fn peek_header(&mut self) -> Option<PeekedHeader>;

    /// Sleeps until `ready` may have changed, one of `outgoing` can take bytes, or `limit` has
    /// passed; may return early. To be called only after `ready` returned false.
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]);

    /// Checks that the peer is alive, which `ready` need not do. To be called now and then in a
    /// wait.
    ///
    /// # Errors
    /// If the peer is gone and every slot that it sent before has been received.
    fn check_alive(&mut self) -> Result<(), Fault>;
}

/// The sending end.
pub trait Tx: Send {
    /// The stream to the peer's process, on shared memory between processes.
    fn liveness(&self) -> Option<&LivenessStream> {
        None
    }

    /// As [`Rx::announce_sleep`], for an empty slot.
    fn announce_sleep(&mut self, _asleep: bool) {}

    /// Discards committed bytes that have not been sent.
    fn discard_unsent(&mut self) {}

    /// True if there is an empty slot. Never blocks.
    ///
    /// # Errors
    /// If the peer is gone.
    fn ready(&mut self) -> Result<bool, Fault>;

    /// Makes memory for slots of `len` bytes, and of fewer, or opens the streams of the link.
    /// [`Self::reserve`] or [`Self::commit`] does so too.
    ///
    /// # Errors
    /// [`Fault::NoMemory`].
    fn make_room(&mut self, _len: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// The first `len` bytes of the next empty slot. To be called only after `ready` returned true.
    ///
    /// # Errors
    /// [`Fault::NoMemory`].
    ///
    /// # Panics
    /// If there is no empty slot, or `len` exceeds it.
    fn reserve(&mut self, len: usize) -> Result<Dst<'_>, Fault>;

    /// Hands the reserved slot to the receiver, with the header `frame`. Never waits for the peer.
    ///
    /// # Errors
    /// If the peer is gone.
    fn commit(&mut self, frame: &Frame) -> Result<(), Fault>;

    /// Sends `payload` as the next slot. To be called only after `ready` returned true.
    ///
    /// # Errors
    /// As `commit`.
    fn send_from(&mut self, frame: &Frame, payload: Src<'_>) -> Result<(), Fault> {
        self.reserve(payload.len())?.fill(payload);
        self.commit(frame)
    }

    /// The name of the transport: `threads`, `shm` or `tcp`.
    fn transport(&self) -> &'static str;

    /// True if every `ready` is a system call and `commit` may leave bytes buffered, for `flush` to
    /// send. Then `send_from` saves a copy.
    fn is_syscall_backed(&self) -> bool {
        false
    }

    /// True if the peer has got all bytes that the system has taken, or need not have got them
    /// before the link closes.
    fn is_delivered(&self) -> bool {
        true
    }

    /// Says that the link, which is dropped next, has waited for its peer long enough.
    fn set_lingered(&mut self) {}

    /// Sends buffered bytes without waiting; true when none are left.
    ///
    /// # Errors
    /// If the peer is gone.
    fn flush(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    /// Bytes that the system has taken so far, on links whose bytes it takes.
    fn sent_bytes(&self) -> u64 {
        0
    }

    /// The descriptor to poll for writing while bytes are buffered; `None` without such bytes, and
    /// while no event tells when they can leave.
    fn outgoing(&self) -> Option<RawFd> {
        None
    }

    /// Sleeps until `ready` or `flush` may have changed, one of `outgoing` can take bytes, or
    /// `limit` has passed; may return early.
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]);

    /// Checks that the peer is alive, which `ready` need not do.
    ///
    /// # Errors
    /// If the peer is gone.
    fn check_alive(&mut self) -> Result<(), Fault>;
}

/// True if the other end of `stream` is closed: its owner closed it, or its process ended.
pub(crate) fn is_hung_up(stream: &impl AsFd) -> bool {
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    nix::poll::poll(&mut fds, PollTimeout::ZERO)
        .is_ok_and(|_| fds[0].revents().is_some_and(|events| events.intersects(gone)))
}
