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

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    ReduceScatter(Reduction),
    Broadcast(usize),
    AllGather,
    AllToAll,
    Gather(usize),
    Scatter(usize),
    Send(usize),
    Recv(usize),
}

/// A checked operation of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
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

impl Operation {
    /// Checks the buffers of an operation on `count` elements, as NCCL counts them.
    pub(crate) fn new(
        ready: &Ready,
        kind: Kind,
        (send, recv): (*const c_void, *mut c_void),
        (count, dtype): (usize, c_int),
        stream: *mut c_void,
    ) -> Outcome<Self> {
        let dtype = data_type(dtype)?;
        let too_long = || {
            Failure::argument(format_args!(
                "count is {count}: {dtype} of {} ranks are beyond the address space",
                ready.size
            ))
        };
        let part = count.checked_mul(dtype.size());
        let whole = part.and_then(|part| part.checked_mul(ready.size));
        let whole = whole.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(too_long)?;
        let part = whole / ready.size;
        let at_root = |root: usize, bytes| if root == ready.rank { bytes } else { 0 };
        let (send_len, recv_len) = match kind {
            Kind::AllReduce(_) => (part, part),
            Kind::Reduce(_, root) => (part, at_root(root, part)),
            Kind::Broadcast(root) => (at_root(root, part), part),
            Kind::ReduceScatter(_) => (whole, part),
            Kind::AllGather => (part, whole),
            Kind::AllToAll => (whole, whole),
            Kind::Gather(root) => (part, at_root(root, whole)),
            Kind::Scatter(root) => (at_root(root, whole), part),
            Kind::Send(_) => (part, 0),
            Kind::Recv(_) => (0, part),
        };
        let (send, recv) = (send as usize, recv as usize);
        for (argument, start, bytes) in [("sendbuff", send, send_len), ("recvbuff", recv, recv_len)]
        {
            if bytes > 0 && start == 0 {
                return Err(Failure::argument(format_args!("{argument} is NULL")));
            }
            if start.checked_add(bytes).is_none() {
                return Err(too_long());
            }
        }
        let used = |start, bytes| if bytes == 0 { 0 } else { start };
        let operation = Self {
            kind,
            send: used(send, send_len),
            recv: used(recv, recv_len),
            send_len,
            recv_len,
            dtype,
            stream: stream as usize,
            rank: ready.rank,
        };
        operation.check_overlap()?;
        Ok(operation)
    }

    /// True if the operation is in place by NCCL's rule for it.
    pub(crate) fn is_in_place(&self) -> bool {
        let Self { send, recv, send_len, recv_len, rank, .. } = *self;
        if send_len == 0 || recv_len == 0 {
            return false;
        }
        match self.kind {
            Kind::ReduceScatter(_) | Kind::Scatter(_) => recv == send + rank * recv_len,
            Kind::AllGather | Kind::Gather(_) => send == recv + rank * send_len,
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
