//! Addresses of diallers that have another secret than the listener.
//! Law: a bounded number of addresses is kept, and each is reported once at most, so that an
//! attacker can't fill the output.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use crate::bootstrap::socket::wait;
use crate::sync::Instant;

/// The most addresses that are kept.
const MAX_ADDRESSES: usize = 64;
/// Connections of one address that must close after the answer before the address is reported. A
/// dialler that ends or gives up at that moment closes one, and one with another secret all.
const MIN_CLOSED: u32 = 3;

/// Counts connections that their diallers have closed after the answer, as a dialler does that
/// finds the answer made with another secret.
#[derive(Debug, Default)]
pub(super) struct WrongSecrets(BTreeMap<IpAddr, u32>);

impl WrongSecrets {
    /// Counts a closed connection. True if its address is to be reported now.
    pub(super) fn record(&mut self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&address) {
            return false;
        }
        let closed = self.0.entry(address).or_default();
        *closed = closed.saturating_add(1);
        *closed == MIN_CLOSED
    }

    /// A dialler at this address has the secret of the listener.
    pub(super) fn forgive(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        if self.0.get(&address).is_some_and(|closed| *closed < MIN_CLOSED) {
            self.0.remove(&address);
        }
    }
}

/// True if the peer has sent its last byte, or the system can't tell.
pub(super) fn has_closed(socket: &Socket) -> bool {
    let closed = PollFd::new(socket.as_fd(), PollFlags::from_bits_retain(POLLRDHUP));
    wait(&mut [closed], Some(Instant::now())).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::handshake::Dialler;
    use super::super::sealed_stream::{SealedListener, SealedStream, identity, keys};
    use super::*;
    use crate::config::{Config, SECRET_LEN};

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn an_address_is_reported_once_and_after_several_connections() {
        let mut all = WrongSecrets::default();
        let reported: Vec<_> = (0..10).map(|_| all.record(address(1))).collect();
        assert_eq!(reported.iter().position(|&it| it), Some(MIN_CLOSED as usize - 1));
        assert_eq!(reported.iter().filter(|&&it| it).count(), 1);
        all.forgive(address(1));
        assert!((0..10).all(|_| !all.record(address(1))));
        for _ in 0..10 {
            // One that gives up now and then, but has the secret.
            assert!(!all.record(address(2)) && !all.record(address(2)));
            all.forgive(address(2));
        }
        // An IPv4 address may come as an IPv6 one.
        let mapped: IpAddr = "::ffff:10.0.0.3".parse().unwrap();
        assert_eq!([address(3), mapped, address(3)].map(|it| all.record(it)), [false, false, true]);
    }

    #[test]
    fn addresses_beyond_the_limit_are_not_kept() {
        let mut all = WrongSecrets::default();
        let rounds = (0..MIN_CLOSED).flat_map(|_| 0..=255);
        let reported = rounds.filter(|&last| all.record(address(last))).count();
        assert_eq!((reported, all.0.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
    }

    /// A dialler whose time ends, as while the listener's process is stopped, closes before it is
    /// answered.
    #[test]
    fn a_listener_reports_another_secret_and_no_dialler_that_gave_up() {
        let secret = [7; SECRET_LEN];
        let mut listener = SealedListener::new(&secret, &Config::default()).unwrap();
        let (report, reported) = channel();
        listener.report_wrong_secrets(move |address| report.send(address).unwrap());
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
        for _ in 0..10 {
            let (_, offer) = Dialler::new(&keys(&secret), identity(1), [5; 32]);
            TcpStream::connect(at).unwrap().write_all(&offer).unwrap();
            TcpStream::connect(at).unwrap().write_all(b"GET / HTTP/1.1\r\n").unwrap();
        }
        let dial = move |byte| {
            let deadline = Instant::now() + Duration::from_secs(60);
            SealedStream::dial(at, &[byte; SECRET_LEN], 1, deadline)
        };
        let (open, _cancel) = UnixStream::pair().unwrap();
        let right = std::thread::spawn(move || dial(7).is_ok());
        assert!(listener.accept(open.as_fd()).unwrap().is_some() && right.join().unwrap());
        assert!(reported.try_recv().is_err());
        let others = std::thread::spawn(move || {
            assert!((0..10).all(|_| dial(8).is_err()));
            dial(7).is_ok()
        });
        assert!(listener.accept(open.as_fd()).unwrap().is_some() && others.join().unwrap());
        assert_eq!(reported.try_iter().collect::<Vec<_>>(), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }
}
