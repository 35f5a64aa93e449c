//! One stream of a receiving end. If its connection breaks, the sender makes another one, and this
//! end tells how many bytes it has received.
//! Law: all that has come on a connection is read before the number is told.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::opening::{AcceptStreams, NewerStream};
use super::socket::delay_acknowledgements;
use super::{End, bytes_moved, look};
use crate::transport::Fault;
use crate::transport::aead::OpeningKey;

/// One in so many short frames tells the system again to acknowledge them late, which ends with a
/// pause.
const SHORT_FRAMES_PER_CALL: u32 = 16;

/// One stream.
#[derive(Default)]
pub(super) struct Lane {
    /// `None` before the peer has opened the stream, and while it is broken.
    connection: Option<Arc<TcpStream>>,
    /// The key, on an encrypted link.
    pub(super) opener: Option<OpeningKey>,
    /// Bytes that have been received on all connections, without hellos.
    received: u64,
    /// Short frames since the last long one, or since the connection was made.
    short_frames: u32,
    /// The number of the connection among those of the stream.
    generation: u32,
    /// A newer connection, which follows once the present one has been read to its end.
    next: Option<NewerStream>,
    /// How the connection has broken.
    broken: Option<String>,
}

impl Lane {
    /// Accepts the stream, number `at` of the link, if the peer has opened it since; true if it did
    /// so for the first time.
    pub(super) fn accept(
        &mut self,
        at: usize,
        acceptor: &mut dyn AcceptStreams,
    ) -> Result<bool, Fault> {
        if self.connection.is_some() {
            return Ok(false);
        }
        if self.broken.is_some() {
            if let Some(newer) = acceptor.accept_again(at, self.generation)? {
                self.follow(newer, acceptor);
            }
            return Ok(false);
        }
        let Some(opened) = acceptor.accept(at)? else { return Ok(false) };
        (self.connection, self.opener) = (Some(opened.stream), opened.key);
        if let Some((generation, hello)) = opened.resumed {
            self.generation = generation;
            self.answer(&hello, acceptor);
        }
        Ok(true)
    }

    /// Reads what has come, if anything.
    ///
    /// # Errors
    /// If the connection has ended, and the peer makes no other one.
    #[inline]
    pub(super) fn read(
        &mut self,
        acceptor: &mut dyn AcceptStreams,
        mut read: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Result<Option<usize>, Fault> {
        loop {
            let Some(stream) = self.connection.as_deref() else { return Ok(None) };
            match bytes_moved(|| read(stream)) {
                Ok(Some(bytes)) => {
                    self.received += bytes as u64;
                    return Ok(Some(bytes));
                }
                Ok(None) if self.next.is_none() => return Ok(None),
                Ok(None) => self.broken = Some("its sender has made another connection".into()),
                Err(end) => self.note_end(&end, acceptor)?,
            }
            self.connection = None;
            if let Some(newer) = self.next.take() {
                self.follow(newer, acceptor);
            }
        }
    }

    /// Notes how the connection has ended.
    ///
    /// # Errors
    /// If that end is final.
    fn note_end(&mut self, end: &End, acceptor: &dyn AcceptStreams) -> Result<(), Fault> {
        if self.next.is_none() && !acceptor.may_come_again() {
            return Err(Fault::Lost(end.how()));
        }
        self.broken = Some(end.how());
        Ok(())
    }

    /// Goes on with a newer connection.
    fn follow(&mut self, newer: NewerStream, acceptor: &dyn AcceptStreams) {
        (self.generation, self.short_frames) = (newer.generation, 0);
        self.connection = Some(Arc::new(newer.stream));
        self.answer(&newer.hello, acceptor);
    }

    /// Tells the dialler what has been received, before anything else goes out.
    fn answer(&mut self, hello: &[u8], acceptor: &dyn AcceptStreams) {
        let Some(mut stream) = self.connection.as_deref() else { return };
        let answer = acceptor.answer(hello, self.received);
        // A new connection takes these few bytes at once, or it has ended again.
        let sent = stream.write(&answer);
        self.broken = None;
        if !sent.is_ok_and(|bytes| bytes == answer.len()) {
            self.broken = Some("it has ended before an answer".into());
            self.connection = None;
        }
    }

    /// Looks whether the stream, number `at` of the link, is open or may be made anew.
    ///
    /// # Errors
    /// If it has ended, and the peer makes no other connection; or the peer is gone.
    pub(super) fn check(
        &mut self,
        at: usize,
        acceptor: &mut dyn AcceptStreams,
    ) -> Result<(), Fault> {
        let Some(stream) = self.connection.as_deref() else {
            return match &self.broken {
                Some(how) if !acceptor.may_come_again() => Err(Fault::Lost(how.clone())),
                Some(_) => Ok(()),
                None => acceptor.check_sender(),
            };
        };
        // The sender may have found that this connection leads nowhere any more. A process that
        // lacks a descriptor for another one goes on with this one.
        let known = self.next.as_ref().map_or(self.generation, |next| next.generation);
        if let Ok(Some(newer)) = acceptor.accept_again(at, known) {
            self.next = Some(newer);
        }
        match look(stream) {
            Ok(_) => Ok(()),
            Err(end) => {
                self.note_end(&end, acceptor)?;
                self.connection = None;
                if let Some(newer) = self.next.take() {
                    self.follow(newer, acceptor);
                }
                Ok(())
            }
        }
    }

    /// Lets the system acknowledge short frames late, and long ones at once: their sender waits for
    /// room.
    pub(super) fn note_frame(&mut self, is_short: bool) {
        let Some(stream) = self.connection.as_deref() else { return };
        if is_short && self.short_frames.is_multiple_of(SHORT_FRAMES_PER_CALL) {
            delay_acknowledgements(stream, true);
        } else if !is_short && self.short_frames > 0 {
            delay_acknowledgements(stream, false);
        }
        self.short_frames = if is_short { self.short_frames.wrapping_add(1) } else { 0 };
    }

    /// True while the peer has not made a broken stream anew.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|stream| stream.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn short_frames_are_acknowledged_late_and_long_ones_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut lane = Lane { connection: Some(Arc::clone(&stream)), ..Lane::default() };
        let is_at_once = || SockRef::from(&*stream).tcp_quickack().unwrap();
        assert!(is_at_once());
        // A pause ends what was said; the next frames say it again.
        for _ in 0..3 {
            for _ in 0..SHORT_FRAMES_PER_CALL {
                lane.note_frame(true);
            }
            assert!(!is_at_once());
            delay_acknowledgements(&*stream, false);
        }
        lane.note_frame(true);
        assert!(!is_at_once());
        lane.note_frame(false);
        assert!(is_at_once());
        lane.note_frame(true);
        assert!(!is_at_once());
    }
}
