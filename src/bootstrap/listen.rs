//! Listeners of a rank for the control channels that others dial: an abstract Unix socket, and a
//! TCP socket at each address that the rank gives to others. The latter become the port of links.

use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::Socket;

use super::rank_record::random_hex;
use super::socket::{listen_tcp, listen_unix};
use super::tcp_addresses::{MAX_ADDRESSES, TcpAddresses};
use crate::config::variables::PORT_RANGE;
use crate::config::{Config, Transport};
use crate::error::{Error, Result, warn};
use crate::transport::tcp::interface;

/// A listener at an abstract Unix socket with an unguessable name; none if no link can run over
/// shared memory.
pub(super) fn unix_listener(config: &Config) -> Result<(Option<Socket>, String)> {
    if config.size == 1 || config.transport == Transport::Tcp {
        return Ok((None, String::new()));
    }
    let name = format!("ringreduce-{}", random_hex());
    let socket = listen_unix(&name).map_err(|e| Error::io("listening at a Unix socket", e))?;
    Ok((Some(socket), name))
}

/// The addresses of this host that a rank gives to the others, the likeliest first: the loopback
/// address if all ranks are on one host, and without a setting first of all `own`, by which the
/// rank and its store reach each other.
///
/// # Errors
/// If no interface fits the settings.
fn addresses(config: &Config, own: Option<IpAddr>, one_host: bool) -> Result<Vec<IpAddr>> {
    let spec = config.interface.as_deref();
    if spec.is_none() && one_host {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    let is_far = |own: &IpAddr| {
        !own.is_loopback() && !own.is_unspecified() && !interface::is_link_local(*own)
    };
    let fitting = interface::choose_all(spec, &interface::list()?);
    let Some(own) = own.filter(|own| spec.is_none() && is_far(own)) else {
        return fitting.map(|all| all.into_iter().take(MAX_ADDRESSES).collect());
    };
    // It serves, whatever its interface is called, and without any other.
    let rest = fitting.unwrap_or_default().into_iter();
    let rest = rest.filter(|address| *address != own && !address.is_loopback());
    Ok(iter::once(own).chain(rest).take(MAX_ADDRESSES).collect())
}

/// The TCP listeners of a rank, at the addresses that it gives to the others, of which `own` is the
/// one by which the rank and its store reach each other; and these addresses, in the same order.
///
/// # Errors
/// If no interface fits the settings, or the system refuses to listen.
pub fn rank_listeners(
    config: &Config,
    own: Option<IpAddr>,
    one_host: bool,
) -> Result<(Vec<Socket>, TcpAddresses)> {
    let ips = addresses(config, own, one_host)?;
    let (sockets, ports) = tcp_listeners(ips.iter().copied(), config)?;
    Ok((sockets, TcpAddresses::at_ports(ips.into_iter(), ports.into_iter())))
}

/// `config` without the interface and the port range, which choose among networks: listeners within
/// one host are at the loopback address.
pub(super) fn within_host(config: &Config) -> Config {
    Config { interface: None, ports: None, ..config.clone() }
}

/// Listeners for survivors of a job on one host that needs no TCP otherwise. Without a loopback
/// address there are none, and a warning.
///
/// # Errors
/// If this process has no descriptor left.
pub(super) fn survivor_listeners(config: &Config) -> Result<(Vec<Socket>, TcpAddresses)> {
    match rank_listeners(&within_host(config), None, true) {
        Err(error) if !matches!(error, Error::Exhausted { .. }) => {
            warn(&format!(
                "survivors of a lost rank could not reach each other ({error}); set \
                 RINGREDUCE_ALL_PAIRS to the number of ranks, to link them from the start"
            ));
            Ok(Default::default())
        }
        listening => listening,
    }
}

/// TCP listeners at these addresses of this host, and the port of each one. An address that the
/// system refuses is left out with a warning, and its port is 0.
///
/// # Errors
/// If the system refuses all addresses, or this process has no descriptor left.
pub(super) fn tcp_listeners(
    addresses: impl Iterator<Item = IpAddr>,
    config: &Config,
) -> Result<(Vec<Socket>, Vec<u16>)> {
    let (mut sockets, mut ports, mut refused) = (vec![], vec![], vec![]);
    for address in addresses {
        match tcp_listener_at(address, config) {
            Ok((socket, bound)) => {
                sockets.push(socket);
                ports.push(bound.port());
            }
            Err(error @ Error::Exhausted { .. }) => return Err(error),
            Err(error) => {
                refused.push(error);
                ports.push(0);
            }
        }
    }
    if sockets.is_empty() && !refused.is_empty() {
        return Err(refused.remove(0));
    }
    refused.iter().for_each(|error| warn(&error.to_string()));
    Ok((sockets, ports))
}

/// A TCP listener at one address of this host: the loopback address if all ranks are on one host.
///
/// # Errors
/// If no interface fits the settings, or the system refuses to listen at its address.
pub fn tcp_listener(config: &Config, one_host: bool) -> Result<(Socket, SocketAddr)> {
    let first = addresses(config, None, one_host)?.into_iter().next();
    let missing = || Error::io("listening for ranks", io::ErrorKind::AddrNotAvailable);
    tcp_listener_at(first.ok_or_else(missing)?, config)
}

/// A TCP listener at this address of this host.
///
/// # Errors
/// If the system refuses to listen there.
pub fn tcp_listener_at(address: IpAddr, config: &Config) -> Result<(Socket, SocketAddr)> {
    let listen = || {
        let socket = listen_at_free_port(address, config, listen_tcp)?;
        let bound = socket.local_addr()?.as_socket();
        Ok((socket, bound.ok_or(io::ErrorKind::AddrNotAvailable)?))
    };
    listen().map_err(|e: io::Error| Error::io(format!("listening for ranks on {address}"), e))
}

/// Listens by `listen` at the first free port of the range that the settings give, or else at a
/// port that the system chooses.
pub(super) fn listen_at_free_port<T>(
    address: IpAddr,
    config: &Config,
    listen: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let Some(ports) = &config.ports else { return listen(SocketAddr::new(address, 0)) };
    let mut all = ports.clone().map(|port| listen(SocketAddr::new(address, port)));
    let is_taken = |tried: &io::Result<T>| {
        tried.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    all.find(|tried| !is_taken(tried)).unwrap_or_else(|| {
        let (low, high) = (ports.start(), ports.end());
        let text = format!("all ports of {PORT_RANGE}={low}-{high} are in use; give more");
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_this_host_has_no_more_is_left_out() {
        let [gone, own] = ["203.0.113.9", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let config = Config::default();
        let (sockets, ports) = tcp_listeners([gone, own].into_iter(), &config).unwrap();
        assert_eq!((sockets.len(), ports[0]), (1, 0));
        let bound = sockets[0].local_addr().unwrap().as_socket();
        assert_eq!(bound, Some(SocketAddr::new(own, ports[1])));
        let error = tcp_listeners([gone, gone].into_iter(), &config).unwrap_err();
        assert!(error.to_string().contains("203.0.113.9"), "{error}");
        assert_eq!(tcp_listeners([].into_iter(), &config).unwrap().0.len(), 0);
    }

    #[test]
    fn the_address_that_leads_to_the_store_serves_alone_and_comes_first() {
        let config = Config::default();
        let own: IpAddr = "203.0.113.9".parse().unwrap();
        let all = addresses(&config, Some(own), false).unwrap();
        assert_eq!(all[0], own);
        assert!(!all[1..].iter().any(IpAddr::is_loopback), "{all:?}");
        // A setting of the user says which addresses there are.
        let chosen = Config { interface: Some("lo".into()), ..config.clone() };
        let all = addresses(&chosen, Some(own), false).unwrap();
        assert!(all.iter().all(IpAddr::is_loopback), "{all:?}");
        assert_eq!(addresses(&config, Some(own), true).unwrap(), [Ipv4Addr::LOCALHOST]);
    }
}
