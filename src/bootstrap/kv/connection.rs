//! One connection of the store's server: its handshake, pending request and unsent answers.
//! Law: a connection has one request at a time and bounded memory.

use std::collections::BTreeMap;
use std::time::Duration;

use socket2::Socket;

use super::protocol::{FrameBuffer, FrameKind, StoreFrame};
use crate::bootstrap::auth::acceptor::Handshake;
use crate::bootstrap::progress::Progress;
use crate::bootstrap::socket::try_send;
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, SealingKey};

/// How long a client may take for its first message, or pause inside a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, with a handshake first if the client connected to a listener.
pub(super) struct Client {
    pub(super) socket: Socket,
    pub(super) incoming: FrameBuffer,
    pub(super) outgoing: Vec<u8>,
    /// Encrypts answers, if the stream was authenticated.
    sealer: Option<SealingKey>,
    /// The handshake, until the client is authenticated. Connections that this process adopted have
    /// none.
    pub(super) handshake: Option<Handshake>,
    /// The client's rank, proved in its handshake; none for an adopted connection.
    pub(super) authenticated_rank: Option<u32>,
    /// The rank whose record the client has published in the present rendezvous.
    pub(super) claimed_rank: Option<usize>,
    /// True if the client is done with the present rendezvous, so that its end is no failure.
    pub(super) has_left: bool,
    /// Number of the present rendezvous, from 1; 0 before the first request.
    pub(super) rendezvous: u64,
    /// The request that waits for its answer.
    pub(super) pending: Option<PendingRequest>,
    /// Number of the client's join request, and its record.
    pub(super) join_request: Option<(u64, Vec<u8>)>,
    /// True if the client joins a running job.
    pub(super) is_joiner: bool,
    pub(super) progress: Progress,
    /// When the client connected, or began its present message.
    pub(super) silent_since: Instant,
    pub(super) is_closed: bool,
}

pub(super) struct PendingRequest {
    pub(super) id: u32,
    pub(super) keys: String,
    pub(super) deadline: Instant,
}

impl Client {
    /// An adopted connection, or one that must pass `handshake`.
    pub(super) fn new(socket: Socket, handshake: Option<Handshake>) -> Self {
        Self {
            socket,
            authenticated_rank: None,
            claimed_rank: None,
            has_left: false,
            handshake,
            incoming: FrameBuffer::default(),
            outgoing: Vec::new(),
            sealer: None,
            rendezvous: 0,
            pending: None,
            join_request: None,
            is_joiner: false,
            progress: Progress::default(),
            silent_since: Instant::now(),
            is_closed: false,
        }
    }

    /// Marks the client as authenticated as `rank`.
    pub(super) fn set_authenticated(&mut self, rank: u32, stream_keys: Option<AeadKeys>) {
        (self.handshake, self.authenticated_rank, self.silent_since) =
            (None, Some(rank), Instant::now());
        if let Some(AeadKeys { sealer, opener }) = stream_keys {
            (self.sealer, self.incoming) = (Some(sealer), FrameBuffer::encrypted(opener));
        }
    }

    /// When the connection is dropped. A client of a listener owes its first message, and every
    /// client the rest of a message it began.
    pub(super) fn timeout_at(&self) -> Option<Instant> {
        if let Some(handshake) = &self.handshake {
            return Some(handshake.peer.deadline);
        }
        let owes_message =
            self.authenticated_rank.is_some() && self.rendezvous == 0 || self.incoming.is_partial();
        owes_message.then_some(self.silent_since + MESSAGE_TIMEOUT)
    }

    pub(super) fn send(&mut self, kind: FrameKind, id: u32, key: &str, value: &[u8]) {
        let frame = StoreFrame { kind, id, wait_ms: 0, key: key.into(), value: value.to_vec() };
        match frame.to_wire(self.sealer.as_mut()) {
            Some(bytes) => self.outgoing.extend(bytes),
            None => self.is_closed = true,
        }
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match try_send(&self.socket, &self.outgoing) {
                Ok(Some(count)) => drop(self.outgoing.drain(..count)),
                Ok(None) => return,
                Err(_) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }

    /// Answers the pending request if one of its keys has a value.
    pub(super) fn answer_if_present(&mut self, values: &BTreeMap<(u64, String), Vec<u8>>) {
        let Some(pending) = self.pending.take() else { return };
        for key in pending.keys.lines() {
            if let Some(value) = values.get(&(self.rendezvous, key.into())) {
                self.send(FrameKind::Value, pending.id, key, value);
                return;
            }
        }
        self.pending = Some(pending);
    }
}
