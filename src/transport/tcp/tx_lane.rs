//! One stream of a sending end, and its progress. A stream to another host that breaks is made
//! anew, and goes on with the bytes that were lost with the connection.
//! Law: the bytes of a stream have one order, whatever the number of its connections.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Progress, Redial};
use super::kept::Kept;
use super::opening::{DialStreams, OpenedStream};
use super::{End, abandon, bytes_moved, is_unanswered, look, raw};
use crate::error::Error;
use crate::memory::Src;
use crate::transport::Fault;
use crate::transport::aead::SealingKey;

/// One stream, and its progress.
#[derive(Default)]
pub(super) struct Lane {
    /// `None` before the first slot of the lane, and while the stream is broken.
    stream: Option<Arc<TcpStream>>,
    /// Bytes that go out before the first slot, as far as they have not left.
    hello: Vec<u8>,
    /// The key, on an encrypted link.
    pub(super) sealer: Option<SealingKey>,
    /// The number of the slot that the socket sends now, or next.
    pub(super) slot: u64,
    /// Bytes of that slot's frame that the system has taken.
    pub(super) sent: usize,
    /// Bytes of slots that the system has taken, on all connections.
    pub(super) sent_bytes: u64,
    /// The next bytes can leave once the peer's system has acknowledged others.
    is_full: bool,
    /// What makes the stream anew; `None` where its end is final.
    resumption: Option<Box<Resumption>>,
}

struct Resumption {
    way: Box<dyn Redial>,
    kept: Kept,
    /// The number of the connection among those of the stream.
    generation: u32,
    /// The attempt to make a broken stream anew.
    attempt: Option<Attempt>,
}

/// The fault of this process, which lacks what the link needs.
fn lacking(doing: &str, answer: impl Into<io::Error>) -> Fault {
    Fault::NoMemory(Box::new(Error::io(doing, answer)))
}

impl Lane {
    pub(super) fn new(slot: u64) -> Self {
        Self { slot, ..Self::default() }
    }

    /// Dials the stream, number `at` of the link, before its first slot.
    ///
    /// # Errors
    /// As [`DialStreams::dial`].
    pub(super) fn open(&mut self, at: usize, dialler: &mut dyn DialStreams) -> Result<(), Fault> {
        if self.stream.is_some() || self.resumption.is_some() {
            return Ok(());
        }
        let OpenedStream { stream, key, hello, way, .. } = dialler.dial(at)?;
        (self.stream, self.sealer, self.hello) = (Some(stream), key, hello);
        if let Some(way) = way {
            let doing = "keeping the bytes of a link";
            let kept = Kept::new().ok_or_else(|| lacking(doing, ErrorKind::OutOfMemory))?;
            let (generation, attempt) = (0, None);
            self.resumption = Some(Box::new(Resumption { way, kept, generation, attempt }));
        }
        Ok(())
    }

    /// Sends bytes of `header` and then of `payload`, after those that come before: how many the
    /// system has taken, if any.
    pub(super) fn send(&mut self, header: &[u8], payload: Src<'_>) -> Result<Option<usize>, Fault> {
        self.go_on()?;
        match self.try_send(header, payload) {
            Err(End::Broken(error)) => self.break_off(&End::Broken(error)).map(|()| None),
            sent => {
                let sent = sent?;
                self.sent_bytes += sent.unwrap_or_default() as u64;
                Ok(sent)
            }
        }
    }

    fn try_send(&mut self, header: &[u8], payload: Src<'_>) -> Result<Option<usize>, End> {
        if !self.send_earlier()? {
            return Ok(None);
        }
        let Some(stream) = self.stream.as_deref() else { return Ok(None) };
        let Some(Resumption { kept, .. }) = self.resumption.as_deref_mut() else {
            return bytes_moved(|| raw::send(stream, header, payload));
        };
        let room = kept.room(stream, header.len() + payload.len());
        self.is_full = room == 0;
        if self.is_full {
            // A connection that has ended acknowledges nothing any more.
            return look(stream).map(|_| None);
        }
        let header = &header[..header.len().min(room)];
        let payload = payload.part(0..payload.len().min(room - header.len()));
        let sent = bytes_moved(|| raw::send(stream, header, payload))?;
        if let Some(bytes) = sent {
            let of_header = bytes.min(header.len());
            kept.push(&header[..of_header]);
            kept.push(raw::slice(&payload.part(0..bytes - of_header)));
        }
        Ok(sent)
    }

    /// Sends the hello, and bytes that were lost with a connection; true once all have left.
    fn send_earlier(&mut self) -> Result<bool, End> {
        let Some(mut stream) = self.stream.as_deref() else { return Ok(false) };
        while !self.hello.is_empty() {
            let Some(bytes) = bytes_moved(|| stream.write(&self.hello))? else {
                return Ok(false);
            };
            self.hello.drain(..bytes);
        }
        let Some(Resumption { kept, .. }) = self.resumption.as_deref_mut() else {
            return Ok(true);
        };
        while !kept.untaken().is_empty() {
            let Some(bytes) = bytes_moved(|| stream.write(kept.untaken()))? else {
                return Ok(false);
            };
            kept.note_taken(bytes);
            self.sent_bytes += bytes as u64;
        }
        Ok(true)
    }

    /// Begins to make the stream anew, whose connection has ended so.
    ///
    /// # Errors
    /// Where its end is final.
    fn break_off(&mut self, end: &End) -> Result<(), Fault> {
        let how = end.how();
        let Some(resumption) = self.resumption.as_deref_mut() else {
            return Err(Fault::Lost(how));
        };
        if let Some(stream) = self.stream.take() {
            abandon(&*stream);
        }
        self.hello.clear();
        self.is_full = false;
        let patience = resumption.way.patience();
        let attempt = Attempt::new(how, resumption.generation, Duration::ZERO, patience);
        resumption.attempt = Some(attempt);
        self.go_on()
    }

    /// Goes on to make a broken stream anew.
    ///
    /// # Errors
    /// If the peer is gone, or has been out of reach for too long; [`Fault::NoMemory`] at a limit
    /// of this process.
    fn go_on(&mut self) -> Result<(), Fault> {
        let Some(resumption) = self.resumption.as_deref_mut() else { return Ok(()) };
        let Resumption { way, kept, generation, attempt: now } = resumption;
        let Some(attempt) = now else { return Ok(()) };
        if !way.is_peer_there() {
            return Err(Fault::Lost(attempt.how.clone()));
        }
        // The sender of a link receives nothing.
        match attempt.advance(&mut **way, 0) {
            // A peer that has ended shows that at its control channel, too.
            Progress::Underway | Progress::Refused => Ok(()),
            Progress::Over => Err(Fault::Lost(attempt.how.clone())),
            Progress::Lacking(error) => Err(lacking("connecting a link again", error)),
            Progress::Resumed(stream, number, received) => {
                if !kept.resume_from(received) {
                    let how = "it has received other bytes than those that were sent";
                    return Err(Fault::Lost(how.into()));
                }
                way.note_resumed(attempt.elapsed());
                (*generation, *now) = (number, None);
                self.stream = Some(Arc::new(stream));
                Ok(())
            }
        }
    }

    /// Looks whether the stream is open, and goes on with one that is not.
    ///
    /// # Errors
    /// If the peer has closed it, or is gone.
    pub(super) fn check(&mut self) -> Result<(), Fault> {
        self.go_on()?;
        let Some(stream) = self.stream.as_deref() else { return Ok(()) };
        // The receiver never sends, so there is nothing to read until it closes.
        let end = match (look(stream), &self.resumption) {
            (Ok(_), Some(_)) if is_unanswered(stream) => End::Broken(ErrorKind::TimedOut.into()),
            (Ok(_), _) => return self.send_what_is_owed(),
            (Err(End::Broken(error)), _) => End::Broken(error),
            (Err(End::Closed), _) => return Err(End::Closed.into()),
        };
        self.break_off(&end)
    }

    /// As [`Self::check`], for a stream that is made anew when it breaks.
    pub(super) fn keep_up(&mut self) -> Result<(), Fault> {
        if self.resumption.is_some() { self.check() } else { Ok(()) }
    }

    /// Sends what was lost with an earlier connection.
    fn send_what_is_owed(&mut self) -> Result<(), Fault> {
        match self.send_earlier() {
            Err(end @ End::Broken(_)) => self.break_off(&end),
            sent => Ok(sent.map(|_| ())?),
        }
    }

    /// True if the stream is broken, or bytes of an earlier connection wait.
    pub(super) fn owes_bytes(&self) -> bool {
        let owes = |it: &Resumption| it.attempt.is_some() || !it.kept.untaken().is_empty();
        self.resumption.as_deref().is_some_and(owes)
    }

    /// True if the lane owes bytes to a peer that is there.
    pub(super) fn may_deliver(&self) -> bool {
        let is_there = |it: &Resumption| it.way.is_peer_there();
        self.owes_bytes() && self.resumption.as_deref().is_some_and(is_there)
    }

    /// True while no event tells when the next bytes can leave: the stream is broken, or the peer's
    /// system has to acknowledge others before.
    pub(super) fn lacks_events(&self) -> bool {
        self.is_full || self.resumption.as_deref().is_some_and(|it| it.attempt.is_some())
    }

    /// Gives up whatever has not left.
    pub(super) fn give_up(&mut self) {
        (self.resumption, self.is_full) = (None, false);
    }

    /// The socket that takes the next bytes; `None` where no event tells when.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.stream.as_ref().filter(|_| !self.is_full).map(|stream| stream.as_raw_fd())
    }

    /// True if the peer's system has got all bytes. A connection that was reset has no peer any
    /// more, and acknowledges nothing.
    pub(super) fn is_acknowledged(&self) -> bool {
        let stream = self.stream.as_deref();
        stream.is_none_or(|it| raw::unacknowledged(it) == 0 || it.peer_addr().is_err())
    }

    /// Ends the stream after its last byte.
    pub(super) fn shut_down(&self) {
        if let Some(stream) = &self.stream {
            // The shutdown fails if the peer is gone, and is not needed then.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::super::attempt::ANSWER_LEN;
    use super::*;

    /// A way that no test takes.
    #[derive(Debug)]
    struct Unused;

    impl Redial for Unused {
        fn connect(&mut self, _attempt: u32) -> io::Result<TcpStream> {
            Err(ErrorKind::TimedOut.into())
        }

        fn hello(&self, _generation: u32, _received: u64) -> Vec<u8> {
            Vec::new()
        }

        fn received_by_peer(&self, _hello: &[u8], _answer: &[u8; ANSWER_LEN]) -> Option<u64> {
            None
        }

        fn is_refusal_final(&self, _refusals: u32) -> bool {
            false
        }

        fn is_peer_there(&self) -> bool {
            true
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(60)
        }

        fn note_resumed(&self, _after: Duration) {}
    }

    /// The socket would take more, and the peer's system acknowledges no more than fits there.
    #[test]
    fn a_lane_that_keeps_all_it_may_waits_and_goes_on_once_bytes_are_acknowledged() {
        const SIZE: usize = 4096;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let kept = Kept::of_one_size(SIZE);
        let resumption = Resumption { way: Box::new(Unused), kept, generation: 0, attempt: None };
        let mut lane = Lane {
            stream: Some(Arc::new(stream)),
            resumption: Some(Box::new(resumption)),
            ..Lane::default()
        };
        let send = |lane: &mut Lane| lane.send(&[5; SIZE / 2], Src::from(&[][..])).unwrap();
        while send(&mut lane).is_some() {}
        assert!(lane.lacks_events() && lane.descriptor().is_none());
        let sent = lane.sent_bytes;
        peer.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let until = crate::sync::Instant::now() + Duration::from_secs(60);
        while send(&mut lane).is_none() {
            assert!(crate::sync::Instant::now() < until, "no byte is acknowledged");
            // Without bytes to read the system may not have acknowledged the last ones yet.
            let _ = peer.read(&mut [0; 64 << 10]);
        }
        assert!(!lane.lacks_events() && lane.descriptor().is_some() && lane.sent_bytes > sent);
    }
}
