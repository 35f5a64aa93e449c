//! Operations as NCCL's callers describe them: addresses, a count and numbers for type, reduction
//! and peer. They are checked at the call, and may be carried out later, by `calls`.

use core::ffi::{c_int, c_void};

use ringreduce::{DataType, ReduceOp, Reduction};

use crate::failure::{Failure, Outcome};
use crate::handle::{Handle, Ready};

/// The types in the order of `ncclDataType_t`.
const TYPES: [DataType; 12] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::BF16,
    DataType::F8E4M3,
    DataType::F8E5M2,
];

/// The plain reductions in the order of `ncclRedOp_t`.
const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    AllReduce,
    Reduce,
    ReduceScatter,
    Broadcast,
    AllGather,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Recv,
}

/// An operation as its caller passes it.
pub(crate) struct Passed {
    pub(crate) verb: Verb,
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    /// Elements, as NCCL counts them for this verb.
    pub(crate) count: usize,
    pub(crate) datatype: c_int,
    /// The number of the reduction; 0 where nothing is reduced.
    pub(crate) op: c_int,
    /// The root, or the other end of a message; 0 where neither is.
    pub(crate) peer: c_int,
    pub(crate) stream: *mut c_void,
}

/// A checked operation of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
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
    pub(crate) stream: usize,
    pub(crate) rank: usize,
}

/// The type of a number.
pub(crate) fn data_type(number: c_int) -> Outcome<DataType> {
    let known = usize::try_from(number).ok().and_then(|at| TYPES.get(at)).copied();
    known.ok_or_else(|| {
        Failure::argument(format_args!("datatype is {number}; ncclDataType_t ends at 11"))
    })
}

/// The reduction of a number, of this communicator.
pub(crate) fn reduction(handle: &Handle, number: c_int, dtype: DataType) -> Outcome<Reduction> {
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(&op) = REDUCTIONS.get(at) {
        return Ok(op.into());
    }
    let objects = handle.objects();
    let made = at.checked_sub(REDUCTIONS.len()).and_then(|at| objects.reductions.get(at));
    match made.copied().flatten() {
        Some((reduction, of)) if of == dtype => Ok(reduction),
        Some((_, of)) => Err(Failure::argument(format_args!(
            "op was made for {of} by ncclRedOpCreatePreMulSum; datatype is {dtype}"
        ))),
        None => Err(Failure::argument(format_args!(
            "op is {number}: no plain reduction, and none that was made for this communicator"
        ))),
    }
}

/// The number of a reduction that a caller has made.
pub(crate) fn keep_reduction(handle: &Handle, made: (Reduction, DataType)) -> c_int {
    let reductions = &mut handle.objects().reductions;
    let free = reductions.iter().position(Option::is_none).unwrap_or(reductions.len());
    match reductions.get_mut(free) {
        Some(place) => *place = Some(made),
        None => reductions.push(Some(made)),
    }
    (REDUCTIONS.len() + free) as c_int
}

/// Ends a reduction that a caller has made.
pub(crate) fn drop_reduction(handle: &Handle, number: c_int) -> Outcome<()> {
    let at = usize::try_from(number).ok().and_then(|at| at.checked_sub(REDUCTIONS.len()));
    let mut objects = handle.objects();
    let place = at.and_then(|at| objects.reductions.get_mut(at));
    let made = place.and_then(Option::take);
    made.map(drop).ok_or_else(|| {
        Failure::argument(format_args!("op is {number}, which ncclRedOpCreatePreMulSum never gave"))
    })
}

/// A rank as the caller numbers it.
pub(crate) fn peer(ready: &Ready, argument: &str, number: c_int) -> Outcome<usize> {
    match usize::try_from(number) {
        Ok(peer) if peer < ready.size => Ok(peer),
        _ => Err(Failure::argument(format_args!(
            "{argument} is {number}; this communicator has ranks 0 to {}",
            ready.size - 1
        ))),
    }
}

impl Passed {
    /// The operation, if this rank can carry it out. Its parts are checked one by one, and it is
    /// made where it stays: moving it costs more than the checks.
    pub(crate) fn check(
        &self,
        handle: &Handle,
        ready: &Ready,
        submit: impl FnOnce(&Operation) -> Outcome,
    ) -> Outcome {
        let dtype = data_type(self.datatype)?;
        let is_message = matches!(self.verb, Verb::Send | Verb::Recv);
        let peer = peer(ready, if is_message { "peer" } else { "root" }, self.peer)?;
        let (send_len, recv_len) = self.lengths(dtype, peer, ready)?;
        let used = |start, bytes| if bytes == 0 { 0 } else { start };
        let operation = Operation {
            verb: self.verb,
            by: reduction(handle, self.op, dtype)?,
            peer,
            send: used(self.send as usize, send_len),
            recv: used(self.recv as usize, recv_len),
            send_len,
            recv_len,
            dtype,
            stream: self.stream as usize,
            rank: ready.rank,
        };
        operation.check_overlap()?;
        submit(&operation)
    }

    /// The bytes that this rank sends and receives.
    fn lengths(&self, dtype: DataType, peer: usize, ready: &Ready) -> Outcome<(usize, usize)> {
        let too_long = || {
            Failure::argument(format_args!(
                "count is {}: {dtype} of {} ranks are beyond the address space",
                self.count, ready.size
            ))
        };
        let part = self.count.checked_mul(dtype.size());
        let part = part.filter(|&bytes| bytes <= isize::MAX as usize / ready.size);
        let part = part.ok_or_else(too_long)?;
        let whole = part * ready.size;
        let at_root = |bytes| if peer == ready.rank { bytes } else { 0 };
        let (send_len, recv_len) = match self.verb {
            Verb::AllReduce => (part, part),
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
        let buffers = [
            ("sendbuff", self.send as usize, send_len),
            ("recvbuff", self.recv as usize, recv_len),
        ];
        for (argument, start, bytes) in buffers {
            if bytes > 0 && start == 0 {
                return Err(Failure::argument(format_args!("{argument} is NULL")));
            }
            if start.checked_add(bytes).is_none() {
                return Err(too_long());
            }
        }
        Ok((send_len, recv_len))
    }
}

impl Operation {
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

    fn check_overlap(&self) -> Outcome<()> {
        let Self { send, recv, send_len, recv_len, .. } = *self;
        let is_apart =
            send_len == 0 || recv_len == 0 || send + send_len <= recv || recv + recv_len <= send;
        if is_apart || self.is_in_place() {
            return Ok(());
        }
        Err(Failure::argument(
            "recvbuff overlaps sendbuff; pass memory of its own, or the place in sendbuff (or the \
             other way round) that nccl.h names for calls in place",
        ))
    }
}
