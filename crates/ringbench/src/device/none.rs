//! A build without the feature `cuda`, in which no device exists: values of these types can't be
//! made.

use std::convert::Infallible;

use anyhow::Result;
use ringreduce::Communicator;

use super::{DeviceInfo, Flags, Software};
use crate::cli::Memory;
use crate::measure::buffer::Guarded;
use crate::measure::case::Case;

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device_info: DeviceInfo,
    pub(crate) software: Software,
    never: Infallible,
}

#[derive(Debug)]
pub(crate) struct BufferPair(Infallible);

type Comm = Communicator;
type Lens = (usize, usize);

pub(crate) const fn set_hardware_queues(_: usize) {}

impl Gpu {
    #[allow(clippy::unnecessary_wraps, reason = "as with devices")]
    pub(crate) const fn open(_: &mut Comm, _: &Flags) -> Result<Option<Self>> {
        Ok(None)
    }
}

impl BufferPair {
    pub(crate) const fn new(
        _: &mut Comm,
        gpu: &Gpu,
        _: Memory,
        _: usize,
        _: usize,
    ) -> Result<Self> {
        match gpu.never {}
    }

    pub(crate) const fn upload(&mut self, _: [&Guarded; 2], _: Lens) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn download(&self, _: [&mut Guarded; 2], _: Lens) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn call(&mut self, _: &mut Comm, _: &Case) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn wait(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn check(&self, _: &mut Comm) -> Result<()> {
        match self.0 {}
    }
}
