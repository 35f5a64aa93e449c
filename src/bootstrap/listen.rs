//! Where this rank accepts links from others. May touch: socket, config, the network interfaces.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::Socket;

use super::rank_record::random_name;
use super::socket::{listen_tcp, listen_unix};
use crate::config::{Config, Transport};
use crate::error::{Error, Result};
use crate::transport::tcp::interface;

/// An abstract Unix socket of unguessable name, unless no link can run over shared memory.
pub(super) fn for_shared_memory(config: &Config) -> Result<(Option<Socket>, String)> {
    if config.size == 1 || config.transport == Transport::Tcp {
        return Ok((None, String::new()));
    }
    let name = format!("ringreduce-{}", random_name());
    let socket = listen_unix(&name).map_err(|e| Error::io("listening at a Unix socket", e))?;
    Ok((Some(socket), name))
}

/// A TCP socket on one address of this host, which never leaves the host if no rank does.
pub(super) fn for_tcp(config: &Config, one_host: bool) -> Result<(Socket, SocketAddr)> {
    let address = match config.interface.as_deref() {
        None if one_host => IpAddr::V4(Ipv4Addr::LOCALHOST),
        spec => interface::choose(spec, &interface::list()?)?,
    };
    let listen = || {
        let socket = listen_tcp(SocketAddr::new(address, 0))?;
        let bound = socket.local_addr()?.as_socket();
        Ok((socket, bound.ok_or(std::io::ErrorKind::AddrNotAvailable)?))
    };
    listen().map_err(|e: std::io::Error| Error::io(format!("listening for ranks on {address}"), e))
}
