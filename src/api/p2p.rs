//! Messages between two ranks as calls of the communicator: those of its messenger with tag 0, made
//! by the thread that has the communicator, on the flight record as other calls are.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::collective::check_message;
use crate::element::{DataType, Element};
use crate::engine::linked_up_to;
use crate::error::{Result, argument_error};
use crate::messages::{Bytes, Transfer};

const SEND_RECV: &str = "send_recv";
/// The tag of the messages of a communicator's own calls.
pub(crate) const TAG: u32 = 0;

/// A message of a `send_recv` as this rank sees it: its length, and the rank at its other end.
#[derive(Clone, Copy)]
pub(crate) struct MessageEnd {
    pub(crate) bytes: usize,
    pub(crate) peer: usize,
}

impl Communicator {
    /// Sends `buf` to rank `to`, which calls [`Self::recv`]: as [`Messenger::send`] with tag 0. A
    /// short message may be sent before its receive (eager protocol), a longer one waits for it
    /// (rendezvous). Both ends pass the same length and type.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// let ranks = Communicator::local(2)?;
    /// std::thread::scope(|scope| {
    ///     for mut comm in ranks {
    ///         scope.spawn(move || match comm.rank() {
    ///             0 => comm.send(&[42], 1),
    ///             _ => comm.recv(&mut [0], 0),
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the peer is lost or does not come before the timeout; if `to` is no other rank; or,
    /// without links between all pairs ([`Builder::all_pairs`](crate::Builder::all_pairs)), if
    /// there is no link to it. The loss of a rank breaks the communicator, no other failure does.
    ///
    /// [`Messenger::send`]: crate::Messenger::send
    pub fn send<T: Element>(&mut self, buf: &[T], to: usize) -> Result<()> {
        self.send_bytes(cast_slice(buf), T::DTYPE, to)
    }

    /// As [`Self::send`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::send`]; and if `buf` is not whole elements.
    pub fn send_bytes(&mut self, buf: &[u8], dtype: DataType, to: usize) -> Result<()> {
        self.check_linked_peer("send", "to", to)?;
        check_message("send", "buf", buf.len(), dtype)?;
        let transfer = Transfer { bytes: Bytes::Sent(buf), dtype, peer: to };
        self.exchange(("send", TAG), &mut [transfer])
    }

    /// Receives what rank `from` sends by [`Self::send`], which must be as long as `buf`.
    ///
    /// # Errors
    /// As [`Self::send`]; and if the sender's length or type is another one.
    pub fn recv<T: Element>(&mut self, buf: &mut [T], from: usize) -> Result<()> {
        self.recv_bytes(cast_slice_mut(buf), T::DTYPE, from)
    }

    /// As [`Self::recv`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::recv`]; and if `buf` is not whole elements.
    pub fn recv_bytes(&mut self, buf: &mut [u8], dtype: DataType, from: usize) -> Result<()> {
        self.check_linked_peer("recv", "from", from)?;
        check_message("recv", "buf", buf.len(), dtype)?;
        let transfer = Transfer { bytes: Bytes::Received(buf), dtype, peer: from };
        self.exchange(("recv", TAG), &mut [transfer])
    }

    /// Sends and receives at once, so that ranks can do so in a circle. `to` and `from` may be the
    /// same rank, and may both be this one. The other side may be a [`Self::send`], a
    /// [`Self::recv`] or a `send_recv`.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (rank, size) = (comm.rank(), comm.size());
    /// let mut theirs = [0];
    /// comm.send_recv(&[rank as u32], (rank + 1) % size, &mut theirs, (rank + size - 1) % size)?;
    /// assert_eq!(theirs[0] as usize, (rank + size - 1) % size);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn send_recv<T: Element>(
        &mut self,
        send: &[T],
        to: usize,
        recv: &mut [T],
        from: usize,
    ) -> Result<()> {
        self.send_recv_bytes(cast_slice(send), to, cast_slice_mut(recv), from, T::DTYPE)
    }

    /// As [`Self::send_recv`], with the type known at run time; the buffers may have any alignment.
    ///
    /// # Errors
    /// As [`Self::send_recv`]; and if a buffer is not whole elements.
    pub fn send_recv_bytes(
        &mut self,
        send: &[u8],
        to: usize,
        recv: &mut [u8],
        from: usize,
        dtype: DataType,
    ) -> Result<()> {
        let sent = MessageEnd { bytes: send.len(), peer: to };
        let received = MessageEnd { bytes: recv.len(), peer: from };
        if !self.is_send_to_self(sent, received)? {
            self.check_linked_peer(SEND_RECV, "to", to)?;
            self.check_linked_peer(SEND_RECV, "from", from)?;
        }
        check_message(SEND_RECV, "send", send.len(), dtype)?;
        check_message(SEND_RECV, "recv", recv.len(), dtype)?;
        let sent = Transfer { bytes: Bytes::Sent(send), dtype, peer: to };
        let received = Transfer { bytes: Bytes::Received(recv), dtype, peer: from };
        self.exchange((SEND_RECV, TAG), &mut [sent, received])
    }

    /// True if this rank is both ends of a `send_recv`, which then must send as many bytes as it
    /// receives.
    pub(crate) fn is_send_to_self(&self, sent: MessageEnd, received: MessageEnd) -> Result<bool> {
        let itself = sent.peer == self.rank() && received.peer == sent.peer;
        if itself && sent.bytes != received.bytes {
            let expected = format!("{} bytes, as send: this rank sends to itself", sent.bytes);
            let given = format!("{} bytes long", received.bytes);
            return argument_error(SEND_RECV, "recv", given, expected);
        }
        Ok(itself)
    }

    /// Sends and receives messages with this tag, as one call of the communicator.
    pub(crate) fn exchange(
        &mut self,
        (name, tag): (&'static str, u32),
        transfers: &mut [Transfer<'_>],
    ) -> Result<()> {
        let (engine, settings) = self.engine_on_this_thread(name)?;
        engine.exchange(settings, (name, tag), transfers)
    }

    /// Refuses a peer that is no rank, or this rank itself.
    pub(crate) fn check_peer(
        &self,
        call: &'static str,
        argument: &'static str,
        peer: usize,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        if peer < size && peer != rank {
            return Ok(());
        }
        let expected = format!("a rank below the size, {size}, and not this one, {rank}");
        argument_error(call, argument, peer, expected)
    }

    /// Refuses a peer that there is no link to.
    pub(super) fn check_linked_peer(
        &mut self,
        call: &'static str,
        argument: &'static str,
        peer: usize,
    ) -> Result<()> {
        self.check_peer(call, argument, peer)?;
        let planner = &self.engine_on_this_thread(call)?.0.planner;
        if planner.is_linked(peer as u32) {
            return Ok(());
        }
        let expected = format!(
            "a neighbour on the ring or a rank at a distance of a power of two: {}",
            linked_up_to(planner.ring().most_pairs())
        );
        argument_error(call, argument, peer, expected)
    }
}
