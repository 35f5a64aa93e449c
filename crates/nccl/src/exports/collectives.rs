//! Collectives, messages and reductions.

use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};

use foreign::RawCall;
use ringreduce::{Collective, Reduction, Verb};

use super::export;
use crate::abi::{Comm, MAGIC, NcclCollConfig, NcclSimInfo, SIM_MAGIC, Stream, code};
use crate::failure::{Failure, Outcome, give, read};
use crate::group;
use crate::handle::Handle;
use crate::numbers::{data_type, drop_reduction, keep_reduction, reduction};

/// `ncclScalarHostImmediate`, the last of `ncclScalarResidence_t`.
const HOST_IMMEDIATE: c_int = 1;

/// An operation as NCCL's callers pass it: the types and reductions are numbers.
struct Passed {
    verb: Verb,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    /// 0 where nothing is reduced.
    op: c_int,
    /// The root, or the other end of a message; 0 where neither is.
    peer: c_int,
    stream: Stream,
}

/// Checks an operation and carries it out, or keeps it for the group.
///
/// # Safety
/// `comm` is what [`Handle::of`] asks for.
unsafe fn submit(comm: Comm, passed: &Passed) -> Outcome {
    // SAFETY: as above.
    let handle = unsafe { Handle::of(comm) }?;
    let ready = handle.ready()?;
    let &Passed { verb, sendbuff, recvbuff, count, peer, stream, .. } = passed;
    let dtype = data_type(passed.datatype)?;
    let op = reduction(handle, passed.op, dtype)?;
    let raw = RawCall { verb, sendbuff, recvbuff, count, dtype, op, peer, stream };
    raw.check_then((ready.rank, ready.size), |operation| group::submit(handle, operation))
}

/// Refuses a configuration of another library. Its hints are about kernels.
///
/// # Safety
/// `config` is null or points to a configuration.
unsafe fn check_config(config: *const NcclCollConfig) -> Outcome<()> {
    // SAFETY: as above.
    match unsafe { config.as_ref() } {
        Some(config) if config.magic != MAGIC => {
            Err(Failure::argument("config was not made by NCCL_COLLCONFIG_INITIALIZER"))
        }
        _ => Ok(()),
    }
}

/// Exports a collective and its form with a configuration. `$op` is the number of its reduction,
/// and `$peer` its root; 0 without.
macro_rules! collective {
    ($(fn $name:ident, $config:ident($($arg:ident),*) $collective:expr, $op:expr, $peer:expr;)*)
    => {
        export! {$(
            /// See `nccl.h`.
            fn $name(
                sendbuff: *const c_void,
                recvbuff: *mut c_void,
                count: usize,
                datatype: c_int,
                $($arg: c_int,)*
                comm: Comm,
                stream: Stream,
            ) {
                let (verb, op, peer) = ($collective.into(), $op, $peer);
                let passed =
                    Passed { verb, sendbuff, recvbuff, count, datatype, op, peer, stream };
                // SAFETY: the caller passes a communicator.
                unsafe { submit(comm, &passed) }
            }

            /// See `nccl.h`.
            fn $config(
                sendbuff: *const c_void,
                recvbuff: *mut c_void,
                count: usize,
                datatype: c_int,
                $($arg: c_int,)*
                comm: Comm,
                stream: Stream,
                config: *const NcclCollConfig,
            ) {
                // SAFETY: the caller passes a configuration or null.
                unsafe { check_config(config) }?;
                // SAFETY: the caller passes what the plain function asks for.
                Ok(unsafe {
                    $name(sendbuff, recvbuff, count, datatype, $($arg,)* comm, stream)
                })
            }
        )*}
    };
}

collective! {
    fn ncclAllReduce, ncclAllReduceConfig(op) Collective::AllReduce, op, 0;
    fn ncclReduceScatter, ncclReduceScatterConfig(op) Collective::ReduceScatter, op, 0;
    fn ncclReduce, ncclReduceConfig(op, root) Collective::Reduce { root: 0 }, op, root;
    fn ncclBroadcast, ncclBroadcastConfig(root) Collective::Broadcast { root: 0 }, 0, root;
    fn ncclAllGather, ncclAllGatherConfig() Collective::AllGather, 0, 0;
    fn ncclAlltoAll, ncclAlltoAllConfig() Collective::AllToAll, 0, 0;
    fn ncclGather, ncclGatherConfig(root) Collective::Gather { root: 0 }, 0, root;
    fn ncclScatter, ncclScatterConfig(root) Collective::Scatter { root: 0 }, 0, root;
}

/// Exports what has one buffer, `$send` or `$recv`.
macro_rules! one_buffer {
    ($(fn $name:ident($buffer:ident: $type:ty, $peer:ident) $verb:expr, $send:expr, $recv:expr;)*)
    => {
        export! {$(
            /// See `nccl.h`.
            fn $name(
                $buffer: $type,
                count: usize,
                datatype: c_int,
                $peer: c_int,
                comm: Comm,
                stream: Stream,
            ) {
                let (verb, op, peer) = ($verb.into(), 0, $peer);
                let (sendbuff, recvbuff) = ($send, $recv);
                let passed =
                    Passed { verb, sendbuff, recvbuff, count, datatype, op, peer, stream };
                // SAFETY: the caller passes a communicator.
                unsafe { submit(comm, &passed) }
            }
        )*}
    };
}

one_buffer! {
    fn ncclBcast(buff: *mut c_void, root) Collective::Broadcast { root: 0 }, buff, buff;
    fn ncclSend(sendbuff: *const c_void, to) Verb::Send { to: 0 }, sendbuff, null_mut();
    fn ncclRecv(recvbuff: *mut c_void, from) Verb::Recv { from: 0 }, null(), recvbuff;
}

export! {
    /// See `nccl.h`. The scalar is read at once, wherever it is said to be.
    fn ncclRedOpCreatePreMulSum(
        op: *mut c_int,
        scalar: *mut c_void,
        datatype: c_int,
        residence: c_int,
        comm: Comm,
    ) {
        // SAFETY: the caller passes a communicator.
        let handle = unsafe { Handle::of(comm) }?;
        handle.ready()?;
        let dtype = data_type(datatype)?;
        if !(0..=HOST_IMMEDIATE).contains(&residence) {
            return Err(Failure::argument(format_args!("residence is {residence}; it is 0 or 1")));
        }
        if scalar.is_null() {
            return Err(Failure::argument("scalar is NULL"));
        }
        if crate::device::is_device_memory(scalar as usize) {
            return Err(Failure::usage("scalar is device memory; pass a scalar on the host"));
        }
        // SAFETY: the caller passes one element of the type.
        let bytes = unsafe { std::slice::from_raw_parts(scalar.cast::<u8>(), dtype.size()) };
        let made = Reduction::premul_sum_bytes(bytes, dtype)
            .ok_or_else(|| Failure::argument(format_args!("no scalar of {dtype}")))?;
        // SAFETY: the caller passes a place for the number.
        unsafe { give(op, "op", 0) }?;
        // SAFETY: as above.
        unsafe { give(op, "op", keep_reduction(handle, (made, dtype))) }?;
        Ok(code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclRedOpDestroy(op: c_int, comm: Comm) {
        // SAFETY: the caller passes a communicator.
        drop_reduction(unsafe { Handle::of(comm) }?, op).map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclGroupStart() {
        group::start();
        Ok(code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclGroupEnd() {
        group::end(true)
    }

    /// See `nccl.h`. The group is dropped; its time is not estimated, so the answer is
    /// `NCCL_UNDEF_FLOAT`.
    fn ncclGroupSimulateEnd(simInfo: *mut NcclSimInfo) {
        if !simInfo.is_null() {
            // SAFETY: the caller passes null or an information block.
            let mut info = unsafe { read_info(simInfo) }?;
            info.estimated_time = -1.0;
            // SAFETY: as above.
            unsafe { give(simInfo, "simInfo", info) }?;
        }
        group::end(false)
    }
}

/// # Safety
/// `info` points to an information block.
unsafe fn read_info(info: *mut NcclSimInfo) -> Outcome<NcclSimInfo> {
    // SAFETY: as above.
    let info = unsafe { read(info.cast_const(), "simInfo") }?;
    match info.magic {
        SIM_MAGIC => Ok(info),
        _ => Err(Failure::argument("simInfo was not made by NCCL_SIM_INFO_INITIALIZER")),
    }
}
