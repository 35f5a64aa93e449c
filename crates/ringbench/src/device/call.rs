//! Calls of the library's verbs on streams. Unsafe code takes bytes as elements.
#![allow(unsafe_code)]

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use ringreduce::schedule::Collective;
use ringreduce::{
    Communicator, Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, bf16,
    f16,
};

use crate::measure::case::Case;

/// An instance of a generic function, for a type known at run time.
macro_rules! by_type {
    ($dtype:expr, $function:ident) => {
        match $dtype {
            DataType::I8 => $function::<i8>,
            DataType::U8 => $function::<u8>,
            DataType::I16 => $function::<i16>,
            DataType::U16 => $function::<u16>,
            DataType::I32 => $function::<i32>,
            DataType::U32 => $function::<u32>,
            DataType::I64 => $function::<i64>,
            DataType::U64 => $function::<u64>,
            DataType::F16 => $function::<f16>,
            DataType::BF16 => $function::<bf16>,
            DataType::F32 => $function::<f32>,
            DataType::F64 => $function::<f64>,
            DataType::F8E4M3 => $function::<F8E4M3>,
            DataType::F8E5M2 => $function::<F8E5M2>,
            DataType::C64 => $function::<Complex<f32>>,
            DataType::C128 => $function::<Complex<f64>>,
            DataType::LocF32 => $function::<LocF32>,
            DataType::LocF64 => $function::<LocF64>,
            DataType::LocI32 => $function::<LocI32>,
            DataType::LocI64 => $function::<LocI64>,
            other => bail!("{other} is not known here"),
        }
    };
}

pub(super) fn out_of_place(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    (send, recv): (&CudaView<'_, u8>, &mut CudaViewMut<'_, u8>),
) -> Result<()> {
    if case.verb.reduces() {
        return by_type!(case.dtype, reduce_out_of_place)(comm, stream, case, (send, recv));
    }
    let mut on = comm.on_stream(stream);
    match case.verb.collective() {
        Some(Collective::AllGather) => on.all_gather(send, recv)?,
        Some(Collective::Gather { root }) => on.gather(send, recv, root as usize)?,
        Some(Collective::Scatter { root }) => on.scatter(send, recv, root as usize)?,
        Some(Collective::AllToAll) => on.all_to_all(send, recv)?,
        // The root copies its input to its output, as on the host.
        Some(Collective::Broadcast { root }) => {
            if root as usize == case.rank && case.bytes() > 0 {
                stream.memcpy_dtod(send, recv)?;
            }
            on.broadcast(recv, root as usize)?;
        }
        _ => bail!("{} has no form on devices", case.verb),
    }
    Ok(())
}

pub(super) fn in_place(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    buf: &mut CudaViewMut<'_, u8>,
) -> Result<()> {
    match case.verb.collective() {
        Some(Collective::Broadcast { root }) => {
            Ok(comm.on_stream(stream).broadcast(buf, root as usize)?)
        }
        _ => by_type!(case.dtype, reduce_in_place)(comm, stream, case, buf),
    }
}

const SHORT: &str = "a buffer is shorter than its elements";

fn elements<'a, T: Element>(bytes: &'a mut CudaViewMut<'_, u8>) -> Result<CudaViewMut<'a, T>> {
    let count = bytes.len() / size_of::<T>();
    // SAFETY: any bits are an element.
    unsafe { bytes.transmute_mut(count) }.context(SHORT)
}

fn reduce_out_of_place<T: Element>(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    (send, recv): (&CudaView<'_, u8>, &mut CudaViewMut<'_, u8>),
) -> Result<()> {
    // SAFETY: any bits are an element.
    let send = unsafe { send.transmute::<T>(send.len() / size_of::<T>()) };
    let (send, mut recv) = (send.context(SHORT)?, elements::<T>(recv)?);
    let (mut on, op) = (comm.on_stream(stream), case.op);
    match case.verb.collective() {
        Some(Collective::AllReduce) => on.all_reduce_into(&send, &mut recv, op)?,
        Some(Collective::ReduceScatter) => on.reduce_scatter(&send, &mut recv, op)?,
        Some(Collective::Reduce { root }) => {
            on.reduce_into(&send, &mut recv, op, root as usize)?;
        }
        Some(Collective::Scan) => on.scan_into(&send, &mut recv, op)?,
        Some(Collective::Exscan) => on.exscan_into(&send, &mut recv, op)?,
        _ => bail!("{} has no form on devices", case.verb),
    }
    Ok(())
}

fn reduce_in_place<T: Element>(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    bytes: &mut CudaViewMut<'_, u8>,
) -> Result<()> {
    let mut buf = elements::<T>(bytes)?;
    let (mut on, op) = (comm.on_stream(stream), case.op);
    match case.verb.collective() {
        Some(Collective::AllReduce) => on.all_reduce(&mut buf, op)?,
        Some(Collective::Reduce { root }) => on.reduce(&mut buf, op, root as usize)?,
        Some(Collective::Scan) => on.scan(&mut buf, op)?,
        Some(Collective::Exscan) => on.exscan(&mut buf, op)?,
        _ => bail!("{} has no form in place on devices", case.verb),
    }
    Ok(())
}
