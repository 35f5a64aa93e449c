//! Links between two threads of one process: the shared-memory FIFO in anonymous memory.

use std::sync::Arc;

use super::{Rx, Tx, fifo};
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
    let region = Arc::new(Region::anonymous(fifo::footprint(shape))?);
    let tx = fifo::Tx::new(Arc::clone(&region), shape, None);
    Ok((Box::new(tx), Box::new(fifo::Rx::new(region, shape, None))))
}
