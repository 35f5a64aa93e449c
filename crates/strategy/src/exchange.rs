//! What happens to a full bucket of gradients, and whether it happens beside the backward pass,
//! which fills the next bucket meanwhile.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};
use gradients::Exchange;
use ringreduce::{Communicator, DataType, ReduceOp, Registered, Result};

use crate::cost::tree_children;
use crate::trace::Exchanges;
use crate::{CrossDeviceOp, Strategy};

/// Which elements of a bucket this rank updates, once the exchange is over.
pub(crate) fn owned(strategy: Strategy, rank: usize, size: usize, len: usize) -> Range<usize> {
    match strategy {
        Strategy::Mirrored(_) | Strategy::Naive => 0..len,
        Strategy::CentralStorage if rank == 0 => 0..len,
        Strategy::CentralStorage => 0..0,
        Strategy::ShardedOptimizer | Strategy::ShardedGradients => {
            len / size * rank..len / size * (rank + 1)
        }
    }
}

/// The elements of a bucket whose moments this rank keeps a copy of, in case their owner is lost:
/// those of the rank before it.
pub(crate) fn copied(strategy: Strategy, rank: usize, size: usize, len: usize) -> Range<usize> {
    let before = (rank + size - 1) % size;
    match strategy {
        Strategy::Mirrored(_) | Strategy::Naive => 0..0,
        _ if size == 1 => 0..0,
        _ => owned(strategy, before, size, len),
    }
}

/// Whether exchanges beside the backward pass would only take the CPU from it: all ranks share the
/// memory of a host, so no exchange waits for a wire, and there are fewer than two CPUs for each.
/// Sharded gradients have memory for an exchange beside the pass in any case.
pub(crate) fn is_serial(strategy: Strategy, comm: &Communicator) -> bool {
    let is_wired = comm.transports().contains(&"tcp");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    strategy != Strategy::ShardedGradients && !is_wired && cpus < 2 * comm.size()
}

/// What comes from another rank, until it is added up.
pub(crate) type Scratch = Arc<Mutex<Vec<f32>>>;

/// The exchange of a strategy, which enters itself into the trace.
pub(crate) fn exchange(
    strategy: Strategy,
    exchanges: Arc<Exchanges>,
    scratch: Scratch,
) -> Exchange {
    Arc::new(move |comm: &mut Communicator, bucket: &mut [u8], dtype| {
        let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.record(bucket.len(), || reduce(strategy, comm, bucket, dtype, &mut scratch))
    })
}

fn reduce(
    strategy: Strategy,
    comm: &mut Communicator,
    bucket: &mut [u8],
    dtype: DataType,
    scratch: &mut Vec<f32>,
) -> Result<()> {
    let sum = ReduceOp::Sum;
    match strategy {
        Strategy::Mirrored(CrossDeviceOp::AllReduce) => comm.all_reduce_bytes(bucket, dtype, sum),
        Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice) => {
            comm.reduce_bytes(bucket, dtype, sum, 0)?;
            comm.broadcast_bytes(bucket, dtype, 0)
        }
        Strategy::CentralStorage => comm.reduce_bytes(bucket, dtype, sum, 0),
        Strategy::ShardedOptimizer | Strategy::ShardedGradients => {
            comm.reduce_scatter_in_place_bytes(bucket, dtype, sum)
        }
        Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy) | Strategy::Naive => {
            let (children, parent) = edges(strategy, comm.rank(), comm.size());
            over_edges(comm, cast_slice_mut(bucket), &children, parent, scratch)
        }
    }
}

/// The children and the parent of a rank, where ranks add up copies by hand.
pub(crate) fn edges(strategy: Strategy, rank: usize, size: usize) -> (Vec<usize>, Option<usize>) {
    match strategy {
        // The parent's number has one bit less.
        Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy) => {
            (tree_children(rank, size).collect(), (rank > 0).then(|| rank & (rank - 1)))
        }
        Strategy::Naive if rank == 0 => ((1..size).collect(), None),
        Strategy::Naive => (Vec::new(), Some(0)),
        _ => (Vec::new(), None),
    }
}

/// Adds up along the edges to the parent, then copies the sum along the same edges back.
fn over_edges(
    comm: &mut Communicator,
    bucket: &mut [f32],
    children: &[usize],
    parent: Option<usize>,
    scratch: &mut Vec<f32>,
) -> Result<()> {
    if scratch.len() < bucket.len() && !children.is_empty() {
        *scratch = vec![0.0; bucket.len()];
    }
    for child in children {
        let theirs = &mut scratch[..bucket.len()];
        comm.recv(theirs, *child)?;
        bucket.iter_mut().zip(theirs).for_each(|(sum, it)| *sum += *it);
    }
    if let Some(parent) = parent {
        comm.send(bucket, parent)?;
        comm.recv(bucket, parent)?;
    }
    children.iter().rev().try_for_each(|child| comm.send(bucket, *child))
}

/// The memory of a bucket's parameters: registered if ranks read it of each other, which other
/// memory is faster without.
#[derive(Debug)]
pub(crate) enum ValueMemory {
    Own(Vec<f32>),
    Registered(Registered<'static, f32>),
}

impl ValueMemory {
    pub(crate) fn new(strategy: Strategy, comm: &Communicator, len: usize) -> Result<Self> {
        match strategy {
            Strategy::Mirrored(_) | Strategy::Naive => Ok(Self::Own(vec![0.0; len])),
            _ => comm.alloc(len).map(Self::Registered),
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

/// Gives all ranks the parameters of a bucket that their owners have updated.
pub(crate) fn publish(
    strategy: Strategy,
    comm: &mut Communicator,
    values: &mut [f32],
) -> Result<()> {
    match strategy {
        Strategy::Mirrored(_) | Strategy::Naive => Ok(()),
        Strategy::CentralStorage => comm.broadcast(values, 0),
        Strategy::ShardedOptimizer | Strategy::ShardedGradients => comm.all_gather_in_place(values),
    }
}

/// The elements of a bucket of `f32`.
pub(crate) fn floats(bytes: &[u8]) -> &[f32] {
    cast_slice(bytes)
}
