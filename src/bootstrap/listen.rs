//! Listeners of a rank for the control channels that others dial: an abstract Unix socket, and a
//! TCP socket at each address that the rank gives to others. The latter become the port of links.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::Socket;

use super::rank_record::random_hex;
use super::socket::{listen_tcp, listen_unix};
use super::tcp_addresses::{MAX_ADDRESSES, TcpAddresses};
use crate::config::variables::PORT_RANGE;
use crate::config::{Config, Transport};
use crate::error::{Error, Result};
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
    let own = own.filter(|own| spec.is_none() && is_far(own));
    let fitting = interface::choose_all(spec, &interface::list()?)?;
    let rest = fitting.into_iter().filter(|address| Some(*address) != own);
    Ok(own.into_iter().chain(rest).take(MAX_ADDRESSES).collect())
}

/// The TCP listeners of a rank, at the addresses that it gives to the others, of which `own` is the
/// one by which the rank and its store reach each other.
///
/// # Errors
/// If no interface fits the settings, or the system refuses to listen.
pub(super) fn rank_listeners(
    config: &Config,
    own: Option<IpAddr>,
    one_host: bool,
) -> Result<(Vec<Socket>, TcpAddresses)> {
    let ips = addresses(config, own, one_host)?;
    let (sockets, ports) = tcp_listeners(ips.iter().copied(), config)?;
    Ok((sockets, TcpAddresses::at_ports(ips.into_iter(), ports.into_iter())))
}

/// TCP listeners at these addresses of this host, and the port of each one. The first must be
/// there; another one that the system refuses is left out, and its port is 0.
///
/// # Errors
/// If the system refuses to listen at the first address.
pub(super) fn tcp_listeners(
    addresses: impl Iterator<Item = IpAddr>,
    config: &Config,
) -> Result<(Vec<Socket>, Vec<u16>)> {
    let (mut sockets, mut ports) = (vec![], vec![]);
    for address in addresses {
        match tcp_listener_at(address, config) {
            Ok((socket, bound)) => {
                sockets.push(socket);
                ports.push(bound.port());
            }
            Err(error) if ports.is_empty() => return Err(error),
            Err(_) => ports.push(0),
        }
    }
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
