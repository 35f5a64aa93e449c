//! An all-reduce of many device buffers on a stream.
//! Law: each buffer is a direct call of its own; by way of the host all are one buffer, cut
//! anywhere.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::DevicePtrMut;
use cudarc::driver::sys::CUdeviceptr;

use super::host_call::HostCall;
use super::pieces::{PieceRule, elements_per_piece};
use super::{BlockBuffer, CallBuffers, DeviceRef, OnStream};
use crate::api::collective::check_reduction;
use crate::api::many::NAME;
use crate::device::cuda::{CopyArea, CurrentContext, Driver, check_reachable, refuse_capture};
use crate::element::{DataType, Element, Reduction};
use crate::error::{Result, argument_error};
use crate::plan::Request;
use crate::schedule::Collective;

/// A call on many buffers whose arguments were checked before it touches the stream.
struct ManyCall {
    driver: Driver,
    request: Request,
    op: Reduction,
    is_by_host: bool,
    /// Elements of each buffer.
    lens: Arc<[usize]>,
    _current: CurrentContext,
}

impl OnStream<'_> {
    /// [`all_reduce_many`](crate::Communicator::all_reduce_many) of device buffers. By way of the
    /// host it takes as few calls as one buffer of all the elements.
    ///
    /// # Errors
    /// If an earlier call on a stream failed, or the device refuses something.
    pub fn all_reduce_many<T: Element, B: DevicePtrMut<T>>(
        &mut self,
        bufs: &mut [B],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (stream, lens) = (self.stream, bufs.iter().map(|buf| buf.len()).collect());
        let call = self.start_many(T::DTYPE, op.into(), lens)?;
        let bufs: Vec<_> = bufs.iter_mut().map(|buf| buf.device_ptr_mut(stream)).collect();
        self.put_many(&call, bufs.iter().map(|&(device, _)| device).collect())
    }

    /// As [`Self::all_reduce_many`], with the type known at run time.
    ///
    /// # Errors
    /// As [`Self::all_reduce_many`]; and if a buffer is null or not whole elements.
    pub fn all_reduce_many_bytes(
        &mut self,
        bufs: &[DeviceRef],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let lens: Result<_> = bufs.iter().map(|buf| buf.elements(NAME, "bufs", dtype)).collect();
        let call = self.start_many(dtype, op.into(), lens?)?;
        self.put_many(&call, bufs.iter().map(|buf| buf.start).collect())
    }

    fn start_many(&self, dtype: DataType, op: Reduction, lens: Arc<[usize]>) -> Result<ManyCall> {
        let most = isize::MAX as usize / dtype.size();
        let sum = |sum: usize, &len: &usize| sum.checked_add(len).filter(|&sum| sum <= most);
        let Some(count) = lens.iter().try_fold(0, sum) else {
            let given = "longer in all than the address space";
            return argument_error(NAME, "bufs", given, format!("at most {most} elements"));
        };
        let collective = Collective::AllReduce;
        let request = Request { collective, count, dtype, op: Some(op) };
        check_reduction(NAME, collective, dtype, op)?;
        let (driver, current) = self.enter_context()?;
        let is_by_host = self.form(NAME, &request)?.is_by_host();
        if is_by_host {
            refuse_capture(NAME, self.stream.cu_stream())?;
        }
        Ok(ManyCall { driver, request, op, is_by_host, lens, _current: current })
    }

    /// Puts a call on the stream, on buffers at these addresses.
    fn put_many(&mut self, call: &ManyCall, devices: Vec<CUdeviceptr>) -> Result<()> {
        let ManyCall { driver, request, op, is_by_host, ref lens, .. } = *call;
        let (dtype, element) = (request.dtype, request.dtype.size());
        let bufs: Vec<_> = devices.into_iter().zip(lens.iter().copied()).collect();
        let device = self.stream.context().cu_device();
        for &(start, len) in &bufs {
            check_reachable((NAME, "bufs"), start, len * element, device)?;
        }
        if !is_by_host {
            return self.put_each(&request, &bufs);
        }
        let step = elements_per_piece(self.comm.max_piece_bytes(), element, 1)?;
        let cut = ManyBuffers { bufs, count: request.count, step, element };
        self.put_staged(driver, &cut, &HostCall::Many { lens: Arc::clone(lens), dtype, op })
    }

    /// Puts one direct call per buffer on the stream.
    fn put_each(&mut self, request: &Request, bufs: &[(CUdeviceptr, usize)]) -> Result<()> {
        for &(address, count) in bufs {
            let buffer =
                BlockBuffer { address, blocks: 1, reads: true, writes: true, ..BlockBuffer::NONE };
            let sides = [buffer, BlockBuffer { blocks: 0, ..buffer }];
            let sides = CallBuffers { sides, block: count * request.dtype.size(), most: 1 };
            self.put_direct(NAME, &Request { count, ..*request }, sides)?;
        }
        Ok(())
    }
}

/// The addresses and lengths in elements of buffers with `count` elements in all.
struct ManyBuffers {
    bufs: Vec<(u64, usize)>,
    count: usize,
    step: usize,
    element: usize,
}

impl PieceRule for ManyBuffers {
    fn len(&self) -> usize {
        self.count
    }

    fn end(&self, from: usize) -> usize {
        self.count.min(from + self.step)
    }

    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = CopyArea> {
        let bufs = if side == 0 { &self.bufs[..] } else { &[] };
        let (element, lens) = (self.element, bufs.iter().map(|buf| buf.1));
        bufs.iter().zip(piece_ranges(lens, piece.clone())).map(move |(&(device, _), part)| {
            let device = device + (part.start * element) as u64;
            CopyArea { device, at: 0, len: part.len() * element, reads: true, writes: true }
        })
    }
}

/// The elements of each buffer that are in a piece.
pub(super) fn piece_ranges(
    lens: impl Iterator<Item = usize>,
    piece: Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    lens.scan(0, move |before, len| {
        let end = *before + len;
        let [from, to] = [piece.start, piece.end].map(|at| at.clamp(*before, end) - *before);
        *before = end;
        Some(from..to)
    })
}
