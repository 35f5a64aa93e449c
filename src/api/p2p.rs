//! Point-to-point messages. Both ranks make their messages and collectives in one order, and pass
//! the same length and type.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verb::{argument_error, element_count};
use crate::element::{DataType, Element, ReduceOp};
use crate::engine::{CallMeta, linked_up_to};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::Message;

const SEND_RECV: &str = "send_recv";

impl Communicator {
    /// Sends `buf` to rank `to`, which calls [`Self::recv`] between the same collectives. The
    /// protocol is eager: the call returns when the link has taken all bytes, even before the other
    /// rank receives. A link takes what its slots hold or, over TCP, what the system's socket
    /// buffers hold. A longer message makes this rank wait for the receiver.
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
    /// If the peer is lost, calls something else or does not come before the timeout; if `to` is no
    /// other rank; or, without links between all pairs
    /// ([`Builder::all_pairs`](crate::Builder::all_pairs)), if there is no link to it.
    pub fn send<T: Element>(&mut self, buf: &[T], to: usize) -> Result<()> {
        self.send_bytes(cast_slice(buf), T::DTYPE, to)
    }

    /// As [`Self::send`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::send`]; and if `buf` is not whole elements.
    pub fn send_bytes(&mut self, buf: &[u8], dtype: DataType, to: usize) -> Result<()> {
        let to = self.peer("send", "to", to)?;
        let message = message(true, to, ("buf", buf.len()), dtype)?;
        self.exchange_messages("send", &[message], &Buffer::out_of_place(buf, &mut []))
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
        let from = self.peer("recv", "from", from)?;
        let message = message(false, from, ("buf", buf.len()), dtype)?;
        self.exchange_messages("recv", &[message], &Buffer::out_of_place(&[], buf))
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
        let (given, got) = (send.len(), recv.len());
        let (to, from) = if self.is_send_to_self((given, to), (got, from))? {
            (to as u32, from as u32)
        } else {
            (self.peer(SEND_RECV, "to", to)?, self.peer(SEND_RECV, "from", from)?)
        };
        let outgoing = message(true, to, ("send", given), dtype)?;
        let incoming = message(false, from, ("recv", got), dtype)?;
        self.exchange_messages(SEND_RECV, &[outgoing, incoming], &Buffer::out_of_place(send, recv))
    }

    /// True if this rank is both ends of a `send_recv`, which then must send as many bytes as it
    /// receives.
    pub(crate) fn is_send_to_self(
        &self,
        (given, to): (usize, usize),
        (got, from): (usize, usize),
    ) -> Result<bool> {
        let itself = to == self.rank() && from == to;
        if itself && given != got {
            let expected = format!("{given} bytes, as send: this rank sends to itself");
            return argument_error(SEND_RECV, "recv", format!("{got} bytes long"), expected);
        }
        Ok(itself)
    }

    /// Sends and receives messages. Messages in one direction between the same two ranks keep their
    /// order.
    pub(crate) fn exchange_messages(
        &mut self,
        name: &'static str,
        messages: &[Message],
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        // Messages reduce nothing, so any kernel will do.
        let Some(kernel) = Kernel::select(DataType::U8, ReduceOp::Max, self.size()) else {
            return argument_error(
                name,
                "size",
                self.size(),
                "a number of ranks that kernels support",
            );
        };
        let meta = CallMeta {
            name,
            kernel,
            request: None,
            parent_digest: 0,
            is_internal: true,
            is_uneven: false,
        };
        self.execute(&meta, buffer, |planner| planner.messages(messages))
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

    /// The number of a peer that there is a link to.
    pub(super) fn peer(
        &mut self,
        call: &'static str,
        argument: &'static str,
        peer: usize,
    ) -> Result<u32> {
        self.check_peer(call, argument, peer)?;
        let planner = &self.engine_on_this_thread(call)?.0.planner;
        if planner.is_linked(peer as u32) {
            return Ok(peer as u32);
        }
        let expected = format!(
            "a neighbour on the ring or a rank at a distance of a power of two: {}",
            linked_up_to(planner.ring().most_pairs())
        );
        argument_error(call, argument, peer, expected)
    }
}

/// The message that sends all of the input, or receives all of the output.
fn message(
    outgoing: bool,
    peer: u32,
    (argument, bytes): (&'static str, usize),
    dtype: DataType,
) -> Result<Message> {
    element_count(if outgoing { "send" } else { "recv" }, argument, bytes, dtype)?;
    Ok(Message { outgoing, peer, range: (0, bytes), dtype })
}
