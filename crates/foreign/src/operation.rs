//! Operations as callers of C describe them: addresses, a count of elements and a peer.

use core::ffi::{c_int, c_void};

use ringreduce::{DataType, Error, Reduction};

/// The collectives and messages, whose counts and places are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `count` elements each.
    AllReduce,
    /// `count` elements each; the result is the root's.
    Reduce,
    /// `count` elements of the result at each rank; size times as many are sent.
    ReduceScatter,
    /// `count` elements of the root.
    Broadcast,
    /// `count` elements of each rank; size times as many are received.
    AllGather,
    /// `count` elements from each rank to each.
    AllToAll,
    /// `count` elements of each rank, to the root.
    Gather,
    /// `count` elements to each rank, from the root.
    Scatter,
    /// `count` elements each; rank r has the result over ranks 0 to r.
    Scan,
    /// `count` elements each; rank r has the result over the ranks below r.
    Exscan,
    /// `count` elements to the peer.
    Send,
    /// `count` elements from the peer.
    Recv,
}

impl Verb {
    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }

    /// The argument that names another rank.
    const fn peer(self) -> &'static str {
        if matches!(self, Self::Send | Self::Recv) { "peer" } else { "root" }
    }
}

/// An operation as its caller passes it.
#[derive(Debug)]
pub struct Asked {
    /// The call.
    pub verb: Verb,
    /// What this rank sends; not looked at if it sends nothing.
    pub sendbuff: *const c_void,
    /// What this rank receives; not looked at if it receives nothing. A call is in place if both
    /// are one, or one is this rank's part of the other.
    pub recvbuff: *mut c_void,
    /// Elements, as the verb counts them.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// The reduction; any where nothing is reduced.
    pub by: Reduction,
    /// The root, or the other end of a message; 0 where neither is.
    pub peer: c_int,
    /// The stream of buffers on a device.
    pub stream: *mut c_void,
}

/// A checked operation of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub(crate) verb: Verb,
    pub(crate) by: Reduction,
    pub(crate) peer: usize,
    /// Addresses; 0 for a buffer that this rank does not use.
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// Lengths in bytes.
    pub(crate) send_len: usize,
    pub(crate) recv_len: usize,
    pub(crate) dtype: DataType,
    /// The address of the stream.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "streams are of devices"))]
    pub(crate) stream: usize,
    pub(crate) rank: usize,
}

#[cold]
fn wrong<T>(
    verb: Verb,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T, Error> {
    Err(Error::argument(verb.name(), argument, given.to_string(), expected.to_string()))
}

impl Asked {
    /// Passes the operation on, if this rank can carry it out. It is made where it stays: moving it
    /// costs more than the checks.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first argument that is wrong; and the errors of `submit`.
    #[inline]
    pub fn check<R, E: From<Error>>(
        &self,
        (rank, size): (usize, usize),
        submit: impl FnOnce(&Operation) -> Result<R, E>,
    ) -> Result<R, E> {
        let peer = self.peer(size)?;
        let (send_len, recv_len) = self.lengths(peer, (rank, size))?;
        let used = |start, bytes| if bytes == 0 { 0 } else { start };
        let operation = Operation {
            verb: self.verb,
            by: self.by,
            peer,
            send: used(self.sendbuff as usize, send_len),
            recv: used(self.recvbuff as usize, recv_len),
            send_len,
            recv_len,
            dtype: self.dtype,
            stream: self.stream as usize,
            rank,
        };
        operation.check_overlap()?;
        submit(&operation)
    }

    fn peer(&self, size: usize) -> Result<usize, Error> {
        match usize::try_from(self.peer) {
            Ok(peer) if peer < size => Ok(peer),
            _ => {
                wrong(self.verb, self.verb.peer(), self.peer, format!("a rank, 0 to {}", size - 1))
            }
        }
    }

    /// The bytes that this rank sends and receives.
    fn lengths(&self, peer: usize, (rank, size): (usize, usize)) -> Result<(usize, usize), Error> {
        let too_long = || {
            let expected = format!("{} of {size} ranks in the address space", self.dtype);
            wrong(self.verb, "count", self.count, expected)
        };
        let part = self.count.checked_mul(self.dtype.size());
        let Some(part) = part.filter(|&bytes| bytes <= isize::MAX as usize / size) else {
            return too_long();
        };
        let whole = part * size;
        let at_root = |bytes| if peer == rank { bytes } else { 0 };
        let (send_len, recv_len) = match self.verb {
            Verb::AllReduce | Verb::Scan | Verb::Exscan => (part, part),
            Verb::Reduce => (part, at_root(part)),
            Verb::Broadcast => (at_root(part), part),
            Verb::ReduceScatter => (whole, part),
            Verb::AllGather => (part, whole),
            Verb::AllToAll => (whole, whole),
            Verb::Gather => (part, at_root(whole)),
            Verb::Scatter => (at_root(whole), part),
            Verb::Send => (part, 0),
            Verb::Recv => (0, part),
        };
        let (send, recv) = (self.sendbuff as usize, self.recvbuff as usize);
        for (argument, start, bytes) in [("sendbuff", send, send_len), ("recvbuff", recv, recv_len)]
        {
            if bytes > 0 && start == 0 {
                return wrong(self.verb, argument, "NULL", format!("{bytes} bytes"));
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
        matches!(self.verb, Verb::Send | Verb::Recv)
    }

    /// True if the operation is in place by NCCL's rule for it.
    pub(crate) fn is_in_place(&self) -> bool {
        let Self { send, recv, send_len, recv_len, rank, .. } = *self;
        if send_len == 0 || recv_len == 0 {
            return false;
        }
        match self.verb {
            Verb::ReduceScatter | Verb::Scatter => recv == send + rank * recv_len,
            Verb::AllGather | Verb::Gather => send == recv + rank * send_len,
            _ => send == recv,
        }
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
        wrong(self.verb, "recvbuff", "memory that overlaps sendbuff", expected)
    }
}
