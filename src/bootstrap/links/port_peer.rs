//! The addresses and secrets of the other processes of a port, and the settings of their streams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::Socket;

use crate::bootstrap::auth::keys::LinkSecret;
use crate::bootstrap::dial::{connect_soon, has_no_way, unconnected};
use crate::error::{Peer, warn};
use crate::health::control_channel::{set_keepalive, set_questions};
use crate::trace::Recorder;
use crate::transport::LinkContent;
use crate::transport::tcp::tune;

/// The most connections of a process that were made anew of which each is told.
const MOST_TOLD: u64 = 16;

/// The other process of links.
#[derive(Debug)]
pub(in crate::bootstrap) struct PortPeer {
    /// Its rank in the communicator that met, and its host.
    pub(super) name: Peer,
    /// In the order in which to try them.
    addresses: Vec<SocketAddr>,
    /// The places at which connections have found the peer since it gave those.
    found: Mutex<Found>,
    pub(super) secret: LinkSecret,
    /// A wide-area network lies between.
    pub(super) is_far: bool,
}

/// Where the peer was found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The address that has answered.
    reached: Option<SocketAddr>,
    /// The address that a connection of the peer came from, which none of the others is. Its host
    /// may have another address than before, or a NAT lies between, where nothing listens.
    came_from: Option<IpAddr>,
}

impl PortPeer {
    /// The peer that has these addresses, in the order in which to try them, and this secret; true
    /// with it if a wide-area network lies between.
    pub(in crate::bootstrap) fn new(
        name: Peer,
        addresses: Vec<SocketAddr>,
        (secret, is_far): (LinkSecret, bool),
    ) -> Self {
        Self { name, addresses, found: Mutex::default(), secret, is_far }
    }

    fn found(&self) -> Found {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses to try: the one that has answered, or else all, and the one that a connection
    /// of the peer came from, where it listens at one of the ports that it had.
    fn to_try(&self) -> Vec<SocketAddr> {
        let Found { reached, came_from } = self.found();
        let known = reached.as_ref().map_or(&self.addresses[..], slice::from_ref);
        let mut all = known.to_vec();
        if let Some(ip) = came_from {
            let ports = self.addresses.iter().map(SocketAddr::port);
            all.extend(ports.map(|port| SocketAddr::new(ip, port)));
        }
        all
    }

    /// A connection to the first address that answers. The system may still connect it. Where this
    /// host has no way there now, a stream that `resumes` begins with a connection that is broken:
    /// the cable may be out, or the address of this host is being replaced.
    pub(super) fn connect(&self, resumes: bool) -> io::Result<(Socket, SocketAddr)> {
        let addresses = self.to_try();
        let later = || addresses.iter().find_map(|&at| Some((unconnected(at).ok()?, at)));
        let (socket, address) = connect_soon(&addresses).or_else(|error| {
            let may_follow = resumes && has_no_way(error.kind());
            may_follow.then(later).flatten().ok_or(error)
        })?;
        if socket.peer_addr().is_ok() {
            self.note_reached(address);
        }
        Ok((socket, address))
    }

    /// The address for connection number `attempt` of a broken stream: each in turn.
    pub(super) fn address_for(&self, attempt: u32) -> Option<SocketAddr> {
        let addresses = self.to_try();
        addresses.get(attempt as usize % addresses.len().max(1)).copied()
    }

    /// A connection to this address of the peer, which the system still connects.
    pub(super) fn connect_to(&self, address: SocketAddr) -> io::Result<Socket> {
        connect_soon(slice::from_ref(&address)).map(|(socket, _)| socket)
    }

    /// Notes that the peer has answered at this address.
    pub(super) fn note_reached(&self, address: SocketAddr) {
        let found = &mut *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.came_from == Some(address.ip()) {
            *found = Found { reached: Some(address), came_from: None };
        }
        // Another stream may have been first, at another address. Both lead to the peer.
        found.reached.get_or_insert(address);
    }

    /// Notes that a connection of the peer came from here.
    pub(super) fn note_came_from(&self, ip: IpAddr) {
        let found = &mut *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.addresses.iter().chain(&found.reached);
        if known.all(|address| address.ip() != ip) {
            found.came_from = Some(ip);
        }
    }

    /// True if nothing of the peer listens any more, of which so many connections in a row were
    /// refused, the last one at this address: it is the only one to try, since it has answered
    /// before, or all addresses refuse.
    pub(super) fn is_refusal_final(&self, address: SocketAddr, refusals: u32) -> bool {
        match self.to_try()[..] {
            [only] => only == address,
            ref several => refusals as usize >= several.len(),
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

impl StreamSettings {
    /// Sets what a stream needs to a peer at this address, which may be far.
    pub(super) fn prepare(
        &self,
        socket: &Socket,
        (peer, is_far): (SocketAddr, bool),
        content: LinkContent,
    ) -> io::Result<()> {
        tune(socket, peer, self.congestion.as_deref(), is_far).map_err(io::Error::other)?;
        match content {
            // The control channel looks for a host that is gone.
            LinkContent::Calls => Ok(()),
            // Messages outlive a failed call, and with it the look at the control channel.
            LinkContent::Messages => set_keepalive(socket, self.peer_timeout),
            // Once the connection is in use, another one to the host may stand for it.
            LinkContent::Control => set_questions(socket, self.peer_timeout, true),
        }
    }

    /// Tells the user, and the record, that a connection of rank `me` to another one has been made
    /// anew. Of many only some are told: a network may fail again and again.
    pub(super) fn note_resumed(&self, (me, to): (u32, &Peer), what: &'static str, after: Duration) {
        static RESUMED: AtomicU64 = AtomicU64::new(0);
        let count = RESUMED.fetch_add(1, Ordering::Relaxed) + 1;
        if count <= MOST_TOLD || count.is_power_of_two() {
            let so_far = if count < MOST_TOLD { "" } else { &format!(" ({count} such so far)") };
            warn(&format!(
                "rank {me}: the {what} to {to} broke, and goes on after {after:.1?}{so_far}"
            ));
        }
        if let Some(recorder) = &self.recorder {
            recorder.note_reconnection(what, to, after);
        }
    }
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

    #[test]
    fn a_host_is_tried_where_it_came_from_too_and_stays_where_it_answers() {
        let [first, nat, moved]: [SocketAddr; 3] =
            ["10.0.0.1:5", "10.0.1.1:5", "10.0.2.1:5"].map(|it| it.parse().unwrap());
        let name = Peer { rank: 1, host: "there".into(), pid: 2 };
        let peer = PortPeer::new(name, vec![first], (LinkSecret::of_test(1), false));
        peer.note_reached(first);
        peer.note_came_from(first.ip());
        assert_eq!(peer.address_for(1), Some(first));
        for came_from in [nat, moved] {
            peer.note_came_from(came_from.ip());
            assert_eq!(
                [0, 1, 2].map(|it| peer.address_for(it)),
                [first, came_from, first].map(Some)
            );
            assert!(!peer.is_refusal_final(first, 1) && peer.is_refusal_final(came_from, 2));
        }
        peer.note_reached(moved);
        assert_eq!([0, 1].map(|it| peer.address_for(it)), [Some(moved); 2]);
    }
}
