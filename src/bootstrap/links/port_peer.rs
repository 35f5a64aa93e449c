//! What a port knows of the other processes of its links, and the settings of their streams.

use std::io;
use std::net::SocketAddr;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::Socket;

use crate::bootstrap::auth::keys::LinkSecret;
use crate::bootstrap::dial::connect_soon;
use crate::error::Peer;
use crate::trace::Recorder;

/// The other process of links.
#[derive(Debug)]
pub(in crate::bootstrap) struct PortPeer {
    /// Its rank in the communicator that met, and its host.
    pub(super) name: Peer,
    /// In the order in which to try them.
    addresses: Vec<SocketAddr>,
    /// The address that has answered.
    reached: OnceLock<SocketAddr>,
    pub(super) secret: LinkSecret,
    /// A wide-area network lies between.
    pub(super) is_far: bool,
}

impl PortPeer {
    /// The peer that has these addresses, in the order in which to try them, and this secret; true
    /// with it if a wide-area network lies between.
    pub(in crate::bootstrap) fn new(
        name: Peer,
        addresses: Vec<SocketAddr>,
        (secret, is_far): (LinkSecret, bool),
    ) -> Self {
        Self { name, addresses, reached: OnceLock::new(), secret, is_far }
    }

    /// A connection to the address that has answered, or else to the first one that does. The
    /// system may still connect it.
    pub(super) fn connect(&self) -> io::Result<(Socket, SocketAddr)> {
        let addresses = self.reached.get().map_or(&self.addresses[..], slice::from_ref);
        let (socket, address) = connect_soon(addresses)?;
        if socket.peer_addr().is_ok() {
            self.note_reached(address);
        }
        Ok((socket, address))
    }

    /// The address for connection number `attempt` of a broken stream: the one that has answered,
    /// or else each in turn.
    pub(super) fn address_for(&self, attempt: u32) -> Option<SocketAddr> {
        let next = || self.addresses.get(attempt as usize % self.addresses.len().max(1));
        self.reached.get().or_else(next).copied()
    }

    /// A connection to this address of the peer, which the system still connects.
    pub(super) fn connect_to(&self, address: SocketAddr) -> io::Result<Socket> {
        connect_soon(slice::from_ref(&address)).map(|(socket, _)| socket)
    }

    /// Notes that the peer has answered at this address.
    pub(super) fn note_reached(&self, address: SocketAddr) {
        // Another stream may have been first, at another address. Both lead to the peer.
        let _ = self.reached.set(address);
    }

    /// True if nothing of the peer listens any more, of which so many connections in a row were
    /// refused, the last one at this address: it is the one that has answered before, or all
    /// addresses refuse.
    pub(super) fn is_refusal_final(&self, address: SocketAddr, refusals: u32) -> bool {
        match self.reached.get() {
            Some(reached) => *reached == address,
            None => refusals as usize >= self.addresses.len(),
        }
    }
}

/// The settings of all streams.
#[derive(Clone, Debug)]
pub(in crate::bootstrap) struct StreamSettings {
    pub(in crate::bootstrap) encrypt: bool,
    /// Their number for each link.
    pub(in crate::bootstrap) streams: usize,
    pub(in crate::bootstrap) congestion: Option<String>,
    /// A host without a sign of life for this long counts as unreachable.
    pub(in crate::bootstrap) peer_timeout: Duration,
    /// The record of streams that are made anew.
    pub(in crate::bootstrap) recorder: Option<Arc<Recorder>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_final_at_the_address_that_has_answered_or_at_all() {
        let [one, other]: [SocketAddr; 2] =
            ["10.0.0.1:5", "10.0.1.1:5"].map(|it| it.parse().unwrap());
        let name = Peer { rank: 1, host: "there".into(), pid: 2 };
        let peer = PortPeer::new(name, vec![one, other], (LinkSecret::of_test(1), false));
        assert_eq!([0, 1, 2].map(|it| peer.address_for(it)), [one, other, one].map(Some));
        assert!(!peer.is_refusal_final(one, 1) && peer.is_refusal_final(other, 2));
        peer.note_reached(other);
        assert_eq!([0, 1].map(|it| peer.address_for(it)), [Some(other); 2]);
        assert!(!peer.is_refusal_final(one, 2) && peer.is_refusal_final(other, 1));
    }
}
