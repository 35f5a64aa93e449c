//! Listeners of a rank for the control channels that others dial, an abstract Unix socket and a TCP
//! socket, which becomes the port of links.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::Socket;

use super::rank_record::random_hex;
use super::socket::{listen_tcp, listen_unix};
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

/// A setting that chooses this address of this host, by which the rank and its store reach each
/// other; none if no other host gets there.
pub(super) fn interface_at(address: IpAddr) -> Option<String> {
    let is_far = !address.is_loopback() && !address.is_unspecified();
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (is_far && !interface::is_link_local(address)).then(|| format!("{address}/{bits}"))
}

/// A TCP listener at one address of this host: the loopback address if all ranks are on one host.
///
/// # Errors
/// If no interface fits the settings, or the system refuses to listen at its address.
pub fn tcp_listener(config: &Config, one_host: bool) -> Result<(Socket, SocketAddr)> {
    let address = match config.interface.as_deref() {
        None if one_host => IpAddr::V4(Ipv4Addr::LOCALHOST),
        spec => interface::choose(spec, &interface::list()?)?,
    };
    tcp_listener_at(address, config)
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
