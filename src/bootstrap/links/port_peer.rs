//! What a port knows of the other processes of its links, and the settings of their streams.

use std::io;
use std::net::SocketAddr;
use std::slice;
use std::sync::OnceLock;
use std::time::Duration;

use socket2::Socket;

use crate::bootstrap::auth::keys::LinkSecret;
use crate::bootstrap::dial::connect_soon;

/// The other process of links.
#[derive(Debug)]
pub(in crate::bootstrap) struct PortPeer {
    /// In the order in which to try them.
    addresses: Vec<SocketAddr>,
    /// The address that has answered.
    reached: OnceLock<SocketAddr>,
    pub(super) secret: LinkSecret,
    /// A wide-area network lies between.
    pub(super) is_far: bool,
}

impl PortPeer {
    /// The peer that has these addresses, in the order in which to try them, and this secret;
    /// `is_far` if a wide-area network lies between.
    pub(in crate::bootstrap) fn new(
        addresses: Vec<SocketAddr>,
        secret: LinkSecret,
        is_far: bool,
    ) -> Self {
        Self { addresses, reached: OnceLock::new(), secret, is_far }
    }

    /// A connection to the address that has answered, or else to the first one that does. The
    /// system may still connect it.
    pub(super) fn connect(&self) -> io::Result<(Socket, SocketAddr)> {
        let addresses = self.reached.get().map_or(&self.addresses[..], slice::from_ref);
        let (socket, address) = connect_soon(addresses)?;
        if socket.peer_addr().is_ok() {
            // Another thread may have been first, at another address. Both lead to the peer.
            let _ = self.reached.set(address);
        }
        Ok((socket, address))
    }

    /// A connection to one of the addresses, which the system still connects: each attempt but the
    /// first takes the next one, unless one has answered.
    pub(super) fn connect_to_one(&self, attempt: u32) -> io::Result<(Socket, SocketAddr)> {
        let next = || self.addresses.get(attempt as usize % self.addresses.len().max(1));
        let address = self.reached.get().or_else(next).ok_or(io::ErrorKind::AddrNotAvailable)?;
        connect_soon(slice::from_ref(address))
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
}
