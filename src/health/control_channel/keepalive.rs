//! What makes the system look whether the other end of a connection is there. May touch: OS crates.
//! Law: a host that is gone is known within a time, whether or not bytes are on their way to it.

use std::io;
use std::time::Duration;

use nix::libc::{self, IPPROTO_TCP, TCP_INFO, tcp_info};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};
use socket2::{Domain, Socket, TcpKeepalive};

/// How often the other host is asked for a sign within the time; the system counts in seconds.
const ASKS: u32 = 5;

sockopt_impl!(
    /// What the system knows of a connection.
    TcpInfo,
    GetOnly,
    IPPROTO_TCP,
    TCP_INFO,
    tcp_info
);

/// Has there been no sign of the other host for so long? The system's own limit begins with what
/// was sent last. Data are a sign, too: while they come the system asks for no other one.
pub(super) fn is_silent(stream: &Socket, unreachable: Duration) -> bool {
    let heard = |info: tcp_info| {
        Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into())
    };
    // It is none of TCP otherwise.
    getsockopt(stream, TcpInfo).is_ok_and(|info| heard(info) >= unreachable)
}

/// Without a sign of the other host for so long it is unreachable.
pub(super) fn prepare(stream: &Socket, unreachable: Duration) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    if stream.domain()? == Domain::UNIX {
        return Ok(());
    }
    watch(stream, unreachable)?;
    stream.set_tcp_nodelay(true)
}

/// The system ends a connection over TCP when there was no sign of the other host for so long.
pub(crate) fn watch(stream: &Socket, unreachable: Duration) -> io::Result<()> {
    let ask = (unreachable / ASKS).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(ask).with_interval(ask).with_retries(ASKS - 1);
    stream.set_tcp_keepalive(&keepalive)?;
    // Keepalives are not sent while bytes are under way: those have this long.
    stream.set_tcp_user_timeout(Some(unreachable))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread::sleep;
    use std::time::Instant;

    use super::*;

    /// What comes keeps the system from asking for a sign, and nothing else is acknowledged to who
    /// sends nothing.
    #[test]
    fn who_only_speaks_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut speaker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let listens = Socket::from(listener.accept().unwrap().0);
        let unreachable = Duration::from_secs(2);
        prepare(&listens, unreachable).unwrap();
        let began = Instant::now();
        while began.elapsed() < 2 * unreachable {
            speaker.write_all(&[1]).unwrap();
            assert!(!is_silent(&listens, unreachable), "after {:?}", began.elapsed());
            // The pace of the speaker.
            sleep(Duration::from_millis(200));
        }
    }
}
