//! TCP keepalive: the system asks the other host of a connection for a sign of life. A limit on
//! retransmission (`TCP_USER_TIMEOUT`) takes its place while bytes are under way.
//! Of the control connections of a process, the system asks often on one to each host, which stands
//! for the others: many ranks of many hosts would ask all day. They have no limit on
//! retransmission, since the process looks at them whenever it waits.
//! Law: a dead or unreachable host is noticed within the set time, with bytes under way or without.

use std::io;
use std::time::Duration;

use socket2::{Domain, Socket, TcpKeepalive};

use crate::transport::tcp::host_signs;

/// Keepalive probes within the time after which a host is unreachable; the system counts in
/// seconds.
const PROBES: u32 = 5;

/// After this time without a sign of life the system asks on a connection for which another one
/// stands. A NAT forgets no connection so soon.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(15);

/// How often the system asks for a sign of life of a host that may be silent for `unreachable`.
fn interval(unreachable: Duration) -> Duration {
    (unreachable / PROBES).max(Duration::from_secs(1))
}

/// After so long without a sign of life, a host has left a question without an answer.
pub(super) fn suspicion(unreachable: Duration) -> Duration {
    interval(unreachable) * 3 / 2
}

/// True if nothing has come from the other host for as long as `unreachable`. The system's own
/// limit starts at the last byte sent. Data count as a sign of life, too: while they arrive, the
/// system sends no probes.
fn is_silent(stream: &Socket, unreachable: Duration) -> bool {
    host_signs(stream).is_some_and(|signs| signs.silence >= unreachable)
}

/// True if the other host has been silent for longer than [`set_keepalive`] allows. The system does
/// not find out by itself while packets are lost before they leave this host: it counts no
/// retransmission that it could not send.
pub(crate) fn is_unreachable(stream: &Socket) -> bool {
    let limit = stream.tcp_user_timeout().ok().flatten();
    limit.is_some_and(|unreachable| is_silent(stream, unreachable))
}

/// Makes the socket of a control connection non-blocking. True if it is a socket of TCP.
pub(super) fn configure(stream: &Socket, unreachable: Duration) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    if stream.domain()? == Domain::UNIX {
        return Ok(false);
    }
    set_questions(stream, unreachable, false)?;
    stream.set_tcp_nodelay(true)?;
    Ok(true)
}

/// Lets the system ask for a sign of life as often as the loss of a host has to be noticed, where
/// the connection `is_watched`, and seldom where another one stands for it. The system ends the
/// connection where nothing answers, unless bytes are under way.
pub(crate) fn set_questions(
    stream: &Socket,
    unreachable: Duration,
    is_watched: bool,
) -> io::Result<()> {
    let interval = interval(unreachable);
    let first = if is_watched { interval } else { interval.max(UNWATCHED_INTERVAL) };
    let keepalive = TcpKeepalive::new().with_time(first).with_interval(interval);
    stream.set_tcp_keepalive(&keepalive.with_retries(PROBES - 1))
}

/// Lets the system end a TCP connection whose other host gives no sign of life for `unreachable`.
pub(crate) fn set_keepalive(stream: &Socket, unreachable: Duration) -> io::Result<()> {
    set_questions(stream, unreachable, true)?;
    // The system sends no probes while bytes are under way; the limit for bytes is this one.
    stream.set_tcp_user_timeout(Some(unreachable))
}

/// Lets the system end a TCP connection on which nothing is under way, if nothing answers for three
/// seconds. Bytes that a busy peer does not take have no limit.
pub(crate) fn set_idle_keepalive(stream: &Socket) -> io::Result<()> {
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new().with_time(second).with_interval(second);
    stream.set_tcp_keepalive(&keepalive.with_retries(2))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread::sleep;
    use std::time::Instant;

    use super::*;

    /// Arriving data keep the system from sending probes, and a receiver that sends nothing gets no
    /// acknowledgements either.
    #[test]
    fn a_host_that_only_sends_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = Socket::from(listener.accept().unwrap().0);
        let unreachable = Duration::from_secs(2);
        set_keepalive(&receiver, unreachable).unwrap();
        let began = Instant::now();
        while began.elapsed() < 2 * unreachable {
            sender.write_all(&[1]).unwrap();
            assert!(!is_silent(&receiver, unreachable), "after {:?}", began.elapsed());
            sleep(Duration::from_millis(200));
        }
    }
}
