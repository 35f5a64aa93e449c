//! The addresses that ranks of a host give to those of the other hosts of their job: first that of
//! the route there.

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use crate::cli::Request;
use crate::cli::hosts::LOOKUP_BUDGET;
use ringreduce::bootstrap::addresses_of;
use ringreduce::config::variables::IFNAME;
use ringreduce::transport::tcp::interface;

/// The setting for ranks of the host with this number; none if the user has one, if all ranks are
/// on one host, or if no route is known: the library then chooses an interface.
pub(super) fn setting(request: &Request, host_number: usize) -> Option<String> {
    if request.hosts.len() < 2 || request.variable(IFNAME).is_some() {
        return None;
    }
    let address = to_others(request, host_number)?;
    let interfaces = interface::list().unwrap_or_default();
    let all = interface::choose_all(None, &interfaces).unwrap_or_default();
    Some(subnets_of(address, &all))
}

/// The setting that names this address and then these, which ranks give to others as well: what
/// does not reach the first address may reach another one.
fn subnets_of(first: IpAddr, all: &[IpAddr]) -> String {
    let rest = all.iter().copied().filter(|other| *other != first && !other.is_loopback());
    let one = |ip: IpAddr| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
    let subnets: Vec<_> = std::iter::once(first).chain(rest).map(one).collect();
    subnets.join(",")
}

/// The address of the route from the host with this number to the other ones.
pub(super) fn to_others(request: &Request, host_number: usize) -> Option<IpAddr> {
    let others = request.hosts.iter().enumerate().filter(|(number, _)| *number != host_number);
    let names = others.map(|(_, host)| host.without_user());
    let deadline = Instant::now() + LOOKUP_BUDGET;
    let left = || deadline.saturating_duration_since(Instant::now());
    // Hosts that have joined by themselves may have no names, but a way to the launcher.
    let of_launcher = || {
        let nodes = request.nodes.as_ref()?;
        own_address(&nodes.host, left()).or_else(|| route_to(&nodes.host, left()))
    };
    let names = names.filter(|name| !name.is_empty()).take_while(|_| !left().is_zero());
    let of_names = || names.into_iter().find_map(|name| route_to(name, left()));
    of_launcher().or_else(of_names).or_else(of_ssh)
}

/// The address of this host from which packets go to this one.
fn route_to(name: &str, limit: Duration) -> Option<IpAddr> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let routed = |to: IpAddr| {
        let any: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // A datagram socket sends nothing when it is connected; the system only chooses the route.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Any port: only the address counts.
        socket.connect((to, 9)).ok()?;
        let own = socket.local_addr().ok()?.ip();
        // An address that leads back here is one of a name for this host.
        (!own.is_loopback() && own != to).then_some(own)
    };
    addresses_of(name, limit).ok()?.into_iter().find_map(routed)
}

/// The address of this name, if it is one of this host that others reach.
fn own_address(name: &str, limit: Duration) -> Option<IpAddr> {
    let mut all = addresses_of(name, limit).ok()?.into_iter();
    all.find(|address| !address.is_loopback() && interface::is_own(*address))
}

/// The address at which ssh came to this host.
fn of_ssh() -> Option<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    (!address.is_loopback()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::subnets_of;

    #[test]
    fn the_address_of_the_route_comes_first_and_once() {
        let [route, other, v6, own] =
            ["10.0.0.1", "10.1.0.1", "fd00::1", "127.0.0.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(subnets_of(route, &[]), "10.0.0.1/32");
        let all = [other, route, v6, own];
        assert_eq!(subnets_of(route, &all), "10.0.0.1/32,10.1.0.1/32,fd00::1/128");
    }
}
