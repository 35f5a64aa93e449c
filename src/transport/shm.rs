//! Links between two processes of one host: the FIFO in a memfd, which the sender creates and
//! passes to the receiver over a Unix stream. The stream stays open, so that its end shows the
//! peer's.

use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::Socket;

use super::descriptor_passing::{pass, receive};
use super::fifo::{self, Fifo, FifoMemory};
use super::{Bell, Rx, Tx};
use crate::error::Result;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;
use crate::sync::Instant;

/// A Unix stream to the process of a peer, which hangs up when that process ends. All that look
/// after the peer share it, so that a rank has one descriptor for each.
pub type LivenessStream = Arc<Socket>;

/// A FIFO to a rank or from it: its slots, and the doorbell at which that rank sleeps, if it does
/// not sleep at the FIFO's words.
#[derive(Debug)]
pub struct FifoShape(pub SlotShape, pub Option<Arc<Bell>>);

/// The process at the other end of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkPeer<'a> {
    /// The stream to it.
    pub liveness: &'a LivenessStream,
    /// Its name in errors.
    pub name: &'a str,
}

/// The sending ends of links that lie in one piece of memory.
///
/// # Errors
/// If the system refuses the memory, or the peer does not take it.
pub fn senders<const N: usize>(
    fifos: [FifoShape; N],
    peer: LinkPeer<'_>,
) -> Result<[Box<dyn Tx>; N]> {
    let (region, fd) = Region::shared_on_use(fifo::footprint(&shapes(&fifos)))?;
    pass(peer.liveness, fd, peer.name)?;
    Ok(senders_in(fifos, &FifoMemory::whole(Arc::new(region), N), peer.liveness))
}

/// The receiving ends.
///
/// # Errors
/// If no memory comes before the deadline, or memory of another size.
pub fn receivers<const N: usize>(
    fifos: [FifoShape; N],
    peer: LinkPeer<'_>,
    deadline: Instant,
) -> Result<[Box<dyn Rx>; N]> {
    let fd = receive(peer.liveness, "link's memory", peer.name, deadline)?;
    let region = Region::open(fd.as_fd(), fifo::footprint(&shapes(&fifos)), peer.name)?;
    Ok(receivers_in(fifos, &FifoMemory::whole(Arc::new(region), N), peer.liveness))
}

/// The sending ends of links in memory that both processes have mapped.
pub(crate) fn senders_in<const N: usize>(
    fifos: [FifoShape; N],
    memory: &FifoMemory,
    liveness: &LivenessStream,
) -> [Box<dyn Tx>; N] {
    ends(fifos, memory, liveness).map(|fifo| -> Box<dyn Tx> { Box::new(fifo::Tx::new(fifo)) })
}

/// The receiving ends of such links.
pub(crate) fn receivers_in<const N: usize>(
    fifos: [FifoShape; N],
    memory: &FifoMemory,
    liveness: &LivenessStream,
) -> [Box<dyn Rx>; N] {
    ends(fifos, memory, liveness).map(|fifo| -> Box<dyn Rx> { Box::new(fifo::Rx::new(fifo)) })
}

fn shapes<const N: usize>(fifos: &[FifoShape; N]) -> [SlotShape; N] {
    fifos.each_ref().map(|FifoShape(shape, _)| *shape)
}

/// The ends of all FIFOs in one memory.
fn ends<const N: usize>(
    fifos: [FifoShape; N],
    memory: &FifoMemory,
    liveness: &LivenessStream,
) -> [Fifo; N] {
    let (shapes, mut at) = (shapes(&fifos), 0..N);
    fifos.map(|FifoShape(_, bell)| {
        let place = (&shapes[..], at.next().unwrap_or(N));
        Fifo::new(memory, place, Some(Arc::clone(liveness)), bell)
    })
}
