//! The control connection to one rank: frames of one size in both directions, encrypted where the
//! connection leaves the host.
//! Law: neither direction waits for the peer, and a frame goes out whole or not at all.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::MSG_NOSIGNAL;
use socket2::Socket;

use super::keepalive::is_silent;
use crate::health::control_message::{ControlMessage, FRAME_BYTES, Heartbeat, RecoveryMessage};
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, TAG};

/// The most recovery messages that wait unread; a peer that sends more is broken.
const MAX_UNREAD_MESSAGES: usize = 4096;

/// A rank is silent if its latest heartbeat is older than this, or older than half of the call's
/// time limit, whichever is shorter.
const PEER_SILENCE_LIMIT: Duration = Duration::from_secs(4);

/// The control connection to one rank.
#[derive(Debug)]
pub(super) struct ControlConnection {
    pub(super) stream: Arc<Socket>,
    /// A host without a sign of life for this long counts as unreachable.
    pub(super) unreachable_after: Duration,
    /// True if the peer is on another host, or may be.
    pub(super) is_tcp: bool,
    /// The host gave no sign of life for too long.
    pub(super) is_unreachable: bool,
    /// Bytes that the system had no room for, because the peer has not read for long.
    pub(super) unsent: Vec<u8>,
    /// The keys of both directions, where the connection leaves the host.
    pub(super) keys: Option<AeadKeys>,
    /// The part of a frame, and of its tag, that has arrived.
    pub(super) frame: [u8; FRAME_BYTES + TAG],
    pub(super) filled: usize,
    /// The first failure or goodbye of the peer.
    pub(super) final_message: Option<ControlMessage>,
    /// After a goodbye: true if the peer had sent recovery messages, so that it may have voted.
    pub(super) goodbye: Option<bool>,
    /// The latest heartbeat, which is all zeros before the first.
    pub(super) heartbeat: Heartbeat,
    /// When the latest heartbeat arrived.
    pub(super) heartbeat_at: Instant,
    /// Recovery messages that nobody has read yet.
    pub(super) recovery: VecDeque<RecoveryMessage>,
    /// When the connection ended, and how.
    pub(super) ended: Option<(Instant, String)>,
    /// When another source saw the process end. Its last message may still arrive.
    pub(super) process_ended: Option<Instant>,
}

impl ControlConnection {
    /// True if a heartbeat has come lately, for a call that may take `limit`.
    pub(super) fn has_recent_heartbeat(&self, limit: Duration) -> bool {
        let silence = self.heartbeat_at.elapsed();
        self.heartbeat != Heartbeat::default() && silence < PEER_SILENCE_LIMIT.min(limit / 2)
    }

    /// Sends a frame without waiting. Bytes that find no room go out before the next frame, or at
    /// the next [`Self::receive`].
    pub(super) fn send(&mut self, frame: &[u8; FRAME_BYTES]) {
        let begin = self.unsent.len();
        self.unsent.extend(frame);
        if let Some(keys) = &mut self.keys {
            self.unsent.extend([0; TAG]);
            if keys.sealer.seal(&mut self.unsent[begin..]).is_err() {
                self.unsent.truncate(begin);
            }
        }
        self.flush();
    }

    /// Sends the bytes that found no room before, as far as there is room now.
    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            // A C program ends by SIGPIPE if it leaves the signal alone.
            match self.stream.send_with_flags(&self.unsent, MSG_NOSIGNAL) {
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The peer is gone.
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// The message of the frame that has arrived; `None` if it is malformed or forged.
    fn decode(&mut self) -> Option<ControlMessage> {
        if let Some(keys) = &mut self.keys {
            keys.opener.open(&mut self.frame).ok()?;
        }
        ControlMessage::decode(self.frame.first_chunk()?).ok()
    }

    fn mark_unreachable(&mut self) -> String {
        self.is_unreachable = true;
        format!("its host is unreachable: no sign of it for {:.0?}", self.unreachable_after)
    }

    /// Asks the system whether the host still gives a sign of life.
    pub(super) fn check_host(&mut self) {
        let is_open = self.is_tcp && self.ended.is_none();
        if is_open && is_silent(&self.stream, self.unreachable_after) {
            self.ended = Some((Instant::now(), self.mark_unreachable()));
        }
    }

    /// Receives all frames that have arrived, without waiting.
    pub(super) fn receive(&mut self) {
        self.flush();
        let frame_len = if self.keys.is_some() { FRAME_BYTES + TAG } else { FRAME_BYTES };
        while self.ended.is_none() {
            let end = match (&*self.stream).read(&mut self.frame[self.filled..frame_len]) {
                Ok(0) => "its process ended".into(),
                Ok(bytes) => {
                    self.filled = (self.filled + bytes) % frame_len;
                    if self.filled > 0 {
                        continue;
                    }
                    match self.take_frame() {
                        Ok(()) => continue,
                        Err(reason) => reason.into(),
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::TimedOut => self.mark_unreachable(),
                Err(error) => format!("its process or host ended: {error}"),
            };
            self.ended = Some((Instant::now(), end));
        }
    }

    /// Notes the message of the frame that has arrived; or why the connection is of no more use.
    fn take_frame(&mut self) -> Result<(), &'static str> {
        match self.decode() {
            None if self.keys.is_some() => return Err("its messages were changed on their way"),
            None => return Err("it sent a malformed message"),
            Some(ControlMessage::Recovery(message)) => {
                if self.recovery.len() >= MAX_UNREAD_MESSAGES {
                    return Err("it sends too many messages");
                }
                self.recovery.push_back(message);
            }
            Some(ControlMessage::Heartbeat(heartbeat)) => {
                (self.heartbeat, self.heartbeat_at) = (heartbeat, Instant::now());
            }
            message => {
                if let Some(ControlMessage::Goodbye { sent_recovery, .. }) = message {
                    self.goodbye = Some(sent_recovery);
                }
                self.final_message = self.final_message.take().or(message);
            }
        }
        Ok(())
    }
}
