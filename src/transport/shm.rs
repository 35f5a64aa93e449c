//! Links between two processes of one host: the FIFO in a memfd, which the sender creates and
//! passes to the receiver over a Unix stream. The stream stays open, so that its end shows the
//! peer's.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use socket2::Socket;

use super::descriptor_passing::{pass, receive};
use super::fifo::{self, Fifo};
use super::{Doorbell, Rx, Tx};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;
use crate::sync::Instant;

/// A Unix stream to the process of a peer, which hangs up when that process ends. All that look
/// after the peer share it, so that a rank has one descriptor for each.
pub type LivenessStream = Arc<Socket>;

/// The Unix streams to the process at the other end of a link.
#[derive(Clone, Debug)]
pub struct PeerStreams {
    /// The stream of the control channel, which the links in both directions share.
    pub liveness: LivenessStream,
    /// Passes descriptors while the link is in use, from each rank to the next one alone.
    pub descriptors: Option<Arc<UnixStream>>,
}

/// A FIFO to a rank or from it: its slots, and the doorbell at which that rank sleeps, if it does
/// not sleep at the FIFO's words.
#[derive(Debug)]
pub struct FifoShape(pub SlotShape, pub Option<Arc<Doorbell>>);

/// The sending ends of links that lie in one piece of memory; `streams` lead to the receiver, which
/// errors call `peer`.
///
/// # Errors
/// If the system refuses the memory, or the peer does not take it.
pub fn senders<const N: usize>(
    fifos: [FifoShape; N],
    streams: &PeerStreams,
    peer: &str,
) -> Result<[Box<dyn Tx>; N]> {
    let (region, fd) = Region::shared_on_use(fifo::footprint(&shapes(&fifos)))?;
    pass(&streams.liveness, fd, peer)?;
    Ok(ends(fifos, region, streams).map(|fifo| -> Box<dyn Tx> { Box::new(fifo::Tx::new(fifo)) }))
}

/// The receiving ends; `streams` lead to the sender, which errors call `peer`.
///
/// # Errors
/// If no memory comes before the deadline, or memory of another size.
pub fn receivers<const N: usize>(
    fifos: [FifoShape; N],
    streams: &PeerStreams,
    peer: &str,
    deadline: Instant,
) -> Result<[Box<dyn Rx>; N]> {
    let fd = receive(&streams.liveness, "link's memory", peer, deadline)?;
    let region = Region::open(fd.as_fd(), fifo::footprint(&shapes(&fifos)), peer)?;
    Ok(ends(fifos, region, streams).map(|fifo| -> Box<dyn Rx> { Box::new(fifo::Rx::new(fifo)) }))
}

fn shapes<const N: usize>(fifos: &[FifoShape; N]) -> [SlotShape; N] {
    fifos.each_ref().map(|FifoShape(shape, _)| *shape)
}

/// The ends of all FIFOs in one memory.
fn ends<const N: usize>(fifos: [FifoShape; N], region: Region, streams: &PeerStreams) -> [Fifo; N] {
    let (region, shapes, mut at) = (Arc::new(region), shapes(&fifos), 0..N);
    fifos.map(|FifoShape(_, bell)| {
        let place = (&shapes[..], at.next().unwrap_or(N));
        Fifo::new(Arc::clone(&region), place, Some(streams.clone()), bell)
    })
}
