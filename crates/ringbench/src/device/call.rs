//! Calls of the library's verbs on streams.

use std::marker::PhantomData;
use std::sync::Arc;

use anyhow::{Result, bail};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use ringreduce::schedule::Collective;
use ringreduce::{
    Communicator, Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, bf16,
    f16,
};

use super::buffers::DeviceBuffer;
use crate::measure::case::Case;

/// The first bytes of a buffer as elements.
struct Elements<'a, T> {
    image: &'a mut DeviceBuffer,
    bytes: usize,
    kind: PhantomData<T>,
}

impl<'a, T> Elements<'a, T> {
    fn of(image: &'a mut DeviceBuffer, bytes: usize) -> Self {
        Self { image, bytes, kind: PhantomData }
    }
}

impl<T> DeviceSlice<T> for Elements<'_, T> {
    fn len(&self) -> usize {
        self.bytes / size_of::<T>()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.image.stream()
    }
}

impl<T> DevicePtr<T> for Elements<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.image.start(stream)
    }
}

impl<T> DevicePtrMut<T> for Elements<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.image.start_mut(stream)
    }
}

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
    images: [&mut DeviceBuffer; 2],
) -> Result<()> {
    if case.verb.reduces() {
        return by_type!(case.dtype, reduce_out_of_place)(comm, stream, case, images);
    }
    let [send, recv] = images;
    let send = Elements::<u8>::of(send, case.send_bytes());
    let mut recv = Elements::<u8>::of(recv, case.recv_bytes());
    let mut on = comm.on_stream(stream);
    match case.verb.collective() {
        Some(Collective::AllGather) => on.all_gather(&send, &mut recv)?,
        Some(Collective::Gather { root }) => on.gather(&send, &mut recv, root as usize)?,
        Some(Collective::Scatter { root }) => on.scatter(&send, &mut recv, root as usize)?,
        Some(Collective::AllToAll) => on.all_to_all(&send, &mut recv)?,
        // The root copies its input to its output, as on the host.
        Some(Collective::Broadcast { root }) => {
            if root as usize == case.rank && case.bytes() > 0 {
                stream.memcpy_dtod(&send, &mut recv)?;
            }
            on.broadcast(&mut recv, root as usize)?;
        }
        _ => bail!("{} has no form on devices", case.verb),
    }
    Ok(())
}

pub(super) fn in_place(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    image: &mut DeviceBuffer,
) -> Result<()> {
    match case.verb.collective() {
        Some(Collective::Broadcast { root }) => {
            let mut buf = Elements::<u8>::of(image, case.bytes());
            Ok(comm.on_stream(stream).broadcast(&mut buf, root as usize)?)
        }
        _ => by_type!(case.dtype, reduce_in_place)(comm, stream, case, image),
    }
}

fn reduce_out_of_place<T: Element>(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    case: &Case,
    [send, recv]: [&mut DeviceBuffer; 2],
) -> Result<()> {
    let send = Elements::<T>::of(send, case.send_bytes());
    let mut recv = Elements::<T>::of(recv, case.recv_bytes());
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
    image: &mut DeviceBuffer,
) -> Result<()> {
    let mut buf = Elements::<T>::of(image, case.bytes());
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
