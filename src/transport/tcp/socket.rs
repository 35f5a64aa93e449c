//! Settings of a socket before a link uses it: no Nagle delay (`TCP_NODELAY`), and congestion
//! control. Sockets of calls have no keepalive and no limit on retransmission: the control channel
//! beside them finds a host that is gone.

use std::fs;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc::{self, IPPROTO_TCP, TCP_INFO, tcp_info};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};
use socket2::{SockFilter, SockRef, Socket};

use crate::error::{Error, Result};

/// The number of transmissions of the same bytes, or of questions whether the peer takes bytes
/// again, which in a row without an answer say that the way of a connection is gone, such as one
/// that a NAT has forgotten: after 1.4 s in a fast network.
const UNANSWERED: u8 = 3;

/// The first part of the system's figures of a connection. Older systems have a shorter whole, and
/// nix takes no answer that is shorter than what it asks for.
const INFO_LEN: usize = offset_of!(tcp_info, tcpi_min_rtt) + size_of::<u32>();

sockopt_impl!(
    /// The system's figures of a connection, tcp(7).
    ConnectionInfo,
    GetOnly,
    IPPROTO_TCP,
    TCP_INFO,
    [u8; INFO_LEN]
);

/// The number at this offset of the figures.
fn figure(info: &[u8; INFO_LEN], at: usize) -> Option<u32> {
    info[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The figures that the system has of the other host of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSigns {
    /// How long nothing has come from it.
    pub(crate) silence: Duration,
    /// The system has sent bytes of this connection, or asked for room for them, again and again,
    /// and nothing has answered.
    pub(crate) is_unanswered: bool,
}

/// The figures of the other host; `None` without a connection.
pub(crate) fn host_signs(stream: &impl AsFd) -> Option<HostSigns> {
    let info = getsockopt(stream, ConnectionInfo).ok()?;
    let tries = [offset_of!(tcp_info, tcpi_retransmits), offset_of!(tcp_info, tcpi_probes)];
    let acknowledged = figure(&info, offset_of!(tcp_info, tcpi_last_ack_recv))?;
    let data = figure(&info, offset_of!(tcp_info, tcpi_last_data_recv))?;
    Some(HostSigns {
        silence: Duration::from_millis(acknowledged.min(data).into()),
        is_unanswered: tries.iter().any(|&at| info[at] >= UNANSWERED),
    })
}

/// True if nothing answers: see [`HostSigns`].
pub(crate) fn is_unanswered(stream: &impl AsFd) -> bool {
    host_signs(stream).is_some_and(|signs| signs.is_unanswered)
}

/// A round trip that takes this long is one through a wide-area network; one within a site takes
/// less than 2 ms.
const FAR: Duration = Duration::from_millis(4);

/// True if a wide-area network lies between the ends of this connection: its shortest round trip
/// takes 4 ms. The system measures without the processes at its ends, which may wait for a CPU.
pub(crate) fn is_far(stream: &impl AsFd) -> bool {
    let info = getsockopt(stream, ConnectionInfo).ok();
    let shortest = info.and_then(|info| figure(&info, offset_of!(tcp_info, tcpi_min_rtt)));
    // A connection without a measurement has the largest number.
    let measured = shortest.filter(|&us| us < u32::MAX);
    measured.is_some_and(|us| Duration::from_micros(us.into()) >= FAR)
}

/// Closes a connection by a reset, which the other end takes for a break and not for the end of
/// the stream.
pub(crate) fn abandon<S: AsFd>(stream: &S) {
    // A socket that has ended may refuse the setting, and needs none.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Lets the system take nothing more that comes on this connection, so that it acknowledges nothing
/// either. What has come before can still be read.
pub(crate) fn stop_receiving<S: AsFd>(stream: &S) {
    // A program of the kernel's packet filter, which leaves 0 bytes of each segment.
    let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
    // A connection that has ended needs no filter. A system without filters may acknowledge bytes
    // until the reset.
    let _ = SockRef::from(stream).attach_filter(&[nothing]);
}

/// Lets the system acknowledge segments later, some at once, as it does by itself on connections
/// where each has an answer; or, if `delays` is false, at once. Both hold until a pause of some 40
/// ms: see tcp(7), `TCP_QUICKACK`.
pub(super) fn delay_acknowledgements(stream: &impl AsFd, delays: bool) {
    // Where the system refuses, only time is lost.
    let _ = SockRef::from(stream).set_tcp_quickack(!delays);
}

/// Prepares the socket of a link to `peer`, which may not be connected yet. Without the name of a
/// congestion control, the choice is the system's, but bbr to a host that `is_far`, where the
/// system has it and allows it, and never bbr within the machine.
///
/// # Errors
/// If the system does not have the chosen congestion control (the error lists those that it has),
/// or refuses another setting.
pub fn tune(
    socket: &Socket,
    peer: SocketAddr,
    congestion: Option<&str>,
    is_far: bool,
) -> Result<()> {
    socket.set_tcp_nodelay(true).map_err(|e| Error::io("setting TCP_NODELAY", e))?;
    match congestion {
        Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(|e| unavailable(name, &e)),
        None if is_far => {
            // One packet lost in a thousand leaves a flow of cubic a tenth of 100 Mbit/s at 40 ms,
            // since it takes each loss for a full queue; bbr (Cardwell et al., ACM Queue 14.5)
            // measures the rate. A system that refuses keeps its own choice.
            let _ = socket.set_tcp_congestion(b"bbr");
            Ok(())
        }
        None => {
            avoid_bbr_on_loopback(socket, peer);
            Ok(())
        }
    }
}

/// Replaces bbr on connections within the machine, which it paces too. Between machines the
/// system's choice stands.
fn avoid_bbr_on_loopback(socket: &Socket, theirs: SocketAddr) {
    let Some(ours) = socket.local_addr().ok().and_then(|ours| ours.as_socket()) else { return };
    let paced = socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"));
    if paced && same_machine(&ours, &theirs) {
        // Without privileges the system may allow only one of the two, or neither: then bbr stays,
        // which is slower but correct.
        let _ = ["cubic", "reno"].iter().find(|n| socket.set_tcp_congestion(n.as_bytes()).is_ok());
    }
}

/// True of a connection from an address to itself, or over loopback.
fn same_machine(ours: &SocketAddr, theirs: &SocketAddr) -> bool {
    ours.ip() == theirs.ip() || theirs.ip().to_canonical().is_loopback()
}

fn unavailable(name: &str, why: &std::io::Error) -> Error {
    let list = |which: &str| {
        fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control"))
            .map_or_else(|e| format!("unknown ({e})"), |names| names.trim().replace(' ', ", "))
    };
    Error::Config {
        name: "RINGREDUCE_TCP_CONGESTION".into(),
        given: name.into(),
        expected: format!(
            "{why}; this system has {}, and allows everybody {}",
            list("available"),
            list("allowed")
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use socket2::Socket;

    use super::{is_far, is_unanswered, same_machine, stop_receiving, tune};
    use crate::error::Error;
    use crate::sync::Instant;
    use crate::transport::tcp::unacknowledged;

    /// A connection, and its listener, without which the connection would be reset.
    fn connect() -> (Socket, SocketAddr, TcpListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (TcpStream::connect(address).unwrap().into(), address, listener)
    }

    #[test]
    fn a_tuned_socket_has_no_nagle_delay() {
        let (socket, peer, _listener) = connect();
        tune(&socket, peer, None, false).unwrap();
        assert!(socket.tcp_nodelay().unwrap());
    }

    #[test]
    fn loopback_avoids_bbr_where_the_system_allows() {
        let (socket, peer, _listener) = connect();
        let can = ["cubic", "reno"].iter().any(|n| socket.set_tcp_congestion(n.as_bytes()).is_ok());
        if !can || socket.set_tcp_congestion(b"bbr").is_err() {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "SKIP loopback_avoids_bbr_where_the_system_allows: needs bbr and cubic or reno"
            );
            return;
        }
        tune(&socket, peer, None, false).unwrap();
        assert!(!socket.tcp_congestion().unwrap().starts_with(b"bbr"));
        tune(&socket, peer, Some("bbr"), false).unwrap();
        assert!(socket.tcp_congestion().unwrap().starts_with(b"bbr"), "the chosen control is used");
    }

    /// The peer must not give up bytes that nobody will read.
    #[test]
    fn bytes_after_the_stop_are_not_acknowledged_and_those_before_it_can_be_read() {
        let (socket, peer, listener) = connect();
        let (receiver, _) = listener.accept().unwrap();
        tune(&socket, peer, None, false).unwrap();
        socket.send(&[1]).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while unacknowledged(&socket) > 0 {
            assert!(Instant::now() < until, "the byte is not acknowledged");
        }
        stop_receiving(&receiver);
        socket.send(&[2]).unwrap();
        // The system sends the byte again and again.
        while !is_unanswered(&socket) {
            assert!(Instant::now() < until, "the byte was taken");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(unacknowledged(&socket), 1);
        receiver.set_nonblocking(true).unwrap();
        let mut bytes = [0; 2];
        assert_eq!((&receiver).read(&mut bytes).unwrap(), 1);
        assert_eq!((&receiver).read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn far_hosts_are_reached_by_bbr_where_the_system_allows() {
        let (socket, peer, _listener) = connect();
        assert!(!is_far(&socket), "a round trip on one machine");
        let may = socket.set_tcp_congestion(b"bbr").is_ok();
        // Every system allows reno.
        for chosen in [None, Some("reno")] {
            socket.set_tcp_congestion(b"reno").unwrap();
            tune(&socket, peer, chosen, true).unwrap();
            let is_bbr = socket.tcp_congestion().unwrap().starts_with(b"bbr");
            assert_eq!(is_bbr, may && chosen.is_none(), "{chosen:?}");
        }
    }

    #[test]
    fn an_unknown_congestion_control_is_an_error_that_lists_the_known_ones() {
        let (socket, peer, _listener) = connect();
        match tune(&socket, peer, Some("warp"), false) {
            Err(Error::Config { name, given, expected }) => {
                assert_eq!((name.as_str(), given.as_str()), ("RINGREDUCE_TCP_CONGESTION", "warp"));
                assert!(expected.contains("reno"), "{expected}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_loopback_and_own_addresses_count_as_one_machine() {
        let v4 = |a, b, c, d| (Ipv4Addr::new(a, b, c, d), 1).into();
        assert!(same_machine(&v4(127, 0, 0, 1), &v4(127, 0, 0, 2)));
        assert!(same_machine(&v4(10, 0, 0, 1), &v4(10, 0, 0, 1)));
        assert!(!same_machine(&v4(10, 0, 0, 1), &v4(10, 0, 0, 2)));
        assert!(same_machine(&(Ipv6Addr::LOCALHOST, 1).into(), &(Ipv6Addr::LOCALHOST, 2).into()));
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        assert!(same_machine(&(Ipv6Addr::UNSPECIFIED, 1).into(), &(mapped, 2).into()));
    }
}
