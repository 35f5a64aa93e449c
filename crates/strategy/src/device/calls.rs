//! The calls of an exchange on a stream. Copies of gradients are added up along edges between two
//! ranks without a kernel of this crate: a reduction among the two ranks of an edge is a copy and
//! an addition. Law: additions and messages are those of the same strategy on the host.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, CudaViewMut};
use ringreduce::{Communicator, ReduceOp, Result};

use crate::Strategy;
use crate::exchange::Calls;

/// A communicator for each edge of this rank; the parent is its rank 0. There are none where a
/// strategy adds up no copies.
#[derive(Debug, Default)]
pub(super) struct Edges {
    children: Vec<Communicator>,
    parent: Option<Communicator>,
}

impl Edges {
    pub(super) fn new(comm: &mut Communicator, strategy: Strategy) -> Result<Self> {
        let (rank, size) = (comm.rank(), comm.size());
        let mut own = Self::default();
        for child in 1..size {
            let Some(parent) = strategy.parent(child) else { break };
            let is_mine = rank == child || rank == parent;
            let pair = comm.split(is_mine.then_some(0), 0)?;
            if rank == child { own.parent = pair } else { own.children.extend(pair) }
        }
        Ok(own)
    }

    pub(super) fn use_device(&mut self, context: &Arc<CudaContext>) -> Result<()> {
        // Each rank waits for its parent first, so no ranks wait for each other in a circle.
        self.parent.iter_mut().chain(&mut self.children).try_for_each(|it| it.use_device(context))
    }

    pub(super) fn check(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let mut all = self.parent.iter_mut().chain(&mut self.children);
        all.try_for_each(|it| it.on_stream(stream).check())
    }
}

/// Calls on the memory of a device, on this stream.
pub(super) struct DeviceCalls<'a> {
    pub(super) comm: &'a mut Communicator,
    pub(super) edges: &'a mut Edges,
    pub(super) stream: &'a Arc<CudaStream>,
}

impl Calls for DeviceCalls<'_> {
    type Memory<'a> = CudaViewMut<'a, f32>;

    fn all_reduce(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        self.comm.on_stream(self.stream).all_reduce(bucket, ReduceOp::Sum)
    }

    fn reduce(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        self.comm.on_stream(self.stream).reduce(bucket, ReduceOp::Sum, 0)
    }

    fn broadcast(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        self.comm.on_stream(self.stream).broadcast(bucket, 0)
    }

    fn reduce_scatter(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        self.comm.on_stream(self.stream).reduce_scatter_in_place(bucket, ReduceOp::Sum)
    }

    fn all_gather(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        self.comm.on_stream(self.stream).all_gather_in_place(bucket)
    }

    fn over_edges(&mut self, bucket: &mut CudaViewMut<'_, f32>) -> Result<()> {
        let Self { edges: Edges { children, parent }, stream, .. } = self;
        for child in children.iter_mut() {
            child.on_stream(stream).reduce(bucket, ReduceOp::Sum, 0)?;
        }
        if let Some(parent) = parent {
            parent.on_stream(stream).reduce(bucket, ReduceOp::Sum, 0)?;
            parent.on_stream(stream).broadcast(bucket, 0)?;
        }
        children.iter_mut().rev().try_for_each(|child| child.on_stream(stream).broadcast(bucket, 0))
    }
}
