//! Links between two processes of one host: the FIFO in a memfd, which the sender creates and
//! passes to the receiver over a Unix socket. The socket stays open, so that its end shows the
//! peer's.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use super::descriptor_passing::{pass, receive};
use super::{Rx, Tx, fifo};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;

/// The sending end; `peer_stream` leads to the receiver, which errors call `peer`.
///
/// # Errors
/// If the system refuses the memory, or the peer does not take it.
pub fn sender(shape: SlotShape, peer_stream: UnixStream, peer: &str) -> Result<Box<dyn Tx>> {
    let (region, fd) = Region::shared(fifo::footprint(shape))?;
    pass(&peer_stream, fd, peer)?;
    Ok(Box::new(fifo::Tx::new(Arc::new(region), shape, Some(peer_stream))))
}

/// The receiving end; `peer_stream` leads to the sender, which errors call `peer`.
///
/// # Errors
/// If no memory comes before the deadline, or memory of another size.
pub fn receiver(
    shape: SlotShape,
    peer_stream: UnixStream,
    peer: &str,
    deadline: Instant,
) -> Result<Box<dyn Rx>> {
    let fd = receive(&peer_stream, "link's memory", peer, deadline)?;
    let region = Region::open(fd.as_fd(), fifo::footprint(shape), peer)?;
    Ok(Box::new(fifo::Rx::new(Arc::new(region), shape, Some(peer_stream))))
}
