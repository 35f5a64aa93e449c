//! The ways on which broken connections between hosts are made anew: those of links, and those of
//! control channels. Both lead to the port of the other process.
//! Law: no step waits.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::port::LinkPort;
use super::streams::FarRank;
use crate::bootstrap::auth::handshake::NONCE_LEN;
use crate::bootstrap::auth::hello::{
    Hello, HelloBytes, LinkStream, answer, draw_nonce, open_answer,
};
use crate::error::warn;
use crate::health::control_channel::{ControlWay, NewerControl};
use crate::transport::LinkContent;
use crate::transport::tcp::{ANSWER_LEN, Redial};

/// The way of a stream that this process has dialled.
struct Way {
    port: Arc<LinkPort>,
    stream: LinkStream,
    nonce: [u8; NONCE_LEN],
}

impl Way {
    fn hello(&self, generation: u32, received: u64) -> Vec<u8> {
        let hello = Hello { generation, received, ..Hello::first(self.stream, self.nonce) };
        let secret = self.port.secret_with(self.stream.acceptor);
        secret.map(|secret| hello.encode(secret).to_vec()).unwrap_or_default()
    }

    fn received_by_peer(&self, hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64> {
        open_answer(self.port.secret_with(self.stream.acceptor)?, hello, answer)
    }
}

/// The way of a stream of calls.
pub(super) struct LinkWay {
    to: FarRank,
    way: Way,
}

impl LinkWay {
    /// The way of the stream of this name, which has begun with this hello.
    pub(super) fn new(to: FarRank, stream: LinkStream, hello: &[u8]) -> Option<Self> {
        let hello: &HelloBytes = hello.try_into().ok()?;
        let nonce = Hello::decode(hello).ok()?.nonce;
        let way = Way { port: Arc::clone(to.port()), stream, nonce };
        Some(Self { to, way })
    }
}

impl fmt::Debug for LinkWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkWay").field("stream", &self.way.stream).finish_non_exhaustive()
    }
}

impl Redial for LinkWay {
    fn connect(&mut self, attempt: u32) -> io::Result<TcpStream> {
        self.way.port.redial(self.way.stream, attempt)
    }

    fn hello(&self, generation: u32, received: u64) -> Vec<u8> {
        self.way.hello(generation, received)
    }

    fn received_by_peer(&self, hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64> {
        self.way.received_by_peer(hello, answer)
    }

    fn is_peer_there(&self) -> bool {
        self.to.is_there()
    }

    fn patience(&self) -> Duration {
        self.way.port.patience()
    }

    fn note_resumed(&self, after: Duration) {
        let (me, to) = (self.way.port.me(), self.to.name());
        warn(&format!("rank {me}: the link to rank {to} broke, and goes on after {after:.1?}"));
    }
}

/// The way of the control channel between this process and another one, either of which dials.
pub(super) struct FarControl {
    way: Way,
}

impl FarControl {
    /// The way to the process of this rank of the communicator that met; `None` without random
    /// numbers.
    pub(super) fn new(port: &Arc<LinkPort>, peer: u32) -> Option<Self> {
        let (dialler, acceptor, content) = (port.me(), peer, LinkContent::Control);
        // The channel belongs to all communicators of the two processes.
        let stream = LinkStream { communicator: 0, dialler, acceptor, content, index: 0 };
        Some(Self { way: Way { port: Arc::clone(port), stream, nonce: draw_nonce()? } })
    }
}

impl fmt::Debug for FarControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarControl").field("stream", &self.way.stream).finish_non_exhaustive()
    }
}

impl Redial for FarControl {
    fn connect(&mut self, attempt: u32) -> io::Result<TcpStream> {
        self.way.port.redial(self.way.stream, attempt)
    }

    fn hello(&self, generation: u32, received: u64) -> Vec<u8> {
        self.way.hello(generation, received)
    }

    fn received_by_peer(&self, hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64> {
        self.way.received_by_peer(hello, answer)
    }

    fn is_peer_there(&self) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        self.way.port.patience()
    }

    fn note_resumed(&self, after: Duration) {
        let LinkStream { dialler: me, acceptor: to, .. } = self.way.stream;
        warn(&format!(
            "rank {me}: the control channel to rank {to} broke, and goes on after {after:.1?}"
        ));
    }
}

impl ControlWay for FarControl {
    fn accept(&mut self, generation: u32) -> Option<NewerControl> {
        let LinkStream { dialler: me, acceptor: peer, .. } = self.way.stream;
        let name = LinkStream { dialler: peer, acceptor: me, ..self.way.stream };
        // A process that lacks a descriptor looks again.
        let taken = self.way.port.take_newer(name, Some(generation)).ok()??;
        let (newer, hello) = taken.into_newer()?;
        Some(NewerControl { stream: newer, received: hello.received })
    }

    fn answer(&self, hello: &[u8], received: u64) -> [u8; ANSWER_LEN] {
        let secret = self.way.port.secret_with(self.way.stream.acceptor);
        secret.map_or([0; ANSWER_LEN], |secret| answer(secret, hello, received))
    }

    fn dials_first(&self) -> bool {
        self.way.stream.dialler < self.way.stream.acceptor
    }
}
