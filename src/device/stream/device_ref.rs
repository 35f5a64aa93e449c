//! Device memory known by its address, and streams of other owners: what C programs and other
//! frameworks pass.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::api::Communicator;
use crate::api::collective::element_count;
use crate::device::cuda::{CurrentContext, driver, stream_context};
use crate::element::DataType;
use crate::error::{Result, argument_error};

/// A buffer known by its address and its length in bytes, for the `_bytes` methods of
/// [`OnStream`](super::OnStream). It may have any alignment. Memory of the stream's device, managed
/// memory and pinned host memory will do; other memory is an error of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRef {
    pub(super) start: CUdeviceptr,
    pub(super) bytes: usize,
}

impl DeviceRef {
    /// `bytes` bytes at `start`. An address may be null if there are no bytes. A caller that has a
    /// count of elements may multiply with [`usize::saturating_mul`]: a length beyond the address
    /// space is an error of the call.
    ///
    /// # Safety
    /// The memory stays until all work on it is done. Other work on it is in the order of the
    /// streams that its collectives are put on, and nothing reads what a call writes, or writes
    /// what it reads, before the stream has passed the call.
    #[must_use]
    pub const unsafe fn from_raw_parts(start: u64, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// As [`Self::from_raw_parts`], of memory that the library vouches for.
    pub(super) const fn new(start: CUdeviceptr, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// The number of elements, if the memory can exist.
    ///
    /// # Errors
    /// If the address is null, the end is beyond the address space, or the last element is not
    /// whole.
    pub(super) fn elements(
        self,
        call: &'static str,
        argument: &'static str,
        dtype: DataType,
    ) -> Result<usize> {
        let Self { start, bytes } = self;
        if start == 0 && bytes > 0 {
            let expected = format!("the address of {bytes} bytes");
            return argument_error(call, argument, "a null pointer", expected);
        }
        if bytes > isize::MAX as usize || start.checked_add(bytes as u64).is_none() {
            let given = format!("{bytes} bytes at {start:#x}");
            return argument_error(call, argument, given, "memory within the address space");
        }
        element_count(call, argument, bytes, dtype)
    }

    /// Refuses two buffers that share memory.
    pub(super) fn check_apart(self, call: &'static str, recv: Self) -> Result<()> {
        let end = |buf: Self| buf.start.saturating_add(buf.bytes as u64);
        if self.start.max(recv.start) >= end(self).min(end(recv)) {
            return Ok(());
        }
        let expected = "memory of its own; a call on one buffer has a method of its own, in place";
        argument_error(call, "recv", "memory that overlaps send", expected)
    }
}

impl Communicator {
    /// A stream of another owner, such as a `cudaStream_t` of the CUDA runtime, for
    /// [`Self::on_stream`]. Dropping it leaves the owner's stream alone. The handles of the default
    /// stream and of the thread's default stream will do as well.
    ///
    /// cudarc orders its own buffers by events among the streams that cudarc has made. On this
    /// stream the caller orders them.
    ///
    /// # Safety
    /// `stream` is a stream or the handle of a default stream, and stays until the last work of
    /// this communicator on it is done.
    ///
    /// # Errors
    /// Before [`Self::use_device`], and if the stream is of another context than that was given.
    pub unsafe fn borrow_stream(&self, stream: CUstream) -> Result<Arc<CudaStream>> {
        const NAME: &str = "borrow_stream";
        let Some(context) = &self.streams.context else {
            let expected = "a call after use_device, which names the device of the streams";
            return argument_error(NAME, "self", "a communicator without a device", expected);
        };
        let _current = CurrentContext::new(driver()?, context.cu_ctx())?;
        if stream_context(stream)? != context.cu_ctx() {
            let given = "of another context than use_device was given";
            return argument_error(NAME, "stream", given, "one of the same");
        }
        // SAFETY: the stream is of this context, and the caller says that it stays.
        Ok(unsafe { context.wrap_borrowed_stream(stream) })
    }
}
