//! A rank's two buffers on its device: copies of the buffers on the host with their guards.
//! Law: nothing is allocated or freed while a call is under way at any rank.
//! Unsafe: calls take the buffers by their addresses.
#![allow(unsafe_code)]

use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, DevicePtr};
use ringreduce::{Buffers, Communicator, DeviceMemory, DeviceRef};

use super::Gpu;
use crate::cli::Memory as Kind;
use crate::measure::buffer::{GUARD, Guarded};
use crate::measure::case::{Case, Placement};
use tools::sizes::human;

/// The offset of the buffer in its memory, at which it has the alignment of an allocation.
const ALIGN: usize = 512;

#[derive(Debug)]
enum Memory {
    Plain(CudaSlice<u8>),
    Allocated(DeviceMemory<u8>),
}

#[derive(Debug)]
struct DeviceBuffer {
    memory: Memory,
    /// The buffer's offset in the memory, the same at all ranks.
    at: usize,
}

impl DeviceBuffer {
    fn new(
        comm: &mut Communicator,
        stream: &Arc<CudaStream>,
        kind: Kind,
        capacity: usize,
        unalign: usize,
    ) -> Result<Self> {
        let memory_bytes = capacity.saturating_add(ALIGN + GUARD + unalign);
        let memory = match kind {
            Kind::Plain | Kind::Register => {
                stream.alloc_zeros(memory_bytes).map(Memory::Plain).map_err(anyhow::Error::from)
            }
            Kind::Alloc => comm
                .alloc_device(stream, memory_bytes)
                .map(Memory::Allocated)
                .map_err(anyhow::Error::from),
        };
        let memory = memory.with_context(|| {
            format!("no memory on the device for a buffer of {}: lower -e", human(capacity))
        })?;
        Ok(Self { memory, at: ALIGN + unalign })
    }

    fn slice(&self) -> &CudaSlice<u8> {
        match &self.memory {
            Memory::Plain(memory) => memory,
            Memory::Allocated(memory) => memory,
        }
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, u8> {
        match &mut self.memory {
            Memory::Plain(memory) => memory.as_view_mut(),
            Memory::Allocated(memory) => memory.view_mut(),
        }
    }

    /// The first `len` bytes of the buffer, by their address.
    fn device_ref(&self, stream: &CudaStream, len: usize) -> DeviceRef {
        let (start, _in_order) = self.slice().device_ptr(stream);
        // SAFETY: the memory is longer, and stays until the stream was synchronised; all work on it
        // is on this stream.
        unsafe { DeviceRef::from_raw_parts(start + self.at as u64, len) }
    }

    fn upload(&mut self, stream: &Arc<CudaStream>, host: &Guarded, len: usize) -> Result<()> {
        let range = self.at - GUARD..self.at + len + GUARD;
        let mut view = self.view_mut();
        Ok(stream.memcpy_htod(host.guarded(len), &mut view.slice_mut(range))?)
    }

    fn download(&self, stream: &Arc<CudaStream>, host: &mut Guarded, len: usize) -> Result<()> {
        let device = self.slice().slice(self.at - GUARD..self.at + len + GUARD);
        Ok(stream.memcpy_dtoh(&device, host.guarded_mut(len))?)
    }
}

/// A rank's buffers on its device.
#[derive(Debug)]
pub(crate) struct BufferPair {
    stream: Arc<CudaStream>,
    send: DeviceBuffer,
    recv: DeviceBuffer,
}

impl BufferPair {
    /// Allocates `capacity` bytes for each. Collective over all ranks.
    pub(crate) fn new(
        comm: &mut Communicator,
        gpu: &Gpu,
        memory: Kind,
        capacity: usize,
        unalign: usize,
    ) -> Result<Self> {
        let mut new = || DeviceBuffer::new(comm, &gpu.stream, memory, capacity, unalign);
        let (send, recv) = (new()?, new()?);
        gpu.stream.synchronize()?;
        Ok(Self { stream: Arc::clone(&gpu.stream), send, recv })
    }

    /// Copies both buffers, of `lens` bytes, from the host.
    pub(crate) fn upload(&mut self, host: [&Guarded; 2], lens: (usize, usize)) -> Result<()> {
        let [send, recv] = host;
        self.send.upload(&self.stream, send, lens.0)?;
        self.recv.upload(&self.stream, recv, lens.1)?;
        Ok(self.stream.synchronize()?)
    }

    /// Copies both buffers to the host.
    pub(crate) fn download(&self, host: [&mut Guarded; 2], lens: (usize, usize)) -> Result<()> {
        let [send, recv] = host;
        self.send.download(&self.stream, send, lens.0)?;
        self.recv.download(&self.stream, recv, lens.1)?;
        Ok(self.stream.synchronize()?)
    }

    /// Puts a call on the stream.
    pub(crate) fn call(&mut self, comm: &mut Communicator, case: &Case) -> Result<()> {
        let buffers = match case.placement {
            Placement::OutOfPlace => {
                let [sent, received] = case.side_bytes();
                let send = self.send.device_ref(&self.stream, sent);
                Buffers::OutOfPlace { send, recv: self.recv.device_ref(&self.stream, received) }
            }
            Placement::InPlace => {
                Buffers::InPlace(self.recv.device_ref(&self.stream, case.bytes()))
            }
        };
        Ok(comm.on_stream(&self.stream).call(&case.call(), buffers)?)
    }

    /// Waits for all calls so far.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// Reports errors of the calls so far.
    pub(crate) fn check(&self, comm: &mut Communicator) -> Result<()> {
        Ok(comm.on_stream(&self.stream).check()?)
    }
}
