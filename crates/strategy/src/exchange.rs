//! The exchange of a full bucket of gradients, after the backward pass or beside it, which fills
//! the next bucket meanwhile: the same calls on hosts and on devices.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};
use gradients::Exchange;
use ringreduce::{Communicator, ReduceOp, Registered, Result};

use crate::Strategy;
use crate::strategy::{Owner, Reduction};
use crate::trace::Exchanges;

/// Calls of all ranks on memory of a host or of a device. Sums are in place, and rank 0 is the
/// root.
pub(crate) trait Calls {
    type Memory<'a>: ?Sized;

    fn all_reduce(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
    fn reduce(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
    fn broadcast(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
    fn reduce_scatter(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
    fn all_gather(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
    /// Adds up copies along the edges to the parent, then copies the sum along the same edges back.
    fn over_edges(&mut self, bucket: &mut Self::Memory<'_>) -> Result<()>;
}

/// Reduces the gradients of a bucket.
pub(crate) fn reduce<C: Calls>(
    strategy: Strategy,
    calls: &mut C,
    gradients: &mut C::Memory<'_>,
) -> Result<()> {
    match strategy.reduction() {
        Reduction::AllReduce => calls.all_reduce(gradients),
        Reduction::ReduceBroadcast => {
            calls.reduce(gradients)?;
            calls.broadcast(gradients)
        }
        Reduction::Reduce => calls.reduce(gradients),
        Reduction::ReduceScatter => calls.reduce_scatter(gradients),
        Reduction::Tree | Reduction::Star => calls.over_edges(gradients),
    }
}

/// Gives all ranks the parameters of a bucket that their owners have updated.
pub(crate) fn publish<C: Calls>(
    strategy: Strategy,
    calls: &mut C,
    parameters: &mut C::Memory<'_>,
) -> Result<()> {
    match strategy.owner() {
        Owner::All => Ok(()),
        Owner::Root => calls.broadcast(parameters),
        Owner::Slice => calls.all_gather(parameters),
    }
}

/// Calls on the memory of a host.
pub(crate) struct HostCalls<'a> {
    pub(crate) comm: &'a mut Communicator,
    pub(crate) strategy: Strategy,
    /// The values from another rank, until they are added up.
    pub(crate) scratch: &'a mut Vec<f32>,
}

impl Calls for HostCalls<'_> {
    type Memory<'a> = [f32];

    fn all_reduce(&mut self, bucket: &mut [f32]) -> Result<()> {
        self.comm.all_reduce(bucket, ReduceOp::Sum).map(drop)
    }

    fn reduce(&mut self, bucket: &mut [f32]) -> Result<()> {
        self.comm.reduce(bucket, ReduceOp::Sum, 0)
    }

    fn broadcast(&mut self, bucket: &mut [f32]) -> Result<()> {
        self.comm.broadcast(bucket, 0)
    }

    fn reduce_scatter(&mut self, bucket: &mut [f32]) -> Result<()> {
        self.comm.reduce_scatter_in_place(bucket, ReduceOp::Sum)
    }

    fn all_gather(&mut self, bucket: &mut [f32]) -> Result<()> {
        self.comm.all_gather_in_place(bucket)
    }

    fn over_edges(&mut self, bucket: &mut [f32]) -> Result<()> {
        let Self { comm, strategy, scratch } = self;
        let (rank, size) = (comm.rank(), comm.size());
        let children = strategy.children(rank, size);
        if scratch.len() < bucket.len() && !children.is_empty() {
            **scratch = vec![0.0; bucket.len()];
        }
        for child in &children {
            let theirs = &mut scratch[..bucket.len()];
            comm.recv(theirs, *child)?;
            bucket.iter_mut().zip(theirs).for_each(|(sum, it)| *sum += *it);
        }
        if let Some(parent) = strategy.parent(rank) {
            comm.send(bucket, parent)?;
            comm.recv(bucket, parent)?;
        }
        children.iter().rev().try_for_each(|child| comm.send(bucket, *child))
    }
}

/// Whether exchanges beside the backward pass would only take the CPU from it: all ranks share the
/// memory of a host, so no exchange waits for a wire, and there are fewer than two CPUs for each.
/// Sharded gradients have memory for an exchange beside the pass in any case.
pub(crate) fn is_serial(strategy: Strategy, comm: &Communicator) -> bool {
    let is_wired = comm.transports().contains(&"tcp");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    !strategy.keeps_own_sums() && !is_wired && cpus < 2 * comm.size()
}

/// The memory of [`HostCalls::scratch`], which a trainer keeps.
pub(crate) type Scratch = Arc<Mutex<Vec<f32>>>;

/// The exchange of a strategy, which enters itself into the trace.
pub(crate) fn exchange(
    strategy: Strategy,
    exchanges: Arc<Exchanges>,
    scratch: Scratch,
) -> Exchange {
    Arc::new(move |comm: &mut Communicator, bucket: &mut [u8], _| {
        let scratch = &mut *scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = HostCalls { comm, strategy, scratch };
        exchanges.record(bucket.len(), || reduce(strategy, &mut calls, cast_slice_mut(bucket)))
    })
}

/// The memory of a bucket's parameters. It is registered if ranks read it of each other; else
/// ordinary memory is faster.
#[derive(Debug)]
pub(crate) enum ValueMemory {
    Own(Vec<f32>),
    Registered(Registered<'static, f32>),
}

impl ValueMemory {
    pub(crate) fn new(strategy: Strategy, comm: &Communicator, len: usize) -> Result<Self> {
        match strategy.has_parts() {
            true => comm.alloc(len).map(Self::Registered),
            false => Ok(Self::Own(vec![0.0; len])),
        }
    }
}

impl Deref for ValueMemory {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Own(values) => values,
            Self::Registered(values) => values,
        }
    }
}

impl DerefMut for ValueMemory {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Own(values) => values,
            Self::Registered(values) => values,
        }
    }
}

/// The elements of a bucket of `f32`.
pub(crate) fn floats(bytes: &[u8]) -> &[f32] {
    cast_slice(bytes)
}
