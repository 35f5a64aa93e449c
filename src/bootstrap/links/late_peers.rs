//! Messages about peers that do not connect: where they are expected, and what to do.

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
        match peer.tcp.filter(|_| role == StreamRole::Tcp) {
            Some(address) if is_elsewhere && interface::is_own(address.ip()) => format!(
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
        let tcp = self.tcp.as_ref().and_then(|socket| socket.local_addr().ok()?.as_socket());
        let place = tcp.map(|at| format!(" at {at}{}", interface::in_brackets(at.ip())));
        let place = place.unwrap_or_default();
        format!("{} to connect{place}. {}", rank_list(&missing), self.advice(&peers))
    }
}

/// The peer's address over TCP and the way there, for messages; empty within a host.
pub(super) fn way_to(peer: &PeerInfo, role: StreamRole) -> String {
    match peer.tcp.filter(|_| role == StreamRole::Tcp) {
        Some(address) => format!(" at {address} ({})", interface::describe_route(address)),
        None => String::new(),
    }
}
