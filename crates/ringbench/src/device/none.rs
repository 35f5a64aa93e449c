//! A ringbench without the feature `cuda`: there is no device. Pure.

use anyhow::Result;
use ringreduce::Communicator;

use super::{Flags, Seated, Software};
use crate::buffer::Guarded;
use crate::cli::Memory;
use crate::collective::{Case, Form};

/// There is none.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) seated: Seated,
    pub(crate) software: Software,
    never: Never,
}

#[derive(Clone, Copy, Debug)]
enum Never {}

/// There is none.
#[derive(Debug)]
pub(crate) struct Pair(Never);

/// There are no queues.
pub(crate) const fn make_queues(_: usize) {}

impl Gpu {
    /// None.
    #[allow(clippy::unnecessary_wraps, reason = "as with devices")]
    pub(crate) const fn open(_: &mut Communicator, _: &Flags) -> Result<Option<Self>> {
        Ok(None)
    }
}

impl Pair {
    pub(crate) const fn new(
        _: &mut Communicator,
        gpu: &Gpu,
        _: Memory,
        _: usize,
        _: usize,
    ) -> Result<Self> {
        match gpu.never {}
    }

    pub(crate) const fn upload(&mut self, _: [&Guarded; 2], _: (usize, usize)) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn download(&self, _: [&mut Guarded; 2], _: (usize, usize)) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn call(&mut self, _: &mut Communicator, _: &Case, _: Form) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn wait(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) const fn check(&self, _: &mut Communicator) -> Result<()> {
        match self.0 {}
    }
}
