//! Operations as callers of C describe them: addresses, a count of elements and a peer.

use core::ffi::{c_int, c_void};

use ringreduce::{Call, DataType, Error, Reduction, Verb};

/// An operation as its caller passes it. Counts, and the places of parts in place, are as in NCCL.
#[derive(Debug)]
pub struct RawCall {
    /// The collective or message; `peer` is its root or other end.
    pub verb: Verb,
    /// The data that this rank sends; not looked at if it sends nothing.
    pub sendbuff: *const c_void,
    /// The buffer in which this rank receives; not looked at if it receives nothing. A call is in
    /// place if both buffers are the same, or one of them is this rank's part of the other.
    pub recvbuff: *mut c_void,
    /// Elements: of the buffer, or of one rank's part of it.
    pub count: usize,
    /// The type of the elements.
    pub dtype: DataType,
    /// The reduction; any where nothing is reduced.
    pub op: Reduction,
    /// The root, or the other end of a message; 0 where neither is.
    pub peer: c_int,
    /// The stream of buffers on a device.
    pub stream: *mut c_void,
}

/// A checked operation of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub(crate) call: Call<'static>,
    /// Addresses; 0 for a buffer that this rank does not use.
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// Lengths in bytes.
    pub(crate) send_len: usize,
    pub(crate) recv_len: usize,
    /// The address of the stream.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "streams are of devices"))]
    pub(crate) stream: usize,
    pub(crate) rank: usize,
}

#[cold]
fn wrong<T>(
    call: &Call<'_>,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T, Error> {
    Err(Error::argument(call.name(), argument, given.to_string(), expected.to_string()))
}

impl RawCall {
    /// Checks the operation of a rank among `size` ranks, then passes it to `submit`: by reference,
    /// because moving an operation costs more than the checks.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first argument that is wrong; and the errors of `submit`.
    #[inline]
    pub fn check_then<R, E: From<Error>>(
        &self,
        (rank, size): (usize, usize),
        submit: impl FnOnce(&Operation) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut call = Call::of(self.verb, self.dtype).by(self.op);
        let peer = self.peer(&call, size)?;
        call.verb = self.verb.with_peer(peer);
        let (send_len, recv_len) = self.lengths(&call, (rank, size))?;
        let used = |start, bytes| if bytes == 0 { 0 } else { start };
        let operation = Operation {
            call,
            send: used(self.sendbuff as usize, send_len),
            recv: used(self.recvbuff as usize, recv_len),
            send_len,
            recv_len,
            stream: self.stream as usize,
            rank,
        };
        operation.check_overlap()?;
        submit(&operation)
    }

    fn peer(&self, call: &Call<'_>, size: usize) -> Result<usize, Error> {
        match usize::try_from(self.peer) {
            Ok(peer) if peer < size => Ok(peer),
            _ => {
                let argument = if call.verb.collective().is_some() { "root" } else { "peer" };
                wrong(call, argument, self.peer, format!("a rank, 0 to {}", size - 1))
            }
        }
    }

    /// The bytes that this rank sends and receives.
    fn lengths(
        &self,
        call: &Call<'_>,
        (rank, size): (usize, usize),
    ) -> Result<(usize, usize), Error> {
        let too_long = || {
            let expected = format!("{} of {size} ranks in the address space", self.dtype);
            wrong(call, "count", self.count, expected)
        };
        let part = self.count.checked_mul(self.dtype.size());
        let Some(part) = part.filter(|&bytes| bytes <= isize::MAX as usize / size) else {
            return too_long();
        };
        let parts = call.verb.sides(rank as u32, size as u32);
        let [send_len, recv_len] = parts.map(|parts| parts * part);
        let (send, recv) = (self.sendbuff as usize, self.recvbuff as usize);
        for (argument, start, bytes) in [("sendbuff", send, send_len), ("recvbuff", recv, recv_len)]
        {
            if bytes > 0 && start == 0 {
                return wrong(call, argument, "NULL", format!("{bytes} bytes"));
            }
            if start.checked_add(bytes).is_none() {
                return too_long();
            }
        }
        Ok((send_len, recv_len))
    }
}

impl Operation {
    /// True for a message.
    #[must_use]
    pub fn is_message(&self) -> bool {
        self.call.verb.collective().is_none()
    }

    /// True if the operation is in place by NCCL's rule for it.
    pub(crate) fn is_in_place(&self) -> bool {
        let Self { send, recv, send_len, recv_len, rank, .. } = *self;
        if send_len == 0 || recv_len == 0 {
            return false;
        }
        // Buffers of one length are the same; else the shorter one is this rank's part.
        let (whole, part, part_len) =
            if send_len > recv_len { (send, recv, recv_len) } else { (recv, send, send_len) };
        let is_part = send_len != recv_len;
        part == whole + if is_part { rank * part_len } else { 0 }
    }

    fn check_overlap(&self) -> Result<(), Error> {
        let Self { send, recv, send_len, recv_len, .. } = *self;
        let is_apart =
            send_len == 0 || recv_len == 0 || send + send_len <= recv || recv + recv_len <= send;
        if is_apart || self.is_in_place() {
            return Ok(());
        }
        let expected = "memory of its own, or the place in sendbuff (or the other way round) that \
                        the header names for calls in place";
        wrong(&self.call, "recvbuff", "memory that overlaps sendbuff", expected)
    }
}
