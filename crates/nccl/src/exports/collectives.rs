//! Collectives, messages and reductions.

use core::ffi::{c_int, c_void};

use ringreduce::Reduction;

use super::export;
use crate::abi::{Comm, MAGIC, NcclCollConfig, NcclSimInfo, SIM_MAGIC, Stream, code};
use crate::failure::{Failure, Outcome, give, read};
use crate::group;
use crate::handle::{Handle, Ready};
use crate::operation::{
    Kind, Operation, data_type, drop_reduction, keep_reduction, peer, reduction,
};

/// `ncclScalarHostImmediate`, the last of `ncclScalarResidence_t`.
const HOST_IMMEDIATE: c_int = 1;

/// Where an operation reads and writes.
type Buffers = (*const c_void, *mut c_void);
/// A count of elements, and their type's number.
type Elements = (usize, c_int);

/// Checks an operation and carries it out, or keeps it for the group.
///
/// # Safety
/// `comm` is what [`Handle::of`] asks for.
unsafe fn submit(
    (comm, stream): (Comm, Stream),
    buffers: Buffers,
    elements: Elements,
    kind: impl FnOnce(&Handle, &Ready) -> Outcome<Kind>,
) -> Outcome {
    // SAFETY: as above.
    let handle = unsafe { Handle::of(comm) }?;
    let ready = handle.ready()?;
    let kind = kind(handle, ready)?;
    group::submit(handle, Operation::new(ready, kind, buffers, elements, stream)?)
}

/// A collective that reduces, with a root or without.
fn reducing(
    op: c_int,
    dtype: c_int,
    kind: impl FnOnce(Reduction, &Ready) -> Outcome<Kind>,
) -> impl FnOnce(&Handle, &Ready) -> Outcome<Kind> {
    move |handle, ready| kind(reduction(handle, op, data_type(dtype)?)?, ready)
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

/// Exports a collective and its form with a configuration.
macro_rules! collective {
    ($(fn $name:ident, $config:ident($($arg:ident: $type:ty),*) $kind:expr;)*) => {
        export! {$(
            /// See `nccl.h`.
            fn $name(
                sendbuff: *const c_void,
                recvbuff: *mut c_void,
                count: usize,
                datatype: c_int,
                $($arg: $type,)*
                comm: Comm,
                stream: Stream,
            ) {
                let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
                let kind_of = $kind;
                let kind = kind_of(datatype, $($arg),*);
                // SAFETY: the caller passes a communicator.
                unsafe { submit((comm, stream), buffers, elements, kind) }
            }

            /// See `nccl.h`.
            fn $config(
                sendbuff: *const c_void,
                recvbuff: *mut c_void,
                count: usize,
                datatype: c_int,
                $($arg: $type,)*
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
    fn ncclAllReduce, ncclAllReduceConfig(op: c_int)
        |dtype, op| reducing(op, dtype, |by, _| Ok(Kind::AllReduce(by)));
    fn ncclReduceScatter, ncclReduceScatterConfig(op: c_int)
        |dtype, op| reducing(op, dtype, |by, _| Ok(Kind::ReduceScatter(by)));
    fn ncclReduce, ncclReduceConfig(op: c_int, root: c_int)
        |dtype, op, root| reducing(op, dtype, move |by, ready: &Ready| {
            Ok(Kind::Reduce(by, peer(ready, "root", root)?))
        });
    fn ncclBroadcast, ncclBroadcastConfig(root: c_int)
        |_, root| move |_: &Handle, ready: &Ready| Ok(Kind::Broadcast(peer(ready, "root", root)?));
    fn ncclAllGather, ncclAllGatherConfig()
        |_| |_: &Handle, _: &Ready| Ok(Kind::AllGather);
    fn ncclAlltoAll, ncclAlltoAllConfig()
        |_| |_: &Handle, _: &Ready| Ok(Kind::AllToAll);
    fn ncclGather, ncclGatherConfig(root: c_int)
        |_, root| move |_: &Handle, ready: &Ready| Ok(Kind::Gather(peer(ready, "root", root)?));
    fn ncclScatter, ncclScatterConfig(root: c_int)
        |_, root| move |_: &Handle, ready: &Ready| Ok(Kind::Scatter(peer(ready, "root", root)?));
}

export! {
    /// See `nccl.h`.
    fn ncclBcast(
        buff: *mut c_void,
        count: usize,
        datatype: c_int,
        root: c_int,
        comm: Comm,
        stream: Stream,
    ) {
        // SAFETY: the caller passes a communicator.
        unsafe {
            submit((comm, stream), (buff, buff), (count, datatype), |_, ready| {
                Ok(Kind::Broadcast(peer(ready, "root", root)?))
            })
        }
    }

    /// See `nccl.h`.
    fn ncclSend(
        sendbuff: *const c_void,
        count: usize,
        datatype: c_int,
        to: c_int,
        comm: Comm,
        stream: Stream,
    ) {
        let buffers = (sendbuff, std::ptr::null_mut());
        // SAFETY: the caller passes a communicator.
        unsafe {
            submit((comm, stream), buffers, (count, datatype), |_, ready| {
                Ok(Kind::Send(peer(ready, "peer", to)?))
            })
        }
    }

    /// See `nccl.h`.
    fn ncclRecv(
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        from: c_int,
        comm: Comm,
        stream: Stream,
    ) {
        let buffers = (std::ptr::null(), recvbuff);
        // SAFETY: the caller passes a communicator.
        unsafe {
            submit((comm, stream), buffers, (count, datatype), |_, ready| {
                Ok(Kind::Recv(peer(ready, "peer", from)?))
            })
        }
    }

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
