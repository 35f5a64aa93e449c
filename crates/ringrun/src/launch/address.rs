//! The address that ranks of a host give to those of the other hosts of their job: that of the
//! route there.

use std::env;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::cli::Request;
use ringreduce::config::variables::IFNAME;

/// The setting for ranks of the host with this number; none if the user has one, if all ranks are
/// on one host, or if no route is known: the library then chooses an interface.
pub(super) fn setting(request: &Request, host_number: usize) -> Option<String> {
    let is_given = request.variables.iter().any(|(name, _)| name == IFNAME);
    if request.hosts.len() < 2 || is_given || env::var_os(IFNAME).is_some() {
        return None;
    }
    let others = request.hosts.iter().enumerate().filter(|(number, _)| *number != host_number);
    let names = others.map(|(_, host)| host.name.rsplit('@').next().unwrap_or_default());
    let address = names.filter(|name| !name.is_empty()).find_map(route_to).or_else(of_ssh)?;
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

/// The address at which ssh came to this host.
fn of_ssh() -> Option<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    (!address.is_loopback()).then_some(address)
}
