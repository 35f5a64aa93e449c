//! Sockets of the bootstrap: every wait has a deadline, every descriptor is close-on-exec, Unix
//! sockets are abstract and both ends belong to one user.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::sync::{Instant, MAX_SLEEP, SocketPair, open_sockets};

/// Connections that the kernel queues for a listener until they are accepted.
const ACCEPT_BACKLOG: i32 = 1024;

/// Waits until one of `fds` is ready or `deadline` has come; true if one is ready.
pub(super) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A wait without a deadline need not read the clock.
        let slice = left.map_or(Duration::from_secs(60), |left| left.min(MAX_SLEEP));
        let millis = slice.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::ZERO);
        match poll(fds, timeout) {
            Ok(0) if left.is_none_or(|left| !left.is_zero()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for `events` on one descriptor; [`io::ErrorKind::TimedOut`] when `deadline` has come.
pub(super) fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<()> {
    match wait(&mut [PollFd::new(fd, events)], Some(deadline))? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Receives the bytes that have arrived, up to `buf`'s length, without waiting; `None` if there are
/// none.
pub(super) fn try_recv(socket: &Socket, buf: &mut [u8]) -> io::Result<Option<usize>> {
    without_waiting(|| recv(socket.as_raw_fd(), buf, MsgFlags::MSG_DONTWAIT))
}

/// Sends as many bytes as the kernel takes, without waiting; `None` if it takes none.
pub(super) fn try_send(socket: &Socket, buf: &[u8]) -> io::Result<Option<usize>> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    without_waiting(|| send(socket.as_raw_fd(), buf, flags))
}

fn without_waiting(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(super) fn send_all(socket: &Socket, mut buf: &[u8], deadline: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        match try_send(socket, buf)? {
            Some(count) => buf = &buf[count..],
            None => wait_for(socket.as_fd(), PollFlags::POLLOUT, deadline)?,
        }
    }
    Ok(())
}

/// Result of one `accept` on a listener.
pub(super) enum Accepted {
    /// An accepted connection.
    Connection(Socket),
    /// No connection waits in the backlog.
    Nothing,
    /// A connection waits, but this process or the system has no descriptor left for it.
    NoDescriptor(io::Error),
}

/// Accepts one connection from a listener, without waiting.
pub(super) fn accept(listener: &Socket) -> io::Result<Accepted> {
    let exhausted = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    loop {
        let error = match open_sockets(|| listener.accept().map(|(socket, _)| socket)) {
            Ok(socket) => return Ok(Accepted::Connection(socket)),
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(Accepted::Nothing),
            // The connection was closed before it was accepted.
            io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
            _ if exhausted.iter().any(|&errno| error.raw_os_error() == Some(errno as i32)) => {
                // The kernel reports a lack of descriptors before it looks for a connection, so
                // poll the listener.
                let mut listener = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                return Ok(match wait(&mut listener, Some(Instant::now()))? {
                    true => Accepted::NoDescriptor(error),
                    false => Accepted::Nothing,
                });
            }
            _ => return Err(error),
        }
    }
}

/// The least number of pending connections, where descriptors are few: with less, ranks that
/// connect all at once would displace each other.
const MIN_PENDING: usize = 16;

/// The most connections that may be in their handshake, at most `most`. Unauthenticated connections
/// get half of the descriptors that are left after `needed` ones, so that they can't stop this
/// process's own work; at least 16, as far as descriptors last, and never less than 4.
pub(super) fn pending_limit(most: usize, needed: usize) -> usize {
    let open = fs::read_dir("/proc/self/fd").map(Iterator::count);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft as usize);
    match (open, limit) {
        (Ok(open), Ok(limit)) => bounded(most, limit.saturating_sub(open + needed)),
        _ => most,
    }
}

/// The limit for `left` free descriptors.
fn bounded(most: usize, left: usize) -> usize {
    most.min((left / 2).max(left.min(MIN_PENDING)).max(4))
}

/// An address in the abstract namespace: no file, gone with its socket.
fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// The user who listens at an abstract Unix socket, if one does.
pub(super) fn unix_holder(name: &str) -> Option<u32> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect(&abstract_address(name).ok()?).ok()?;
    Some(getsockopt(&socket, PeerCredentials).ok()?.uid())
}

/// Listens at an abstract Unix socket.
pub(super) fn listen_unix(name: &str) -> io::Result<Socket> {
    let socket = open_sockets(|| Socket::new(Domain::UNIX, Type::STREAM, None))?;
    socket.bind(&abstract_address(name)?)?;
    socket.listen(ACCEPT_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Two Unix sockets of this process that are connected with each other.
pub(super) fn unix_pair() -> io::Result<(UnixStream, UnixStream)> {
    let pair = || UnixStream::pair().map(|(one, other)| SocketPair(one, other));
    open_sockets(pair).map(|SocketPair(one, other)| (one, other))
}

pub(super) fn listen_tcp(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = open_sockets(|| Socket::new(domain, Type::STREAM, None))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of an earlier job may still be in TIME_WAIT. Two listeners at one address still
    // exclude each other.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(ACCEPT_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects to an abstract Unix socket of the same user; [`io::ErrorKind::WouldBlock`] if the
/// listener's backlog is full.
pub(super) fn connect_unix(name: &str) -> io::Result<Socket> {
    let socket = open_sockets(|| Socket::new(Domain::UNIX, Type::STREAM, None))?;
    socket.set_nonblocking(true)?;
    socket.connect(&abstract_address(name)?)?;
    same_user(&socket)?;
    Ok(socket)
}

/// How often a wait checks whether it is cancelled.
pub(super) const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits for `events` on one descriptor; [`io::ErrorKind::TimedOut`] when `deadline` has come, or
/// within 10 ms after the wait is cancelled.
pub(super) fn wait_unless(
    cancelled: &dyn Fn() -> bool,
    (fd, events): (BorrowedFd<'_>, PollFlags),
    deadline: Instant,
) -> io::Result<()> {
    loop {
        let slice_end = deadline.min(Instant::now() + CANCEL_POLL_INTERVAL);
        match wait_for(fd, events, slice_end) {
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut
                    && slice_end < deadline
                    && !cancelled() => {}
            done => return done,
        }
    }
}

/// Checks by the kernel's credentials that the peer belongs to the same user. Abstract sockets have
/// no permissions.
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
    fn pending_connections_leave_descriptors_for_the_job() {
        for (most, left, places) in [(64, 0, 4), (64, 10, 10), (64, 20, 16), (64, 50, 25)] {
            assert_eq!(bounded(most, left), places, "{most} {left}");
        }
        assert_eq!((bounded(64, 1000), bounded(8, 1000)), (64, 8));
    }
}
