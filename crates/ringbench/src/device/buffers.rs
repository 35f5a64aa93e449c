//! A rank's two buffers on its device: images of those on the host, guards and all, so that what
//! is filled and judged there is what calls work on here. May touch: cudarc.
//! Law: nothing is allocated or freed while a call is under way at any rank.

use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};
use ringreduce::{Communicator, DeviceMemory};

use super::{Gpu, call};
use crate::buffer::{GUARD, Guarded};
use crate::cli::Memory as Kind;
use crate::collective::{Case, Form};
use crate::sizes::human;

/// Where the buffer begins in the memory: as whoever allocates it alone has it.
const ALIGN: usize = 512;

#[derive(Debug)]
enum Memory {
    Plain(CudaSlice<u8>),
    Together(DeviceMemory<u8>),
}

/// One buffer.
#[derive(Debug)]
pub(super) struct Image {
    memory: Memory,
    /// Where the buffer begins in it: at all ranks alike.
    at: usize,
}

impl Image {
    fn new(
        comm: &mut Communicator,
        stream: &Arc<CudaStream>,
        kind: Kind,
        capacity: usize,
        unalign: usize,
    ) -> Result<Self> {
        let whole = capacity.saturating_add(ALIGN + GUARD + unalign);
        let memory = match kind {
            Kind::Plain | Kind::Register => {
                stream.alloc_zeros(whole).map(Memory::Plain).map_err(anyhow::Error::from)
            }
            Kind::Alloc => {
                comm.alloc_device(stream, whole).map(Memory::Together).map_err(anyhow::Error::from)
            }
        };
        let memory = memory.with_context(|| {
            format!("no memory on the device for a buffer of {}: lower -e", human(capacity))
        })?;
        Ok(Self { memory, at: ALIGN + unalign })
    }

    fn slice(&self) -> &CudaSlice<u8> {
        match &self.memory {
            Memory::Plain(memory) => memory,
            Memory::Together(memory) => memory,
        }
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, u8> {
        match &mut self.memory {
            Memory::Plain(memory) => memory.as_view_mut(),
            Memory::Together(memory) => memory.view_mut(),
        }
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        self.slice().stream()
    }

    /// Where the buffer begins, for a call on the stream that reads it.
    pub(super) fn start<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let (start, kept) = self.slice().device_ptr(stream);
        (start + self.at as u64, kept)
    }

    /// For one that writes it.
    pub(super) fn start_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let (start, kept) = match &mut self.memory {
            Memory::Plain(memory) => memory.device_ptr_mut(stream),
            Memory::Together(memory) => memory.device_ptr_mut(stream),
        };
        (start + self.at as u64, kept)
    }

    fn upload(&mut self, stream: &Arc<CudaStream>, host: &Guarded, len: usize) -> Result<()> {
        let range = self.at - GUARD..self.at + len + GUARD;
        let mut whole = self.view_mut();
        Ok(stream.memcpy_htod(host.guarded(len), &mut whole.slice_mut(range))?)
    }

    fn download(&self, stream: &Arc<CudaStream>, host: &mut Guarded, len: usize) -> Result<()> {
        let there = self.slice().slice(self.at - GUARD..self.at + len + GUARD);
        Ok(stream.memcpy_dtoh(&there, host.guarded_mut(len))?)
    }
}

/// What a rank sends from and receives into on its device.
#[derive(Debug)]
pub(crate) struct Pair {
    stream: Arc<CudaStream>,
    send: Image,
    recv: Image,
}

impl Pair {
    /// Room for so many bytes each; all ranks together.
    pub(crate) fn new(
        comm: &mut Communicator,
        gpu: &Gpu,
        memory: Kind,
        capacity: usize,
        unalign: usize,
    ) -> Result<Self> {
        let mut new = || Image::new(comm, &gpu.stream, memory, capacity, unalign);
        let (send, recv) = (new()?, new()?);
        gpu.stream.synchronize()?;
        Ok(Self { stream: Arc::clone(&gpu.stream), send, recv })
    }

    /// Both buffers, of so many bytes, as they are on the host.
    pub(crate) fn upload(&mut self, host: [&Guarded; 2], lens: (usize, usize)) -> Result<()> {
        let [send, recv] = host;
        self.send.upload(&self.stream, send, lens.0)?;
        self.recv.upload(&self.stream, recv, lens.1)?;
        Ok(self.stream.synchronize()?)
    }

    /// To the host.
    pub(crate) fn download(&self, host: [&mut Guarded; 2], lens: (usize, usize)) -> Result<()> {
        let [send, recv] = host;
        self.send.download(&self.stream, send, lens.0)?;
        self.recv.download(&self.stream, recv, lens.1)?;
        Ok(self.stream.synchronize()?)
    }

    /// Puts the call on the stream.
    pub(crate) fn call(&mut self, comm: &mut Communicator, case: &Case, form: Form) -> Result<()> {
        let Self { stream, send, recv } = self;
        match form {
            Form::OutOfPlace => call::apart(comm, stream, case, [send, recv]),
            Form::InPlace => call::in_place(comm, stream, case, recv),
        }
    }

    /// Until all calls so far are done.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// What failed of the calls so far?
    pub(crate) fn check(&self, comm: &mut Communicator) -> Result<()> {
        Ok(comm.on_stream(&self.stream).check()?)
    }
}
