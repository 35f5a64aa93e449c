//! Links between two processes of one host: the FIFO in a memfd, which the sender creates and
//! passes to the receiver over a Unix stream. The stream stays open, so that its end shows the
//! peer's.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use socket2::Socket;

use super::descriptor_passing::{pass, receive};
use super::{Rx, Tx, fifo};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;

/// A Unix stream to the process of a peer, which hangs up when that process ends. All that look
/// after the peer share it, so that a rank has one descriptor for each.
pub type LivenessStream = Arc<Socket>;

/// The Unix streams to the process at the other end of a link.
#[derive(Debug)]
pub struct PeerStreams {
    /// The stream of the control channel, which the links in both directions share.
    pub liveness: LivenessStream,
    /// Passes descriptors while the link is in use, from each rank to the next one alone.
    pub descriptors: Option<UnixStream>,
}

/// The sending end; `streams` lead to the receiver, which errors call `peer`.
///
/// # Errors
/// If the system refuses the memory, or the peer does not take it.
pub fn sender(shape: SlotShape, streams: PeerStreams, peer: &str) -> Result<Box<dyn Tx>> {
    let (region, fd) = Region::shared(fifo::footprint(shape))?;
    pass(&streams.liveness, fd, peer)?;
    Ok(Box::new(fifo::Tx::new(Arc::new(region), shape, Some(streams))))
}

/// The receiving end; `streams` lead to the sender, which errors call `peer`.
///
/// # Errors
/// If no memory comes before the deadline, or memory of another size.
pub fn receiver(
    shape: SlotShape,
    streams: PeerStreams,
    peer: &str,
    deadline: Instant,
) -> Result<Box<dyn Rx>> {
    let fd = receive(&streams.liveness, "link's memory", peer, deadline)?;
    let region = Region::open(fd.as_fd(), fifo::footprint(shape), peer)?;
    Ok(Box::new(fifo::Rx::new(Arc::new(region), shape, Some(streams))))
}
