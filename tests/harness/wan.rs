//! A wide-area network between the hosts of a cluster: frames arrive after a delay, and some never;
//! a NAT on the way may forget its connections, and the network may fall into two parts.
//! The kernel's netem does the same, but many kernels lack it; this is a thread between packet
//! sockets (packet(7)).
//! Law: frames of all hosts have the same delay, so that none overtakes another.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::libc::{self, SOL_PACKET};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeSpec;
// The macro of the second name needs the first.
use nix::{setsockopt_impl, sockopt_impl};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::hosts::Host;
use crate::share;

sockopt_impl!(
    /// Frames come with their unfinished checksum and unsplit segments, and leave with them.
    VnetHdr, SetOnly, SOL_PACKET, libc::PACKET_VNET_HDR, bool
);
sockopt_impl!(
    /// Frames that leave by a port do not come back to its socket.
    IgnoreOutgoing, SetOnly, SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, bool
);

/// What the kernel puts before a frame (`struct virtio_net_hdr`), in bytes.
const VNET_HDR: usize = 10;
/// The longest frame: unsplit segments of 64 KiB, and their headers.
const MAX_FRAME: usize = VNET_HDR + (64 << 10) + 64;
/// Frames wait here while this thread has no CPU.
const BUFFER_BYTES: usize = 16 << 20;
const MAC: usize = 6;

/// How a wide-area network differs from a cable.
#[derive(Clone, Copy, Debug)]
pub struct Wan {
    /// From one host to another.
    pub delay: Duration,
    /// The share of frames that are lost, at random.
    pub loss: f64,
}

/// The thread, which ends with this value.
pub(crate) struct Forwarder {
    thread: Option<JoinHandle<()>>,
    /// Orders have a byte; the end of the stream lets it end.
    orders: Option<UnixStream>,
}

/// The order to forget all connections. Any other byte has the ports of one part of the network, as
/// bits above the lowest, which is 1.
const FORGET: u8 = 0;

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.orders.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "frames were not forwarded");
    }
}

impl Forwarder {
    /// Forwards frames between these ports of the host `switch`, which no bridge has.
    pub(crate) fn new(switch: &Host, ports: Vec<String>, wan: Wan) -> io::Result<Self> {
        let network = File::open(switch.network())?;
        let (orders, receiver) = UnixStream::pair()?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::Builder::new().name("wan".into()).spawn(move || {
            // The thread has a network of its own from here on; the others keep theirs.
            let opened = setns(network, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            match opened
                .and_then(|()| ports.iter().map(|port| open(port)).collect::<io::Result<Vec<_>>>())
            {
                Ok(sockets) => {
                    ready.send(Ok(())).unwrap();
                    Frames::new(wan).forward(&sockets, &receiver);
                }
                Err(error) => ready.send(Err(error)).unwrap(),
            }
        })?;
        is_ready.recv().unwrap()?;
        Ok(Self { thread: Some(thread), orders: Some(orders) })
    }

    /// From here on, no frame of a present connection of TCP arrives, those of ssh excepted.
    pub(crate) fn forget(&self) {
        self.order(FORGET);
    }

    /// From here on, no frame passes between these ports, of the first seven, and the others.
    pub(crate) fn part(&self, ports: &[usize]) {
        self.order(ports.iter().fold(1, |order, port| order | 2 << port));
    }

    fn order(&self, order: u8) {
        self.orders.as_ref().unwrap().write_all(&[order]).unwrap();
    }
}

/// The socket of a port.
fn open(port: &str) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let all = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    setsockopt(&all, VnetHdr, &true)?;
    setsockopt(&all, IgnoreOutgoing, &true)?;
    setsockopt(&all, sockopt::RcvBufForce, &BUFFER_BYTES)?;
    let mut interfaces = getifaddrs()?.filter(|it| it.interface_name == port);
    let address = interfaces.find_map(|it| it.address?.as_link_addr().copied());
    let address = address.ok_or_else(|| io::Error::other(format!("there is no port {port}")))?;
    bind(all.as_raw_fd(), &address)?;
    Ok(all)
}

/// Frames that are under way.
struct Frames {
    wan: Wan,
    /// When each arrives, the port that it came from, and its bytes.
    due: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Ports by the addresses behind them.
    ports: BTreeMap<[u8; MAC], usize>,
    /// The connections that have been seen, and whether they are forgotten.
    connections: BTreeMap<Connection, bool>,
    /// The ports of one part of the network, as bits.
    part: u32,
    random: SmallRng,
}

/// The address and the port of either end, the smaller one first.
type Connection = [(Ipv4Addr, u16); 2];

impl Frames {
    fn new(wan: Wan) -> Self {
        let random = SmallRng::seed_from_u64(share::seed());
        let (ports, connections) = (BTreeMap::new(), BTreeMap::new());
        Self { wan, due: VecDeque::new(), ports, connections, part: 0, random }
    }

    fn forward(mut self, sockets: &[OwnedFd], mut orders: &UnixStream) {
        let mut buffer = vec![0; MAX_FRAME];
        loop {
            for (port, socket) in sockets.iter().enumerate() {
                self.receive(port, socket, &mut buffer);
            }
            let now = Instant::now();
            while self.due.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, from, frame) = self.due.pop_front().unwrap();
                self.deliver(sockets, from, &frame);
            }
            let mut events: Vec<_> = sockets.iter().map(|it| it.as_fd()).collect();
            events.push(orders.as_fd());
            let mut events: Vec<_> =
                events.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let next = self.due.front().map(|(at, ..)| at.saturating_duration_since(now));
            let woken = ppoll(&mut events, next.map(TimeSpec::from_duration), None);
            let is_told = events.last().and_then(PollFd::any).unwrap();
            if woken.is_ok() && is_told {
                let mut order = [0];
                match (orders.read(&mut order).unwrap(), order[0]) {
                    (0, _) => return,
                    (_, FORGET) => {
                        self.connections.values_mut().for_each(|is_forgotten| *is_forgotten = true);
                    }
                    (_, order) => self.part = u32::from(order >> 1),
                }
            }
        }
    }

    /// Takes in what has come to a port.
    fn receive(&mut self, port: usize, socket: &OwnedFd, buffer: &mut [u8]) {
        // A port whose cable is pulled out says so once, and has no frames.
        while let Ok(len) = recv(socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            let frame = &buffer[..len];
            let from = frame.get(VNET_HDR + MAC..).and_then(|rest| rest.first_chunk());
            let Some(from) = from else { continue };
            self.ports.insert(*from, port);
            if let Some((connection, begins)) = connection(&frame[VNET_HDR..]) {
                let is_forgotten = self.connections.entry(connection).or_insert(false);
                *is_forgotten &= !begins;
                if *is_forgotten {
                    continue;
                }
            }
            if self.wan.loss == 0.0 || !self.random.random_bool(self.wan.loss) {
                self.due.push_back((Instant::now() + self.wan.delay, port, frame.to_vec()));
            }
        }
    }

    fn deliver(&self, sockets: &[OwnedFd], from: usize, frame: &[u8]) {
        let to = frame[VNET_HDR..].first_chunk().and_then(|to| self.ports.get(to)).copied();
        for (port, socket) in sockets.iter().enumerate() {
            let is_parted = (self.part >> port ^ self.part >> from) & 1 == 1;
            if port != from && to.is_none_or(|to| to == port) && !is_parted {
                // A queue that is full loses the frame, as a switch does.
                let _ = send(socket.as_raw_fd(), frame, MsgFlags::empty());
            }
        }
    }
}

/// The connection of TCP over IPv4 that a frame belongs to, none of ssh, and whether the frame
/// begins it.
fn connection(frame: &[u8]) -> Option<(Connection, bool)> {
    const TCP: u8 = 6;
    const SSH: u16 = 22;
    const SYN: u8 = 2;
    let packet = frame.get(2 * MAC..)?.strip_prefix(&[8, 0])?;
    let segment = packet.get(usize::from(packet.first()? & 15) * 4..)?;
    if packet.get(9) != Some(&TCP) {
        return None;
    }
    let end = |at: usize| {
        let address: [u8; 4] = *packet.get(12 + 4 * at..)?.first_chunk()?;
        Some((address.into(), u16::from_be_bytes(*segment.get(2 * at..)?.first_chunk()?)))
    };
    let mut ends = [end(0)?, end(1)?];
    ends.sort_unstable();
    let begins = segment.get(13)? & SYN != 0;
    ends.iter().all(|(_, port)| *port != SSH).then_some((ends, begins))
}
