//! Messages about peers that do not connect: where they are expected, and what to do.

use std::net::SocketAddr;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::handshake::StreamRole;
use crate::bootstrap::auth::listener::ControlListener;
use crate::bootstrap::topology::{LinkKind, PeerInfo};
use crate::health::is_stopped;
use crate::sync::rank_list;
use crate::transport::tcp::interface;

/// The advice where ranks of several hosts can't connect.
const NETWORK_HINT: &str = "RINGREDUCE_IFNAME chooses the interface whose address ranks give to \
    others; firewalls between the hosts must let through the ports at which ranks listen, which \
    the system chooses or RINGREDUCE_PORT_RANGE names";

impl Bootstrap {
    /// The advice about peers that do not connect in time. Only those beyond a network may be cut
    /// off by its settings; a process of this host is late itself.
    pub(super) fn advice(&self, peers: &[&PeerInfo]) -> String {
        let own = &self.peers[self.rank].identity;
        let mut here = peers.iter().filter(|peer| peer.identity == *own);
        if let Some(stopped) = here.clone().find(|peer| is_stopped(peer.pid)) {
            let (peer, pid) = (stopped.peer(), stopped.pid);
            return format!("The process of {peer} is stopped: kill -CONT {pid} resumes it");
        }
        let is_shm = |peer: &PeerInfo| self.link_kind(self.rank, peer.rank) == LinkKind::Shm;
        match here.next() {
            Some(PeerInfo { rank, pid, .. }) if peers.iter().all(|peer| is_shm(peer)) => {
                format!(
                    "Is the process of rank {rank} stopped (kill -CONT {pid}), busy, or does it \
                     wait for another rank itself?"
                )
            }
            _ => NETWORK_HINT.into(),
        }
    }

    /// The reason of an error about a peer whose address refuses connections.
    pub(super) fn refusal(&self, peer: &PeerInfo, role: StreamRole) -> String {
        let way = way_to(peer, role);
        let is_elsewhere = peer.identity != self.peers[self.rank].identity;
        let mut addresses = tcp_addresses(peer, role);
        match peer.tcp.first().filter(|_| role == StreamRole::Tcp) {
            Some(_) if is_elsewhere && addresses.all(|at| interface::is_own(at.ip())) => format!(
                "it gave an address that this host has too{way}, and here nothing listens. \
                 RINGREDUCE_IFNAME chooses the interface whose address ranks give to others"
            ),
            Some(_) => format!(
                "it refuses connections{way}: its process has ended, or that address leads to \
                 another host. {NETWORK_HINT}"
            ),
            None => "it refuses connections: its process has ended; its own output says why".into(),
        }
    }

    /// The ranks that have not connected, and where they are expected, with the advice.
    pub(super) fn missing_diallers(&self, listener: &ControlListener<'_>) -> String {
        let expected = listener.expected.iter().zip(&listener.accepted);
        let mut missing: Vec<_> = expected
            .filter(|(_, accepted)| accepted.is_none())
            .map(|(stream, _)| stream.from as usize)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let peers: Vec<_> = missing.iter().map(|&rank| &self.peers[rank]).collect();
        let bound = self.tcp.iter().filter_map(|socket| socket.local_addr().ok()?.as_socket());
        let places = bound.map(|at| format!("{at}{}", interface::in_brackets(at.ip())));
        let place = listed(" at ", places);
        format!("{} to connect{place}. {}", rank_list(&missing), self.advice(&peers))
    }
}

/// The peer's addresses for a stream; none within a host.
fn tcp_addresses(peer: &PeerInfo, role: StreamRole) -> impl Iterator<Item = SocketAddr> {
    peer.tcp.to_try().filter(move |_| role == StreamRole::Tcp)
}

/// The peer's addresses over TCP and the way there, for messages; empty within a host.
pub(super) fn way_to(peer: &PeerInfo, role: StreamRole) -> String {
    let way = |address| format!("{address} ({})", interface::describe_route(address));
    listed(" at ", tcp_addresses(peer, role).map(way))
}

/// These items after `first`; empty without any.
fn listed(first: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { String::new() } else { format!("{first}{}", items.join(" and ")) }
}
