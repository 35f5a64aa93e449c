//! Links between two processes of one host: the FIFO in a memfd that the sender makes and passes
//! to the receiver over a Unix socket, which then stays open as a sign of life.
//! May touch: fifo, region, handover.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use super::descriptor_passing::{recv_fd, send_fd};
use super::{Rx, Tx, fifo};
use crate::error::{Error, Limit, Result};
use crate::health::Told;
use crate::memory::mapping::Region;
use crate::partition::SlotShape;

/// How often who waits for what is handed over looks for an abort; milliseconds.
const GLANCE: u8 = 10;

/// Hands this process's page over, before the memory of a link.
///
/// # Errors
/// If it can't be passed on.
pub(crate) fn tell_life(stream: &UnixStream, page: &Told, peer: &str) -> Result<()> {
    let page =
        page.as_fd().try_clone_to_owned().map_err(|e| Error::io("handing over a page", e))?;
    send_fd(stream, page).map_err(|error| lost(peer, &error))
}

/// To `peer` nothing can be handed over.
fn lost(peer: &str, error: &io::Error) -> Error {
    Error::Handshake { peer: peer.into(), reason: format!("it takes no memory: {error}") }
}

/// Waits until something comes over a stream, or the deadline, or an abort: then that is now.
pub(crate) fn comes(stream: &UnixStream, deadline: Instant, abort: &AtomicBool) -> Instant {
    loop {
        let now = Instant::now();
        if abort.load(Ordering::Relaxed) || now >= deadline {
            return now.min(deadline);
        }
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        // An error is met where it is read.
        if !matches!(poll(&mut fds, PollTimeout::from(GLANCE)), Ok(0)) {
            return deadline;
        }
    }
}

/// The page of the process at the other end.
///
/// # Errors
/// If nothing comes before the deadline.
pub(crate) fn life(stream: &UnixStream, peer: &str, deadline: Instant) -> Result<OwnedFd> {
    let what = "page by which to see that it lives";
    recv_fd(stream, deadline).map_err(|error| nothing(what, peer, error))
}

/// Of `peer` nothing has come, or nothing could be taken.
fn nothing(what: &str, peer: &str, error: io::Error) -> Error {
    match Limit::of(&error) {
        Some(_) => Error::io(format!("taking a {what} from {peer}"), error),
        None => {
            let reason = format!("no {what} came: {error}");
            Error::Handshake { peer: peer.into(), reason }
        }
    }
}

/// The sending end, over the connection to its receiver; `peer` names that one in errors.
///
/// # Errors
/// If the memory can't be had or not be passed on.
pub fn sender(shape: SlotShape, life: UnixStream, peer: &str) -> Result<Box<dyn Tx>> {
    let (region, fd) = Region::shared(fifo::footprint(shape))?;
    send_fd(&life, fd).map_err(|error| lost(peer, &error))?;
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
    let fd = recv_fd(&life, deadline).map_err(|error| nothing("link's memory", peer, error))?;
    let region = Region::open(fd.as_fd(), fifo::footprint(shape), peer)?;
    Ok(Box::new(fifo::Rx::new(Arc::new(region), shape, Some(life))))
}
