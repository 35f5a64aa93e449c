//! Requests whose answers nobody reads.
//! Law: a silent store delays no rank beyond the deadline that the rank gives.

use std::io::ErrorKind;
use std::os::fd::AsFd;

use nix::poll::PollFlags;

use super::Store;
use crate::bootstrap::kv::credentials::silence_reason;
use crate::bootstrap::kv::protocol::{FrameKind, StoreFrame, StreamError};
use crate::bootstrap::socket::wait_for;
use crate::error::Result;
use crate::sync::Instant;

impl Store {
    /// Sends a request without waiting, not even for the answer, so that a silent store delays no
    /// rank.
    pub(crate) fn send_unanswered(&mut self, kind: FrameKind, key: &str, value: &[u8]) {
        if let Some(bytes) = self.unanswered(kind, key, value) {
            // The socket has room for so few bytes, or the store is silent or has gone.
            let _ = self.send_whole(&bytes, Instant::now());
        }
    }

    /// Sends a request whose answer nobody reads. The socket of a silent store may have no room;
    /// the wait for room ends at `deadline`.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is gone, or has left no room until `deadline`.
    pub(crate) fn send_by(
        &mut self,
        deadline: Instant,
        kind: FrameKind,
        key: &str,
        value: &[u8],
    ) -> Result<()> {
        self.check_length(value)?;
        let began = Instant::now();
        let sent = match self.unanswered(kind, key, value) {
            // A Unix socket that can be written has three quarters of its buffer free, so that most
            // requests leave whole: the launcher does not wait long for the rest of one.
            Some(bytes) => wait_for(self.socket.as_fd(), PollFlags::POLLOUT, deadline)
                .and_then(|()| self.send_whole(&bytes, deadline)),
            None => return Err(self.stream_error(StreamError::Closed)),
        };
        sent.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => self.stream_error(StreamError::Malformed(silence_reason(began))),
            _ => self.stream_error(StreamError::from(error)),
        })
    }

    /// The bytes of a request whose answer nobody reads; `None` once the stream is unusable.
    fn unanswered(&mut self, kind: FrameKind, key: &str, value: &[u8]) -> Option<Vec<u8>> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let frame = StoreFrame { kind, id, wait_ms: 0, key: key.into(), value: value.to_vec() };
        frame.to_wire(self.sealer.as_mut())
    }
}
