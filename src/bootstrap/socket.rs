//! Sockets as the meeting uses them: every wait has a deadline, every descriptor is close-on-exec,
//! Unix sockets are abstract and their peer is the same user. May touch: nix, socket2.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};

/// How many connections the kernel keeps for us until we accept them.
const BACKLOG: i32 = 1024;

/// Waits until one of `fds` has news or `until` has come; whether there is news.
pub(super) fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let millis = left.map_or(60_000, |left| left.as_micros().div_ceil(1000).min(60_000));
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::ZERO);
        match poll(fds, timeout) {
            Ok(0) if left.is_none_or(|left| !left.is_zero()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for `events` on one descriptor; [`io::ErrorKind::TimedOut`] when `until` has come.
pub(super) fn wait_one(fd: BorrowedFd<'_>, events: PollFlags, until: Instant) -> io::Result<()> {
    match wait(&mut [PollFd::new(fd, events)], Some(until))? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Receives what is there, up to `buf`'s length; `None` if nothing is.
pub(super) fn recv_now(socket: &Socket, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match recv(socket.as_raw_fd(), buf, MsgFlags::MSG_DONTWAIT) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends what the kernel takes now; `None` if it takes nothing.
pub(super) fn send_now(socket: &Socket, buf: &[u8]) -> io::Result<Option<usize>> {
    loop {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(socket.as_raw_fd(), buf, flags) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends all of `buf`.
pub(super) fn send_all(socket: &Socket, mut buf: &[u8], until: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        match send_now(socket, buf)? {
            Some(count) => buf = &buf[count..],
            None => wait_one(socket.as_fd(), PollFlags::POLLOUT, until)?,
        }
    }
    Ok(())
}

/// What a listener has.
pub(super) enum Knock {
    /// One that connected.
    Caller(Socket),
    /// Nobody.
    Nobody,
    /// Somebody, but no descriptor is left here or in the whole system.
    NoRoom(io::Error),
}

/// Takes one caller from a listener.
pub(super) fn accept(listener: &Socket) -> io::Result<Knock> {
    let lacking = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    loop {
        let error = match listener.accept() {
            Ok((socket, _)) => return Ok(Knock::Caller(socket)),
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(Knock::Nobody),
            // The caller has gone again.
            io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
            _ if lacking.iter().any(|&errno| error.raw_os_error() == Some(errno as i32)) => {
                // The kernel looks for a descriptor first, and only then for a caller.
                let mut listener = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                return Ok(match wait(&mut listener, Some(Instant::now()))? {
                    true => Knock::NoRoom(error),
                    false => Knock::Nobody,
                });
            }
            _ => return Err(error),
        }
    }
}

/// How many strangers may hold a descriptor at a time where there are few: with less, ranks that
/// come all at once would take each other's place.
const LEAST_STRANGERS: usize = 16;

/// How many strangers may hold a descriptor at a time, of `most`: half of what is left when
/// `needed` are taken, so that they can't keep this process from its own work; or a few, as far as
/// they leave it these.
pub(super) fn room_for(most: usize, needed: usize) -> usize {
    let open = fs::read_dir("/proc/self/fd").map(Iterator::count);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft as usize);
    match (open, limit) {
        (Ok(open), Ok(limit)) => share(most, limit.saturating_sub(open + needed)),
        _ => most,
    }
}

/// Of so many that are left.
fn share(most: usize, left: usize) -> usize {
    most.min((left / 2).max(left.min(LEAST_STRANGERS)).max(4))
}

/// An address in the abstract namespace: nothing in the file system, gone with its socket.
fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// Listens at an abstract Unix socket.
pub(super) fn listen_unix(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&abstract_address(name)?)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens at one address, and only there.
pub(super) fn listen_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of an earlier world may still be in their last state; two listeners still
    // exclude each other.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects to an abstract Unix socket of the same user; [`io::ErrorKind::WouldBlock`] if the
/// listener has too many connections to accept.
pub(super) fn connect_unix(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&abstract_address(name)?)?;
    same_user(&socket)?;
    Ok(socket)
}

/// The longest that one attempt to connect over TCP takes; a host that drops packets must not keep
/// us from its other addresses.
const CONNECT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often who waits looks whether to go on.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits for `events` on one descriptor; [`io::ErrorKind::TimedOut`] when `until` has come, or too
/// soon after who waits has given up.
pub(super) fn wait_unless(
    cancelled: &dyn Fn() -> bool,
    (fd, events): (BorrowedFd<'_>, PollFlags),
    until: Instant,
) -> io::Result<()> {
    loop {
        let soon = until.min(Instant::now() + CANCEL_POLL_INTERVAL);
        match wait_one(fd, events, soon) {
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut && soon < until && !cancelled() => {}
            done => return done,
        }
    }
}

/// Connects to a TCP address, unless who connects gives up.
pub(super) fn connect_tcp(
    address: SocketAddr,
    until: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {
            let until = until.min(Instant::now() + CONNECT_ATTEMPT_TIMEOUT);
            wait_unless(cancelled, (socket.as_fd(), PollFlags::POLLOUT), until)?;
            socket.take_error()?.map_or(Ok(()), Err)?;
        }
        connected => connected?,
    }
    // Where nobody listens yet, the kernel may pick that very port for us and meet itself.
    if socket.local_addr()?.as_socket() == Some(address) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Abstract sockets have no permissions, so both sides ask the kernel who the other one is.
pub(super) fn same_user(socket: &Socket) -> io::Result<()> {
    let peer = getsockopt(socket, PeerCredentials)?.uid();
    let me = geteuid().as_raw();
    if peer == me {
        return Ok(());
    }
    let text = format!("it belongs to user {peer}, not to {me}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_up_does_not_wait_for_an_attempt_to_connect() {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        // Room for two that nobody accepts; the kernel answers no other.
        listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let until = Instant::now() + Duration::from_secs(3600);
        let _both = [(); 2].map(|()| connect_tcp(address, until, &|| false).unwrap());
        let asked = std::cell::Cell::new(0);
        let third_time = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let error = connect_tcp(address, until, &third_time).unwrap_err();
        assert_eq!((error.kind(), asked.get()), (io::ErrorKind::TimedOut, 3));
    }

    #[test]
    fn strangers_leave_what_is_needed() {
        for (most, left, places) in [(64, 0, 4), (64, 10, 10), (64, 20, 16), (64, 50, 25)] {
            assert_eq!(share(most, left), places, "{most} {left}");
        }
        assert_eq!((share(64, 1000), share(8, 1000)), (64, 8));
    }
}
