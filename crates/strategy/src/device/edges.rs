//! Copies of gradients that are added up along edges between two ranks, without a kernel of this
//! crate: a reduction among the two ranks of an edge is a copy and an addition.
//! Law: additions and messages are those of the same strategy on the host.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, CudaViewMut};
use ringreduce::{Communicator, ReduceOp, Result};

use crate::Strategy;
use crate::exchange::edges;

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
            let (_, Some(parent)) = edges(strategy, child, size) else { break };
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

    /// Adds up along the edges to the parent, then copies the sum along the same edges back.
    pub(super) fn all_reduce(
        &mut self,
        stream: &Arc<CudaStream>,
        gradients: &mut CudaViewMut<'_, f32>,
    ) -> Result<()> {
        for child in &mut self.children {
            child.on_stream(stream).reduce(gradients, ReduceOp::Sum, 0)?;
        }
        if let Some(parent) = &mut self.parent {
            parent.on_stream(stream).reduce(gradients, ReduceOp::Sum, 0)?;
            parent.on_stream(stream).broadcast(gradients, 0)?;
        }
        let mut children = self.children.iter_mut().rev();
        children.try_for_each(|child| child.on_stream(stream).broadcast(gradients, 0))
    }

    pub(super) fn check(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let mut all = self.parent.iter_mut().chain(&mut self.children);
        all.try_for_each(|it| it.on_stream(stream).check())
    }
}
