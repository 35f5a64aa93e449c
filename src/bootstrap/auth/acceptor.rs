//! Handshakes over sockets: the blocking dialler, and the nonblocking acceptor.
//! Law: an unauthenticated connection costs the acceptor a fixed amount of memory, for two seconds
//! at most.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::PollFlags;
use socket2::Socket;

use super::handshake::{
    Acceptor, Agreement, Dialler, MAGIC, MESSAGE_LEN, Message, MessageBytes, Reply, Side, StreamId,
    StreamRole,
};
use super::hello;
use super::keys::{KeyPair, Keys, SessionKeys};
use super::rejected::Rejection;
use crate::bootstrap::socket::{send_all, try_recv, try_send, wait_unless};
use crate::sync::Instant;

/// How long an accepted connection may take for its handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The keys of an open stream; none if it is not encrypted.
pub(crate) type StreamKeys = Option<SessionKeys>;

fn stream_keys(
    keys: &Keys,
    side: Side,
    own_key: KeyPair,
    agreement: &Agreement,
    stream: &StreamId,
) -> Result<StreamKeys, Rejection> {
    if !stream.encrypted {
        return Ok(None);
    }
    keys.session_keys(side, own_key, agreement).map(Some).ok_or(Rejection::BadTag)
}

/// A handshake message that has partly arrived.
struct MessageBuffer {
    bytes: MessageBytes,
    filled: usize,
}

impl MessageBuffer {
    const EMPTY: Self = Self { bytes: [0; MESSAGE_LEN], filled: 0 };

    /// Reads what has arrived; returns the message once it is complete.
    fn try_read(&mut self, socket: &Socket) -> io::Result<Option<MessageBytes>> {
        while self.filled < MESSAGE_LEN {
            // No byte behind the magic of another protocol is read.
            let end = if self.filled < MAGIC.len() { MAGIC.len() } else { MESSAGE_LEN };
            match try_recv(socket, &mut self.bytes[self.filled..end])? {
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(count) => self.filled += count,
                None => return Ok(None),
            }
            let seen = &self.bytes[..self.filled.min(MAGIC.len())];
            let may_be_hello = seen.len() < MAGIC.len() && hello::may_begin(seen);
            if !MAGIC.starts_with(seen) && !may_be_hello {
                return Err(rejected(Rejection::Malformed));
            }
        }
        self.filled = 0;
        Ok(Some(self.bytes))
    }
}

/// The error of a rejected peer: [`ErrorKind::InvalidData`].
fn rejected(reason: Rejection) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it {reason}"))
}

/// Explains the bytes of another protocol to a dialler.
fn other_program(error: io::Error, role: StreamRole) -> io::Error {
    if error.kind() != ErrorKind::InvalidData {
        return error;
    }
    let question = match role {
        StreamRole::Store => "is RINGREDUCE_STORE the address of rank 0, with a port of its own?",
        StreamRole::Shm | StreamRole::Tcp | StreamRole::Launcher => {
            "does that address lead to another host?"
        }
    };
    io::Error::new(error.kind(), format!("{error}: another program listens there; {question}"))
}

fn no_random_bytes() -> io::Error {
    io::Error::other("the system has no random numbers")
}

/// Runs the dialler's handshake over `socket`; [`ErrorKind::InvalidData`] if the peer is rejected.
pub(crate) fn dial_handshake(
    socket: &Socket,
    keys: &Keys,
    identity: StreamId,
    deadline: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<StreamKeys> {
    let own_key = KeyPair::generate().ok_or_else(no_random_bytes)?;
    let (mut state, offer) = Dialler::new(keys, identity, own_key.nonce);
    send_all(socket, &offer, deadline)?;
    let mut buffer = MessageBuffer::EMPTY;
    loop {
        match buffer.try_read(socket).map_err(|error| other_program(error, identity.role))? {
            None => wait_unless(cancelled, (socket.as_fd(), PollFlags::POLLIN), deadline)?,
            Some(message) => match state.receive(keys, &message).map_err(rejected)? {
                Some(next) => send_all(socket, &next, deadline)?,
                None => {
                    let (side, agreement) = (Side::Dialler, state.agreed());
                    return stream_keys(keys, side, own_key, &agreement, &identity)
                        .map_err(rejected);
                }
            },
        }
    }
}

/// The network that counts as one host: an IPv4 address, or the first 64 bits of an IPv6 address,
/// as a host can take any address with these bits.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// A connection without a proof, as [`to_displace`] compares it with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPeer {
    /// The addresses that its host may have, over TCP.
    network: Option<IpAddr>,
    /// When the connection is rejected as too slow.
    pub(crate) deadline: Instant,
    /// The peer has sent a valid offer.
    has_offered: bool,
}

impl PendingPeer {
    /// The peer of a connection, which is too slow after `deadline`.
    pub(crate) fn new(socket: &Socket, deadline: Instant) -> Self {
        Self { network: peer_ip(socket).map(network_of), deadline, has_offered: false }
    }

    pub(super) fn has_offered(&self) -> bool {
        self.has_offered
    }
}

/// The connection to displace when there are too many. Those without a valid offer come first,
/// since ranks send theirs at once; then those of the host with the most connections, so that no
/// host crowds out another; then the oldest.
pub(crate) fn to_displace<N>(peers: impl Iterator<Item = (N, PendingPeer)> + Clone) -> Option<N> {
    let mut per_host = BTreeMap::new();
    for (_, peer) in peers.clone() {
        *per_host.entry(peer.network).or_insert(0_usize) += 1;
    }
    let key = |(_, peer): &(N, PendingPeer)| {
        (peer.has_offered, Reverse(per_host.get(&peer.network).copied()), peer.deadline)
    };
    peers.min_by_key(key).map(|(number, _)| number)
}

fn peer_ip(socket: &Socket) -> Option<IpAddr> {
    socket.peer_addr().ok().and_then(|peer| Some(peer.as_socket()?.ip()))
}

/// The acceptor's handshake with one connection.
pub(crate) struct Handshake {
    /// State and key, from the first valid offer on.
    state: Option<(Acceptor, KeyPair)>,
    buffer: MessageBuffer,
    /// The peer's address, over TCP.
    peer_ip: Option<IpAddr>,
    /// The rank that the peer claims to be, without a proof.
    claimed_rank: Option<u32>,
    pub(crate) peer: PendingPeer,
}

impl Handshake {
    pub(crate) fn new(socket: &Socket, now: Instant) -> Self {
        Self {
            state: None,
            buffer: MessageBuffer::EMPTY,
            peer_ip: peer_ip(socket),
            claimed_rank: None,
            peer: PendingPeer::new(socket, now + HANDSHAKE_TIMEOUT),
        }
    }

    /// Processes what has arrived. Returns the stream and its keys once the peer is authenticated,
    /// or the reason to reject the connection.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        keys: &Keys,
        expected_for: impl Fn(&StreamId) -> Option<StreamId>,
    ) -> Result<Option<(StreamId, StreamKeys)>, Rejection> {
        self.receive_with(socket, keys, expected_for, KeyPair::generate)
    }

    /// [`Self::receive`] with another source of keys.
    fn receive_with(
        &mut self,
        socket: &Socket,
        keys: &Keys,
        expected_for: impl Fn(&StreamId) -> Option<StreamId>,
        generate: impl Fn() -> Option<KeyPair>,
    ) -> Result<Option<(StreamId, StreamKeys)>, Rejection> {
        loop {
            let message = match self.buffer.try_read(socket) {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    let is_link = self.hello_bytes().is_some();
                    return Err(if is_link { Rejection::LinkStream } else { Rejection::Malformed });
                }
                Err(_) => return Err(self.close_reason(keys)),
            };
            let (mut state, own_key) = match self.state.take() {
                Some(started) => started,
                None => {
                    // The offer is checked first, since a key pair costs far more than that.
                    let (_, stream) = Message::decode_offer(&message, &expected_for)?;
                    self.claimed_rank = Some(stream.from);
                    let own_key = generate().ok_or(Rejection::NoDescriptor)?;
                    (Acceptor::new(own_key.nonce), own_key)
                }
            };
            let reply = state.receive(keys, &message, &expected_for)?;
            let (Reply::Answer(bytes) | Reply::Welcome(bytes, _)) = &reply;
            // The first bytes of a connection always fit into the socket's buffer.
            if !matches!(try_send(socket, bytes), Ok(Some(MESSAGE_LEN))) {
                return Err(Rejection::ClosedEarly);
            }
            if let Reply::Welcome(_, identity) = reply {
                let agreement = state.agreed().ok_or(Rejection::OutOfOrder)?;
                let stream_keys =
                    stream_keys(keys, Side::Acceptor, own_key, &agreement, &identity)?;
                return Ok(Some((identity, stream_keys)));
            }
            self.peer.has_offered = state.has_offered();
            self.state = Some((state, own_key));
        }
    }

    /// The rank that the peer claims to be, and where it is; nothing is proved.
    pub(crate) fn claim(&self) -> Option<(u32, String)> {
        let from = self.peer_ip.map_or_else(|| "on this host".into(), |ip| format!("from {ip}"));
        self.claimed_rank.map(|rank| (rank, from))
    }

    /// The number of bytes read, if they may be the first of the stream of a link.
    pub(super) fn hello_bytes(&self) -> Option<usize> {
        let read = &self.buffer.bytes[..self.buffer.filled];
        (self.state.is_none() && hello::may_begin(read)).then_some(read.len())
    }

    /// Why the peer has closed the connection.
    fn close_reason(&self, keys: &Keys) -> Rejection {
        self.state.as_ref().map_or(Rejection::ClosedEarly, |(state, _)| state.close_reason(keys))
    }

    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.peer_ip
    }

    /// True over a Unix socket, whose peers belong to this process's user.
    pub(crate) fn is_unix(&self) -> bool {
        self.peer_ip.is_none()
    }

    /// The connection to displace when there are too many: see [`to_displace`].
    pub(crate) fn to_displace<'a>(
        handshakes: impl Iterator<Item = (usize, &'a Self)> + Clone,
    ) -> Option<usize> {
        to_displace(handshakes.map(|(index, handshake)| (index, handshake.peer)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use socket2::{Domain, Type};

    use super::*;

    #[test]
    fn only_an_expected_offer_costs_a_key_agreement() {
        let keys = Keys::new(None, 7);
        let (_, right) = Dialler::new(&keys, StreamId::to_store(7, 1), [5; 32]);
        let (_, other) = Dialler::new(&keys, StreamId::to_store(8, 1), [5; 32]);
        let tagged = |mut offer: MessageBytes| {
            offer[MESSAGE_LEN - 1] = 1;
            offer
        };
        let mut noise = [0; MESSAGE_LEN];
        noise[..MAGIC.len()].copy_from_slice(&MAGIC);
        for (offer, wanted) in [(noise, 0), (other, 0), (tagged(right), 0), (right, 1)] {
            let (dialler, acceptor) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
            try_send(&dialler, &offer).unwrap();
            let generated = std::cell::Cell::new(0);
            let generate = || {
                generated.set(generated.get() + 1);
                KeyPair::generate()
            };
            let expected_for = |message: &StreamId| (message.job == 7).then_some(*message);
            let mut handshake = Handshake::new(&acceptor, Instant::now());
            let heard = handshake.receive_with(&acceptor, &keys, expected_for, generate);
            assert_eq!((heard.is_ok(), generated.get()), (wanted == 1, wanted), "{offer:x?}");
        }
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_host_is_displaced() {
        let now = Instant::now();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let handshake = |host: u8, age: u64| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
            socket.connect(&listener.local_addr().unwrap().into()).unwrap();
            let accepted = Socket::from(listener.accept().unwrap().0);
            Handshake::new(&accepted, now + Duration::from_millis(9 - age))
        };
        let displaced =
            |handshakes: &[Handshake]| Handshake::to_displace(handshakes.iter().enumerate());
        let all =
            [handshake(1, 9), handshake(2, 3), handshake(2, 4), handshake(2, 2), handshake(3, 8)];
        assert_eq!(displaced(&all), Some(2));
        assert_eq!(displaced(&[handshake(1, 1), handshake(2, 2), handshake(3, 0)]), Some(1));
        assert_eq!(displaced(&[]), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one_host() {
        let (socket, _peer) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        let now = Instant::now();
        let handshake = |ip: &str, age: u64| {
            let mut handshake = Handshake::new(&socket, now + Duration::from_millis(9 - age));
            handshake.peer.network = Some(network_of(ip.parse().unwrap()));
            handshake
        };
        let all = [
            handshake("2001:db8:0:1::1", 9),
            handshake("2001:db8:0:2::1", 1),
            handshake("2001:db8:0:2:ffff::2", 3),
            handshake("2001:db8:0:2::3", 2),
        ];
        assert_eq!(Handshake::to_displace(all.iter().enumerate()), Some(2));
        // An IPv4 address may come as an IPv6 one.
        assert_eq!(network_of("::ffff:10.0.0.7".parse().unwrap()), IpAddr::from([10, 0, 0, 7]));
        assert_ne!(network_of([10, 0, 0, 7].into()), network_of([10, 0, 0, 8].into()));
    }
}
