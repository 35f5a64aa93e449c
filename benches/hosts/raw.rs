//! The yardstick: a ring of plain TCP sockets between the first ranks of the hosts, a
//! reduce-scatter and then an all-gather of chunks of bytes / hosts. One thread sends and receives
//! at once; bytes go on to the next host as soon as they are added.
//!
//! Four hosts, host 1: it sends chunks 1, 0, 3 (the sums so far), then 2, 1, 0 (whole sums), and
//! receives chunks 0, 3, 2 and adds them, then 1, 0, 3 and stores them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

/// The first ring's, below the ports that the system assigns; a host of a cluster has all ports to
/// itself.
const PORT: u16 = 7077;
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The most bytes of one system call.
const PIECE_BYTES: usize = 256 << 10;
/// The longest time to connect, or without a byte.
const PATIENCE: Duration = Duration::from_secs(20);

/// A place in the stream of chunks.
#[derive(Clone, Copy)]
struct Cursor {
    step: usize,
    /// Bytes of the step's chunk that are done.
    done: usize,
}

pub(crate) struct RawRing {
    to_next: TcpStream,
    from_previous: TcpStream,
    host: usize,
    hosts: usize,
    /// Bytes that were received and not yet added: fewer than four between two calls of read.
    scratch: Vec<f32>,
    unadded: usize,
}

impl RawRing {
    /// The first step, before any host connects to this one of several rings.
    pub(crate) fn listen(ring: u16, congestion: &str) -> io::Result<TcpListener> {
        let socket = socket(congestion)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT + ring)).into())?;
        socket.listen(1)?;
        Ok(socket.into())
    }

    /// Connects to the next host; `address` gives a host's address.
    pub(crate) fn new(
        (listener, congestion): (&TcpListener, &str),
        host: usize,
        hosts: usize,
        address: impl Fn(usize) -> Ipv4Addr,
    ) -> io::Result<Self> {
        let next = SocketAddr::from((address((host + 1) % hosts), listener.local_addr()?.port()));
        let to_next = socket(congestion)?;
        to_next.connect_timeout(&next.into(), PATIENCE)?;
        let (to_next, (from_previous, _)) = (TcpStream::from(to_next), listener.accept()?);
        for stream in [&to_next, &from_previous] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        let scratch = vec![0.0; PIECE_BYTES / 4];
        Ok(Self { to_next, from_previous, host, hosts, scratch, unadded: 0 })
    }

    /// Sums the buffers of all hosts in place.
    pub(crate) fn all_reduce(&mut self, buf: &mut [f32]) -> io::Result<()> {
        let start = Cursor { step: 0, done: 0 };
        let (mut sent, mut received) = (start, start);
        let steps = 2 * (self.hosts - 1);
        while sent.step < steps || received.step < steps {
            let before = (sent.step, sent.done, received.step, received.done, self.unadded);
            if received.step < steps {
                self.receive(buf, &mut received)?;
            }
            let may_send = self.sendable(buf.len(), sent, received);
            if may_send > 0 {
                self.send(buf, &mut sent, may_send)?;
            }
            if before == (sent.step, sent.done, received.step, received.done, self.unadded) {
                self.wait(received.step < steps, may_send > 0)?;
            }
        }
        Ok(())
    }

    /// The elements of the chunk that this host sends in a step; one step later it is the chunk
    /// that the host receives.
    fn chunk(&self, len: usize, step: usize) -> Range<usize> {
        let chunk = (self.host + 2 * self.hosts - step) % self.hosts;
        chunk * len / self.hosts..(chunk + 1) * len / self.hosts
    }

    /// Bytes of the chunk to be sent that are ready.
    fn sendable(&self, len: usize, sent: Cursor, received: Cursor) -> usize {
        if sent.step == 2 * (self.hosts - 1) {
            return 0;
        }
        let is_whole = sent.step <= received.step;
        let is_begun = sent.step == received.step + 1;
        let ready = match is_whole {
            true => self.chunk(len, sent.step).len() * 4,
            false if is_begun => received.done,
            false => 0,
        };
        ready - sent.done.min(ready)
    }

    fn send(&mut self, buf: &[f32], at: &mut Cursor, most: usize) -> io::Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(&buf[self.chunk(buf.len(), at.step)]);
        let until = at.done + most.min(PIECE_BYTES);
        at.advance(ready(self.to_next.write(&bytes[at.done..until]))?, bytes.len());
        Ok(())
    }

    fn receive(&mut self, buf: &mut [f32], at: &mut Cursor) -> io::Result<()> {
        let chunk = self.chunk(buf.len(), at.step + 1);
        let chunk = &mut buf[chunk];
        let len = chunk.len() * 4;
        if at.step >= self.hosts - 1 {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(chunk);
            let until = len.min(at.done + PIECE_BYTES);
            at.advance(ready(self.from_previous.read(&mut bytes[at.done..until]))?, len);
            return Ok(());
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let until = PIECE_BYTES.min(len - at.done);
        self.unadded += ready(self.from_previous.read(&mut bytes[self.unadded..until]))?;
        let (first, count) = (at.done / 4, self.unadded / 4);
        for (sum, more) in chunk[first..first + count].iter_mut().zip(&self.scratch) {
            *sum += more;
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        bytes.copy_within(count * 4..self.unadded, 0);
        self.unadded -= count * 4;
        at.advance(count * 4, len);
        Ok(())
    }

    fn wait(&self, receives: bool, sends: bool) -> io::Result<()> {
        let flags = |wanted, flag| if wanted { flag } else { PollFlags::empty() };
        let mut both = [
            PollFd::new(self.from_previous.as_fd(), flags(receives, PollFlags::POLLIN)),
            PollFd::new(self.to_next.as_fd(), flags(sends, PollFlags::POLLOUT)),
        ];
        let timeout = PollTimeout::try_from(PATIENCE).map_err(io::Error::other)?;
        let began = Instant::now();
        match poll(&mut both, timeout) {
            Ok(0) => {
                let waited = began.elapsed().as_secs();
                Err(io::Error::other(format!("the raw ring: no byte for {waited} s")))
            }
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sums the buffers of all hosts in place, each ring a part of them by a thread of its own.
pub(crate) fn all_reduce(rings: &mut [RawRing], buf: &mut [f32]) -> io::Result<()> {
    if let [ring] = rings {
        return ring.all_reduce(buf);
    }
    let parts = buf.chunks_mut(buf.len().div_ceil(rings.len()).max(1));
    thread::scope(|scope| {
        let both = rings.iter_mut().zip(parts);
        let all: Vec<_> = both.map(|(ring, part)| scope.spawn(|| ring.all_reduce(part))).collect();
        let mut ended = all.into_iter().map(|ring| ring.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

impl Cursor {
    fn advance(&mut self, bytes: usize, of_chunk: usize) {
        self.done += bytes;
        if self.done == of_chunk {
            *self = Self { step: self.step + 1, done: 0 };
        }
    }
}

/// The bytes of a call, 0 if it would have waited. The end of a stream is an error.
fn ready(called: io::Result<usize>) -> io::Result<usize> {
    match called {
        Ok(0) => Err(io::Error::other("the raw ring: a neighbour closed its connection")),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

/// The variable by which both rings have the same congestion control.
pub(crate) const CONGESTION: &str = "RINGREDUCE_TCP_CONGESTION";

/// The congestion control of both rings. One of cubic, which most systems have, fills its cables;
/// one of bbr, whose links look for the rate one after the other, may be a tenth slower.
pub(crate) fn congestion() -> String {
    std::env::var(CONGESTION).unwrap_or("cubic".into())
}

/// A socket whose buffers are larger than the system may allow, before it connects: the window of a
/// connection depends on them.
fn socket(congestion: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER_BYTES)?;
    setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER_BYTES)?;
    Ok(socket)
}
