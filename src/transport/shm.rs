//! Links between two processes of one host: the FIFO in a memfd that the sender makes and passes
//! to the receiver over a Unix socket. The socket stays open: it ends with the peer's process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use super::descriptor_passing::{pass, receive};
use super::{Rx, Tx, fifo};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;

/// The sending end, over the connection to its receiver; `peer` names that one in errors.
///
/// # Errors
/// If the memory can't be had or not be passed on.
pub fn sender(shape: SlotShape, life: UnixStream, peer: &str) -> Result<Box<dyn Tx>> {
    let (region, fd) = Region::shared(fifo::footprint(shape))?;
    pass(&life, fd, peer)?;
    Ok(Box::new(fifo::Tx::new(Arc::new(region), shape, Some(life))))
}

/// The receiving end, over the connection from its sender; `peer` names that one in errors.
///
/// # Errors
/// If nothing comes before the deadline, or not what was agreed.
pub fn receiver(
    shape: SlotShape,
    life: UnixStream,
    peer: &str,
    deadline: Instant,
) -> Result<Box<dyn Rx>> {
    let fd = receive(&life, "link's memory", peer, deadline)?;
    let region = Region::open(fd.as_fd(), fifo::footprint(shape), peer)?;
    Ok(Box::new(fifo::Rx::new(Arc::new(region), shape, Some(life))))
}
