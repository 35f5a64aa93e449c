//! A rank's two buffers on its device: images of those on the host, guards and all, so that what
//! is filled and judged there is what calls work on here. May touch: cudarc.
//! Law: nothing is allocated or freed while a call is under way at any rank.

use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::{CudaSlice, CudaStream};
use ringreduce::Communicator;

use super::{Gpu, call};
use crate::buffer::{GUARD, Guarded};
use crate::collective::{Case, Form};
use crate::sizes::human;

/// Where the buffer begins in the memory: as whoever allocates it alone has it.
const ALIGN: usize = 512;

/// One buffer.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) memory: CudaSlice<u8>,
    /// Where the buffer begins in it.
    pub(super) at: usize,
}

impl Image {
    fn new(stream: &Arc<CudaStream>, capacity: usize, unalign: usize) -> Result<Self> {
        let whole = capacity.saturating_add(ALIGN + GUARD + unalign);
        let memory = stream.alloc_zeros(whole).with_context(|| {
            format!("no memory on the device for a buffer of {}: lower -e", human(capacity))
        })?;
        Ok(Self { memory, at: ALIGN + unalign })
    }

    fn upload(&mut self, stream: &Arc<CudaStream>, host: &Guarded, len: usize) -> Result<()> {
        let mut there = self.memory.slice_mut(self.at - GUARD..self.at + len + GUARD);
        Ok(stream.memcpy_htod(host.guarded(len), &mut there)?)
    }

    fn download(&self, stream: &Arc<CudaStream>, host: &mut Guarded, len: usize) -> Result<()> {
        let there = self.memory.slice(self.at - GUARD..self.at + len + GUARD);
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
    /// Room for so many bytes each.
    pub(crate) fn new(gpu: &Gpu, capacity: usize, unalign: usize) -> Result<Self> {
        let new = || Image::new(&gpu.stream, capacity, unalign);
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
