//! The connections that have come to the port of a process: those whose hello is on its way, and
//! the streams that no link has taken.
//! Law: both lists are bounded. A stream is kept until its link takes it, however late its
//! communicator is made here, unless thousands of others wait too. Of each stream at most the first
//! connection and the newest later one are kept.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use socket2::Socket;

use crate::bootstrap::auth::acceptor::{PendingPeer, to_displace};
use crate::bootstrap::auth::hello::{Hello, HelloBytes, LinkStream};
use crate::bootstrap::auth::rejected::{Rejection, RejectionLog};
use crate::bootstrap::socket::listen_tcp;
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, OpeningKey, SealingKey};
use crate::transport::tcp::NewerStream;

/// The most streams that no link has asked for yet. Only processes of the job can send any, or
/// whoever repeats what they have sent.
const MAX_UNCLAIMED: usize = 16 << 10;

/// A stream that is open, with the keys of both directions on an encrypted link.
#[derive(Debug)]
pub(super) struct LinkConnection {
    pub(super) stream: Arc<TcpStream>,
    pub(super) sealer: Option<SealingKey>,
    pub(super) opener: Option<OpeningKey>,
    /// The hello of a connection that takes the place of the stream's earlier one, and its bytes.
    pub(super) resumes: Option<Box<(Hello, HelloBytes)>>,
}

impl LinkConnection {
    pub(super) fn new(socket: Socket, keys: Option<AeadKeys>) -> Self {
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        Self { stream: Arc::new(socket.into()), sealer, opener, resumes: None }
    }

    /// The newer connection of a stream, and the content of its hello; `None` for the first one.
    pub(super) fn into_newer(self) -> Option<(NewerStream, Hello)> {
        let (hello, bytes) = *self.resumes?;
        // Nobody else has the connection of a stream that no link has taken.
        let stream = Arc::into_inner(self.stream)?;
        let (generation, bytes) = (hello.generation, bytes.to_vec());
        Some((NewerStream { stream, generation, hello: bytes }, hello))
    }

    /// The number of the connection among those of its stream.
    pub(super) fn generation(&self) -> u32 {
        self.resumes.as_ref().map_or(0, |resumes| resumes.0.generation)
    }
}

/// A connection whose hello has come in part.
pub(super) struct Pending {
    pub(super) socket: Socket,
    pub(super) hello: HelloBytes,
    pub(super) filled: usize,
    pub(super) peer: PendingPeer,
}

/// The connections that have come.
pub(super) struct Arrivals {
    /// At most [`MAX_ADDRESSES`](crate::bootstrap::tcp_addresses::MAX_ADDRESSES), and one for an
    /// address that the host has got since.
    pub(super) listeners: Vec<Socket>,
    /// True once the last listener is one of such an address.
    has_moved: bool,
    /// The address where the process could not listen.
    refused_at: Option<IpAddr>,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// The number of the next connection.
    pub(super) next: u64,
    /// Streams that no link has taken, in the order in which they came.
    pub(super) unclaimed: Vec<(LinkStream, LinkConnection)>,
    /// Streams that were kept so far.
    pub(super) kept: u64,
    /// Until when no connection is accepted.
    pub(super) rests_until: Option<Instant>,
    pub(super) rejections: RejectionLog,
}

impl Arrivals {
    /// No connection yet at these listeners; the first has the number `next`.
    pub(super) fn new(listeners: Vec<Socket>, rejections: RejectionLog, next: u64) -> Self {
        let (pending, unclaimed) = (BTreeMap::new(), Vec::new());
        let (has_moved, refused_at, kept, rests_until) = (false, None, 0, None);
        Self {
            listeners,
            has_moved,
            refused_at,
            pending,
            next,
            unclaimed,
            kept,
            rests_until,
            rejections,
        }
    }

    /// Listens at this address of the host, too, which may be new, in place of the last one of
    /// this kind.
    ///
    /// # Errors
    /// If the port of this process can't be had there, the first time.
    pub(super) fn listen_at(&mut self, ip: IpAddr, poll: &Epoll) -> io::Result<()> {
        let addresses = self.listeners.iter().filter_map(|it| it.local_addr().ok()?.as_socket());
        let own: Vec<_> = addresses.collect();
        // Peers try each port of the process there.
        let Some(port) = own.first().map(SocketAddr::port) else { return Ok(()) };
        if own.iter().any(|it| it.ip() == ip || it.ip().is_unspecified()) {
            return Ok(());
        }
        let listener = match listen_tcp((ip, port).into()) {
            Ok(listener) => listener,
            Err(_) if self.refused_at.replace(ip) == Some(ip) => return Ok(()),
            Err(error) => return Err(io::Error::other(format!("port {port}: {error}"))),
        };
        if std::mem::replace(&mut self.has_moved, true) {
            self.listeners.pop();
        }
        poll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, self.listeners.len() as u64))?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Keeps a stream until its link takes it.
    pub(super) fn keep(
        &mut self,
        stream: LinkStream,
        link: LinkConnection,
    ) -> Result<(), Rejection> {
        // The first connection may hold bytes that the dialler does not keep any more, since the
        // system has acknowledged them. A later one holds none before it was answered.
        let is_first = link.generation() == 0;
        let mut same = self.unclaimed.iter_mut().filter(|(other, _)| *other == stream);
        if let Some((_, known)) = same.find(|(_, known)| (known.generation() == 0) == is_first) {
            // The dialler has given the older one up.
            if known.generation() >= link.generation() {
                return Err(Rejection::Unexpected);
            }
            *known = link;
            self.kept += 1;
            return Ok(());
        }
        if self.unclaimed.len() >= MAX_UNCLAIMED {
            // A stream whose sender has ended is the least likely to be asked for.
            let ended = |(_, link): &(LinkStream, LinkConnection)| {
                let mut end =
                    [PollFd::new(link.stream.as_fd(), PollFlags::from_bits_retain(POLLRDHUP))];
                poll(&mut end, PollTimeout::ZERO).is_ok_and(|ended| ended > 0)
            };
            let at = self.unclaimed.iter().position(ended).ok_or(Rejection::Unexpected)?;
            self.unclaimed.remove(at);
        }
        self.unclaimed.push((stream, link));
        self.kept += 1;
        Ok(())
    }

    /// Gives the stream to its link, which has its connection number `after`, if any: the first
    /// connection before a later one, whose dialler counts on all that came on the first.
    pub(super) fn claim(
        &mut self,
        stream: LinkStream,
        after: Option<u32>,
    ) -> Option<LinkConnection> {
        if let Some(after) = after {
            // An older connection has been given up at both ends.
            self.unclaimed.retain(|(other, link)| *other != stream || link.generation() > after);
        }
        let same = self.unclaimed.iter().enumerate().filter(|(_, (other, _))| *other == stream);
        let (at, _) = same.min_by_key(|(_, (_, link))| link.generation())?;
        Some(self.unclaimed.remove(at).1)
    }

    /// Drops all connections of the stream.
    pub(super) fn forget(&mut self, stream: LinkStream) {
        self.unclaimed.retain(|(other, _)| *other != stream);
    }

    /// Rejects one pending connection, if there is any.
    pub(super) fn displace_one(&mut self, now: Instant) {
        let peers = self.pending.iter().map(|(&number, pending)| (number, pending.peer));
        if let Some(number) = to_displace(peers) {
            self.pending.remove(&number);
            self.rejections.record(Rejection::Displaced, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use nix::sys::epoll::EpollCreateFlags;

    use super::*;

    #[test]
    fn a_process_listens_at_the_newest_address_of_its_host_too() {
        let at = |last| Ipv4Addr::new(127, 0, 0, last);
        let poll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let listener = listen_tcp((at(1), 0).into()).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let answers = |last| TcpStream::connect((at(last), port)).is_ok();
        let mut arrivals = Arrivals::new(vec![listener], RejectionLog::new("rank 0"), 5);
        for (last, count) in [(1, 1), (2, 2), (3, 2)] {
            arrivals.listen_at(at(last).into(), &poll).unwrap();
            assert!(answers(last) && arrivals.listeners.len() == count, "127.0.0.{last}");
        }
        assert!(answers(1) && !answers(2));
        let _other = TcpListener::bind((at(4), port)).unwrap();
        // The user hears of it once.
        assert!(arrivals.listen_at(at(4).into(), &poll).is_err());
        assert!(arrivals.listen_at(at(4).into(), &poll).is_ok());
        assert!(answers(1) && answers(3) && arrivals.listeners.len() == 2);
    }
}
