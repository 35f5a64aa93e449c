//! The address that ranks of a host give to those of the other hosts of their job: that of the
//! route there.

use std::env;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::cli::Request;
use ringreduce::config::variables::IFNAME;
use ringreduce::transport::tcp::interface;

/// The setting for ranks of the host with this number; none if the user has one, if all ranks are
/// on one host, or if no route is known: the library then chooses an interface.
pub(super) fn setting(request: &Request, host_number: usize) -> Option<String> {
    if request.hosts.len() < 2 || request.variable(IFNAME).is_some() {
        return None;
    }
    let others = request.hosts.iter().enumerate().filter(|(number, _)| *number != host_number);
    let names = others.map(|(_, host)| host.name.rsplit('@').next().unwrap_or_default());
    // Hosts that have joined by themselves have no names, but a way to the first one.
    let of_first = || match &request.nodes {
        Some(nodes) if nodes.rank == 0 => own_address(&nodes.host),
        Some(nodes) => route_to(&nodes.host),
        None => None,
    };
    let of_names = || names.filter(|name| !name.is_empty()).find_map(route_to);
    let address = of_first().or_else(of_names).or_else(of_ssh)?;
    Some(format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }))
}

/// The address of this host from which packets go to this one.
fn route_to(name: &str) -> Option<IpAddr> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let routed = |to: SocketAddr| {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        // A datagram socket sends nothing when it is connected; the system only chooses the route.
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(to).ok()?;
        let own = socket.local_addr().ok()?.ip();
        // An address that leads back here is one of a name for this host.
        (!own.is_loopback() && own != to.ip()).then_some(own)
    };
    // Any port: only the address counts.
    (name, 9).to_socket_addrs().ok()?.find_map(routed)
}

/// The address of this name, if it is one of this host that others reach.
fn own_address(name: &str) -> Option<IpAddr> {
    let mut all = (name, 9).to_socket_addrs().ok()?.map(|address| address.ip());
    all.find(|address| !address.is_loopback() && interface::is_own(*address))
}

/// The address at which ssh came to this host.
fn of_ssh() -> Option<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    (!address.is_loopback()).then_some(address)
}
