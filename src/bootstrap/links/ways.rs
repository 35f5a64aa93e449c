//! The way on which a broken connection between hosts is made anew, that of a link or of a control
//! channel: it leads to the port of the other process.
//! Law: no step waits.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::port::LinkPort;
use super::streams::FarRank;
use crate::bootstrap::auth::handshake::{NONCE_LEN, Side};
use crate::bootstrap::auth::hello::{
    Hello, HelloBytes, LinkStream, answer, draw_nonce, open_answer,
};
use crate::health::control_channel::{ControlWay, NewerControl};
use crate::transport::LinkContent;
use crate::transport::aead::AeadKeys;
use crate::transport::tcp::{ANSWER_LEN, Redial};

/// The way of a stream that this process dials.
pub(super) struct Way {
    port: Arc<LinkPort>,
    stream: LinkStream,
    nonce: [u8; NONCE_LEN],
    /// The address of the connection that was begun last.
    tried: Option<SocketAddr>,
    /// The rank that receives a stream of calls; none of a control channel, which knows by itself
    /// whether the other process is there.
    to: Option<FarRank>,
}

impl Way {
    /// The way of the stream of calls of this name, which has begun with this hello.
    pub(super) fn of_calls(to: FarRank, stream: LinkStream, hello: &[u8]) -> Option<Self> {
        let hello: &HelloBytes = hello.try_into().ok()?;
        let nonce = Hello::decode(hello).ok()?.nonce;
        Some(Self { port: Arc::clone(to.port()), stream, nonce, tried: None, to: Some(to) })
    }

    /// The way of the control channel to the process of this rank of the communicator that met,
    /// which may dial too; `None` without random numbers.
    pub(super) fn of_control(port: &Arc<LinkPort>, peer: u32) -> Option<Self> {
        let (dialler, acceptor, content) = (port.me(), peer, LinkContent::Control);
        // The channel belongs to all communicators of the two processes.
        let stream = LinkStream { communicator: 0, dialler, acceptor, content, index: 0 };
        let nonce = draw_nonce()?;
        Some(Self { port: Arc::clone(port), stream, nonce, tried: None, to: None })
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Redial for Way {
    fn connect(&mut self, attempt: u32) -> io::Result<TcpStream> {
        let peer = self.port.peer(self.stream.acceptor);
        self.tried = peer.and_then(|peer| peer.address_for(attempt));
        self.port.redial(self.stream, self.tried.ok_or(io::ErrorKind::AddrNotAvailable)?)
    }

    fn hello(&self, generation: u32, received: u64) -> Vec<u8> {
        let hello = Hello { generation, received, ..Hello::first(self.stream, self.nonce) };
        let secret = self.port.secret_with(self.stream.acceptor);
        secret.map(|secret| hello.encode(secret).to_vec()).unwrap_or_default()
    }

    fn received_by_peer(&self, hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64> {
        let peer = self.port.peer(self.stream.acceptor)?;
        let received = open_answer(&peer.secret, hello, answer)?;
        if let Some(address) = self.tried {
            peer.note_reached(address);
        }
        Some(received)
    }

    fn is_refusal_final(&self, refusals: u32) -> bool {
        let peer = self.port.peer(self.stream.acceptor);
        peer.zip(self.tried).is_some_and(|(peer, tried)| peer.is_refusal_final(tried, refusals))
    }

    fn is_peer_there(&self) -> bool {
        self.to.as_ref().is_none_or(FarRank::is_there)
    }

    fn patience(&self) -> Duration {
        self.port.patience()
    }

    fn note_resumed(&self, after: Duration) {
        let what = if self.to.is_some() { "link" } else { "control channel" };
        if let Some(peer) = self.port.peer(self.stream.acceptor) {
            self.port.settings.note_resumed((self.port.me(), &peer.name), what, after);
        }
    }
}

impl ControlWay for Way {
    fn accept(&mut self, generation: u32) -> Option<NewerControl> {
        let LinkStream { dialler: me, acceptor: peer, .. } = self.stream;
        let name = LinkStream { dialler: peer, acceptor: me, ..self.stream };
        // A process that lacks a descriptor looks again.
        let taken = self.port.take_newer(name, Some(generation)).ok()??;
        let (newer, hello) = taken.into_newer()?;
        Some(NewerControl { stream: newer, received: hello.received })
    }

    fn answer(&self, hello: &[u8], received: u64) -> [u8; ANSWER_LEN] {
        let secret = self.port.secret_with(self.stream.acceptor);
        secret.map_or([0; ANSWER_LEN], |secret| answer(secret, hello, received))
    }

    fn keys(&self) -> Option<AeadKeys> {
        let side = if self.dials_first() { Side::Dialler } else { Side::Acceptor };
        self.port.secret_with(self.stream.acceptor)?.control_keys(side)
    }

    fn dials_first(&self) -> bool {
        self.stream.dialler < self.stream.acceptor
    }
}
