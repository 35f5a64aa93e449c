//! An all-reduce of many device buffers on a stream.
//! Law: each buffer is a direct call of its own; by way of the host all are one buffer, cut
//! anywhere.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::DevicePtrMut;

use super::host_call::HostCall;
use super::pieces::{PieceRule, elements_per_piece};
use super::{BlockBuffer, CallBuffers, OnStream};
use crate::api::many::NAME;
use crate::device::cuda::{CopyArea, check_reachable, refuse_capture};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

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
        let (stream, collective, op) = (Arc::clone(self.stream), Collective::AllReduce, op.into());
        let count = bufs.iter().map(|buf| buf.len()).sum();
        let request = Request { collective, count, dtype: T::DTYPE, op: Some(op) };
        self.comm.kernel(&request)?;
        let (driver, _current) = self.enter_context()?;
        let direct = self.comm.is_direct(NAME, self.stream, &request)?;
        if !direct {
            refuse_capture(NAME, self.stream.cu_stream())?;
        }
        let lens: Arc<[usize]> = bufs.iter().map(|buf| buf.len()).collect();
        let bufs: Vec<_> = bufs.iter_mut().map(|buf| buf.device_ptr_mut(&stream)).collect();
        let devices = bufs.iter().map(|&(device, _)| device).zip(lens.iter().copied());
        if direct {
            return self.put_each(&request, devices);
        }
        let (element, dtype) = (T::DTYPE.size(), T::DTYPE);
        let (devices, step) =
            (devices.collect(), elements_per_piece(self.comm.max_piece_bytes(), element, 1)?);
        let cut = ManyBuffers { bufs: devices, count, step, element };
        self.put_staged(driver, &cut, &HostCall::Many { lens, dtype, op })
    }

    /// Puts one direct call per buffer on the stream, if devices can access all buffers.
    fn put_each(
        &mut self,
        request: &Request,
        bufs: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Result<()> {
        for (device, len) in bufs.clone() {
            check_reachable(NAME, device, len * request.dtype.size())?;
        }
        for (device, count) in bufs {
            let buffer = BlockBuffer { device, blocks: 1, reads: true, writes: true };
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
