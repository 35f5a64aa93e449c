//! Links between two threads of one process: the shared-memory FIFO in anonymous memory.

use std::sync::Arc;

use super::{Doorbell, Rx, Tx, fifo};
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
    let (tx, rx) = ends(shape)?;
    Ok((Box::new(tx), Box::new(rx)))
}

/// As [`pair`], for a sender and a receiver that sleep at these doorbells.
///
/// # Errors
/// As [`pair`].
///
/// # Panics
/// As [`pair`].
pub fn pair_with_doorbells(
    shape: SlotShape,
    [sender, receiver]: [Arc<Doorbell>; 2],
) -> Result<(Box<dyn Tx>, Box<dyn Rx>)> {
    let (tx, rx) = ends(shape)?;
    Ok((Box::new(tx.with_doorbell(receiver)), Box::new(rx.with_doorbell(sender))))
}

fn ends(shape: SlotShape) -> Result<(fifo::Tx, fifo::Rx)> {
    let region = Arc::new(Region::anonymous(fifo::footprint(shape))?);
    let tx = fifo::Tx::new((Arc::clone(&region), 0), shape, None);
    Ok((tx, fifo::Rx::new((region, 0), shape, None)))
}
