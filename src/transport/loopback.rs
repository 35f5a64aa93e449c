//! Links between two threads of one process: the shared-memory FIFO in anonymous memory.

use std::sync::Arc;

use super::fifo::{self, Fifo, FifoMemory};
use super::{Bell, Rx, Tx};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;

/// Both ends of a new link.
///
/// # Errors
/// If the system refuses the memory.
///
/// # Panics
/// If the shape has no slot, or 2^31 or more.
pub fn pair(shape: SlotShape) -> Result<(Box<dyn Tx>, Box<dyn Rx>)> {
    pair_with_doorbells(shape, [None, None])
}

/// As [`pair`], for a sender and a receiver that sleep at these doorbells, if there are any.
///
/// # Errors
/// As [`pair`].
///
/// # Panics
/// As [`pair`].
pub fn pair_with_doorbells(
    shape: SlotShape,
    [sender, receiver]: [Option<Arc<Bell>>; 2],
) -> Result<(Box<dyn Tx>, Box<dyn Rx>)> {
    let shapes = [shape];
    let region = Arc::new(Region::anonymous_on_use(fifo::footprint(&shapes))?);
    let memory = FifoMemory::whole(region, shapes.len());
    let end = |bell| Fifo::new(&memory, (&shapes, 0), None, bell);
    Ok((Box::new(fifo::Tx::new(end(receiver))), Box::new(fifo::Rx::new(end(sender)))))
}
