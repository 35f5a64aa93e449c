//! Connecting to one of a rank's addresses over TCP.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::slice;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use super::socket::{CANCEL_POLL_INTERVAL, wait};
use crate::error::Limit;
use crate::sync::{Instant, open_sockets};

/// The longest that one attempt to connect takes.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an address may take to answer before the next one is tried beside it (RFC 8305).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to a TCP address; gives up when cancelled.
pub(super) fn connect_tcp(
    address: SocketAddr,
    deadline: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<Socket> {
    connect_first(&[address], deadline, cancelled).map(|(socket, _)| socket)
}

/// Connects to the first of these addresses that answers (RFC 8305): each further address is tried
/// as soon as an attempt has failed, or beside the others after 250 ms. Gives up when cancelled.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if an address refuses, and the others do too or can't be
/// reached from here at all; [`io::ErrorKind::TimedOut`] after 5 s.
pub(super) fn connect_first(
    addresses: &[SocketAddr],
    deadline: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<(Socket, SocketAddr)> {
    let deadline = deadline.min(Instant::now() + ATTEMPT_TIMEOUT);
    let mut attempts = Attempts::new(addresses);
    let connected = attempts.first_connected(deadline, cancelled)?;
    connected.ok_or_else(|| attempts.timed_out())
}

/// As [`connect_first`], but waits at most 250 ms for each address, and not at all for a single
/// one. If none has answered by then, the system goes on to connect to the last that has not
/// failed: the others have been silent for longer.
pub(super) fn connect_soon(addresses: &[SocketAddr]) -> io::Result<(Socket, SocketAddr)> {
    let limit = match addresses {
        [_] => Duration::ZERO,
        several => NEXT_ADDRESS_AFTER * several.len() as u32,
    };
    let mut attempts = Attempts::new(addresses);
    let connected = attempts.first_connected(Instant::now() + limit, &|| false)?;
    let connecting = attempts.open.pop();
    connected.or(connecting).ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Attempts to connect to the addresses of a rank.
struct Attempts<'a> {
    untried: slice::Iter<'a, SocketAddr>,
    /// The attempts that go on, in the order of the addresses.
    open: Vec<(Socket, SocketAddr)>,
    failures: Vec<(SocketAddr, io::Error)>,
}

impl<'a> Attempts<'a> {
    fn new(addresses: &'a [SocketAddr]) -> Self {
        Self { untried: addresses.iter(), open: Vec::new(), failures: Vec::new() }
    }

    /// The first connection that stands; `None` if attempts go on at the deadline, or when
    /// cancelled.
    ///
    /// # Errors
    /// If all attempts have failed.
    fn first_connected(
        &mut self,
        deadline: Instant,
        cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Option<(Socket, SocketAddr)>> {
        let mut next_at = Instant::now();
        loop {
            while (self.open.is_empty() || Instant::now() >= next_at)
                && let Some(&address) = self.untried.next()
            {
                match begin(address) {
                    Ok(socket) => {
                        self.open.push((socket, address));
                        next_at = Instant::now() + NEXT_ADDRESS_AFTER;
                    }
                    Err(error) if Limit::of(&error).is_some() => return Err(error),
                    Err(error) => self.failures.push((address, error)),
                }
            }
            if self.open.is_empty() {
                return Err(all_failures(mem::take(&mut self.failures)));
            }
            let mut slice_end = deadline.min(Instant::now() + CANCEL_POLL_INTERVAL);
            if self.untried.len() > 0 {
                slice_end = slice_end.min(next_at);
            }
            let connecting = self.open.iter().map(|(socket, _)| socket);
            let mut polled: Vec<_> =
                connecting.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLOUT)).collect();
            if wait(&mut polled, Some(slice_end))? {
                let ready: Vec<_> = polled.iter().map(|fd| fd.any().unwrap_or(false)).collect();
                let mut ready = ready.into_iter();
                for (socket, address) in self.open.extract_if(.., |_| ready.next().unwrap_or(false))
                {
                    match socket.take_error()? {
                        None => return Ok(Some((socket, address))),
                        Some(error) => self.failures.push((address, error)),
                    }
                    next_at = Instant::now();
                }
            } else if Instant::now() >= deadline || cancelled() {
                return Ok(None);
            }
        }
    }

    /// The error of attempts that have taken too long.
    fn timed_out(self) -> io::Error {
        let silent = self.open.iter().map(|(_, address)| *address);
        let silent = silent.map(|address| (address, io::ErrorKind::TimedOut.into()));
        all_failures(self.failures.into_iter().chain(silent).collect())
    }
}

/// One error for all addresses, of which none has answered.
fn all_failures(mut failures: Vec<(SocketAddr, io::Error)>) -> io::Error {
    match failures.len() {
        0 => return io::ErrorKind::AddrNotAvailable.into(),
        1 => return failures.remove(0).1,
        _ => {}
    }
    let kinds: Vec<_> = failures.iter().map(|(_, error)| error.kind()).collect();
    let are_equal = kinds.iter().all(|kind| *kind == kinds[0]);
    let refused = io::ErrorKind::ConnectionRefused;
    let is_final = |kind: &io::ErrorKind| *kind == refused || has_no_way(*kind);
    let kind = match kinds.contains(&refused) && kinds.iter().all(is_final) {
        true => refused,
        false if are_equal => kinds[0],
        false if kinds.iter().all(|kind| has_no_way(*kind)) => io::ErrorKind::HostUnreachable,
        false => io::ErrorKind::TimedOut,
    };
    let texts: Vec<_> =
        failures.iter().map(|(address, error)| format!("{address}: {error}")).collect();
    io::Error::new(kind, texts.join("; "))
}

/// True if this host knows no way to an address.
pub(super) fn has_no_way(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable, Unsupported};
    matches!(kind, AddrNotAvailable | HostUnreachable | NetworkUnreachable | Unsupported)
}

/// A socket for a connection to this address.
pub(super) fn unconnected(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = open_sockets(|| Socket::new(domain, Type::STREAM, None))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Begins to connect, without waiting; the socket can be written once the connection stands or has
/// failed.
fn begin(address: SocketAddr) -> io::Result<Socket> {
    let socket = unconnected(address)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {}
        connected => connected?,
    }
    // Where no listener exists, the kernel may pick that very port for this socket and connect it
    // to itself.
    if socket.local_addr()?.as_socket() == Some(address) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::socket::listen_tcp;
    use super::*;

    fn listener() -> (Socket, SocketAddr) {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        (listener, address)
    }

    /// A listener that answers nobody: two connections fill its backlog, since nothing accepts
    /// them, and the kernel answers no further one.
    fn silent_listener() -> (Socket, SocketAddr, [Socket; 2]) {
        let (listener, address) = listener();
        listener.listen(1).unwrap();
        let both = [(); 2].map(|()| connect_tcp(address, in_an_hour(), &|| false).unwrap());
        (listener, address, both)
    }

    fn in_an_hour() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    /// An address of this host at which nothing listens.
    fn refusing() -> SocketAddr {
        listener().1
    }

    #[test]
    fn a_cancelled_dialler_stops_waiting_for_its_connection() {
        let (_listener, address, _full) = silent_listener();
        let polls = std::cell::Cell::new(0);
        let is_third_poll = || {
            polls.set(polls.get() + 1);
            polls.get() == 3
        };
        let error = connect_tcp(address, in_an_hour(), &is_third_poll).unwrap_err();
        assert_eq!((error.kind(), polls.get()), (io::ErrorKind::TimedOut, 3));
    }

    #[test]
    fn the_first_address_that_answers_is_taken() {
        let (_good_listener, good) = listener();
        let (_silent_listener, silent, _full) = silent_listener();
        for addresses in [vec![good], vec![refusing(), good], vec![silent, refusing(), good]] {
            let (socket, chosen) = connect_first(&addresses, in_an_hour(), &|| false).unwrap();
            assert_eq!(chosen, good, "{addresses:?}");
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(good), "{addresses:?}");
        }
    }

    #[test]
    fn a_link_waits_briefly_for_an_address_that_answers() {
        let (_good_listener, good) = listener();
        let (_silent_listener, silent, _full) = silent_listener();
        for addresses in [vec![refusing(), good], vec![silent, refusing(), good]] {
            let (socket, chosen) = connect_soon(&addresses).unwrap();
            assert_eq!(chosen, good, "{addresses:?}");
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(good), "{addresses:?}");
        }
        let (_other_listener, other, _also_full) = silent_listener();
        for (addresses, last) in [
            (vec![silent], silent),
            (vec![silent, other], other),
            (vec![refusing(), silent], silent),
        ] {
            let (socket, chosen) = connect_soon(&addresses).unwrap();
            assert_eq!(chosen, last, "{addresses:?}");
            assert!(socket.peer_addr().is_err(), "{addresses:?}");
        }
        let error = connect_soon(&[refusing(), refusing()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn all_that_refuse_are_a_refusal_and_no_silent_address_is_one() {
        let (_listener, silent, _full) = silent_listener();
        let soon = || Instant::now() + Duration::from_millis(20);
        let error =
            |addresses: &[SocketAddr]| connect_first(addresses, soon(), &|| false).unwrap_err();
        let (one, other) = (refusing(), refusing());
        assert_eq!(error(&[one, other]).kind(), io::ErrorKind::ConnectionRefused);
        assert!(error(&[one, other]).to_string().contains(&other.to_string()));
        // Multicast has no TCP.
        let no_way = "224.0.0.1:9".parse().unwrap();
        assert!(has_no_way(error(&[no_way]).kind()));
        assert_eq!(error(&[no_way, one]).kind(), io::ErrorKind::ConnectionRefused);
        assert!(has_no_way(error(&[no_way, no_way]).kind()));
        let mixed = error(&[one, silent]);
        assert_eq!(mixed.kind(), io::ErrorKind::TimedOut);
        assert!(mixed.to_string().contains(&format!("{one}: Connection refused")), "{mixed}");
        assert_eq!(error(&[]).kind(), io::ErrorKind::AddrNotAvailable);
    }
}
