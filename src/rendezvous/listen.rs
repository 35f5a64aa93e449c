//! Where this rank accepts links from others. May touch: socket, config, the network interfaces.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::Socket;

use super::record::random_name;
use super::socket::{listen_tcp, listen_unix};
use crate::Transport;
use crate::config::Config;
use crate::error::{Error, Result};

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
        spec => choose(spec)?,
    };
    let listen = || {
        let socket = listen_tcp(SocketAddr::new(address, 0))?;
        let bound = socket.local_addr()?.as_socket();
        Ok((socket, bound.ok_or(std::io::ErrorKind::AddrNotAvailable)?))
    };
    listen().map_err(|e: std::io::Error| Error::io(format!("listening for ranks on {address}"), e))
}

/// The first address of a network interface that is up, no loopback, and starts like `spec`.
fn choose(spec: Option<&str>) -> Result<IpAddr> {
    use nix::net::if_::InterfaceFlags as Flags;
    let all = nix::ifaddrs::getifaddrs().map_err(|e| Error::io("listing interfaces", e))?;
    let usable = all.filter(|interface| match spec {
        Some(prefix) => interface.interface_name.starts_with(prefix),
        None => !interface.flags.contains(Flags::IFF_LOOPBACK),
    });
    let up = usable.filter(|interface| interface.flags.contains(Flags::IFF_UP));
    let addresses = up.filter_map(|interface| interface.address);
    let v4 = addresses.filter_map(|address| address.as_sockaddr_in().map(|v4| v4.ip()));
    v4.map(IpAddr::V4).next().ok_or_else(|| Error::Config {
        name: "RINGREDUCE_IFNAME".into(),
        given: spec.unwrap_or_default().into(),
        expected: "no network interface that is up and has an IPv4 address fits".into(),
    })
}
