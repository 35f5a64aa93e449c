//! Synchronous strategies whose gradients and parameters are on CUDA devices. The framework
//! computes and updates by kernels of its own; the exchanges are put on the same stream, so the
//! host waits for nothing. Law: after `reduce` the owned part of the gradients is their sum over
//! all ranks; after `publish` all ranks have all parameters.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use ringreduce::{Communicator, DeviceMemory, Error, ReduceOp, Result};

use crate::exchange::owned;
use crate::{CrossDeviceOp, Strategy};

/// The gradients and the parameters of one model on one device, each as one vector of `f32`.
///
/// A step: write the gradients by kernels on the stream, [`Self::reduce`], update the
/// parameters of [`Self::owned`] by kernels on the stream, [`Self::publish`].
pub struct DeviceTrainer {
    comm: Communicator,
    stream: Arc<CudaStream>,
    strategy: Strategy,
    /// Both are as long as a multiple of the number of ranks.
    gradients: DeviceMemory<f32>,
    parameters: DeviceMemory<f32>,
    elements: usize,
}

impl DeviceTrainer {
    /// Memory for `elements` gradients and parameters, all 0, on the device of `stream`. All ranks
    /// call this.
    ///
    /// # Errors
    /// If the strategy adds up copies on the host (naive, hierarchical copy); if the device lacks
    /// memory or the driver refuses something; and if a peer is lost.
    pub fn new(
        mut comm: Communicator,
        stream: &Arc<CudaStream>,
        strategy: Strategy,
        elements: usize,
    ) -> Result<Self> {
        let adds_copies = matches!(
            strategy,
            Strategy::Naive | Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy)
        );
        if adds_copies {
            let expected = "a strategy without additions by hand, such as mirrored";
            let given = strategy.name().to_owned();
            return Err(Error::argument("DeviceTrainer::new", "strategy", given, expected));
        }
        comm.use_device(stream.context())?;
        let len = elements.next_multiple_of(comm.size());
        let gradients = comm.alloc_device(stream, len)?;
        let parameters = comm.alloc_device(stream, len)?;
        let stream = Arc::clone(stream);
        Ok(Self { comm, stream, strategy, gradients, parameters, elements })
    }

    /// The gradients, to be written by work on the stream. Elements behind the last one are there
    /// so that all ranks have equal parts.
    pub fn gradients(&mut self) -> &mut DeviceMemory<f32> {
        &mut self.gradients
    }

    /// The parameters, to be written by work on the stream: all at rank 0 before
    /// [`Self::broadcast`], and the owned part after each [`Self::reduce`].
    pub fn parameters(&mut self) -> &mut DeviceMemory<f32> {
        &mut self.parameters
    }

    /// The elements that this rank updates.
    #[must_use]
    pub fn owned(&self) -> Range<usize> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let owned = owned(self.strategy, rank, size, self.elements.next_multiple_of(size));
        owned.start.min(self.elements)..owned.end.min(self.elements)
    }

    /// Gives all ranks the parameters of rank 0. All ranks call this.
    ///
    /// # Errors
    /// If a call failed before on the stream, or the device refuses something.
    pub fn broadcast(&mut self) -> Result<()> {
        self.comm.on_stream(&self.stream).broadcast(&mut self.parameters, 0)
    }

    /// Adds up the gradients of all ranks, for the ranks that update with them. All ranks call
    /// this.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn reduce(&mut self) -> Result<()> {
        let (sum, gradients) = (ReduceOp::Sum, &mut self.gradients);
        let mut calls = self.comm.on_stream(&self.stream);
        match self.strategy {
            Strategy::CentralStorage => calls.reduce(gradients, sum, 0),
            Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice) => {
                calls.reduce(gradients, sum, 0)?;
                calls.broadcast(gradients, 0)
            }
            Strategy::ShardedOptimizer | Strategy::ShardedGradients => {
                calls.reduce_scatter_in_place(gradients, sum)
            }
            Strategy::Mirrored(_) | Strategy::Naive => calls.all_reduce(gradients, sum),
        }
    }

    /// Gives all ranks the parameters that their owners have updated. All ranks call this.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn publish(&mut self) -> Result<()> {
        let parameters = &mut self.parameters;
        let mut calls = self.comm.on_stream(&self.stream);
        match self.strategy {
            Strategy::Mirrored(_) | Strategy::Naive => Ok(()),
            Strategy::CentralStorage => calls.broadcast(parameters, 0),
            Strategy::ShardedOptimizer | Strategy::ShardedGradients => {
                calls.all_gather_in_place(parameters)
            }
        }
    }

    /// The error of a call that has failed on the stream after it had returned.
    ///
    /// # Errors
    /// The first such failure.
    pub fn check(&mut self) -> Result<()> {
        self.comm.on_stream(&self.stream).check()
    }
}

impl std::fmt::Debug for DeviceTrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("DeviceTrainer");
        f.field("comm", &self.comm).field("strategy", &self.strategy).finish_non_exhaustive()
    }
}
