//! One stream of a sending end. A stream to another host that breaks is made anew, and goes on with
//! the bytes that were lost with the connection. Waits in calls and for messages look at all such
//! streams of the process: a rank that waits here may be the one for which the receiver of lost
//! bytes waits there.
//! Law: the bytes of a stream have one order, whatever the number of its connections.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use super::attempt::{Attempt, PAUSE, Progress, Redial};
use super::kept::Kept;
use super::opening::OpenedStream;
use super::{End, abandon, bytes_moved, is_unanswered, look, raw};
use crate::error::Error;
use crate::memory::Src;
use crate::sync::PerProcess;
use crate::transport::Fault;

/// The streams of this process that are made anew when they break.
static RESUMABLE_STREAMS: PerProcess<Mutex<Vec<Weak<Mutex<Stream>>>>> = PerProcess::new();

/// Looks whether the streams stand on which bytes may be lost, and goes on to make broken ones
/// anew. To be called now and then in a wait: the peer may lack bytes that left long ago.
pub(crate) fn keep_up_streams() {
    let streams = || RESUMABLE_STREAMS.get().lock().unwrap_or_else(PoisonError::into_inner);
    // The list is free meanwhile: what becomes of a stream is told to the program.
    for stream in (0..).map_while(|at| streams().get(at).map(Weak::upgrade)).flatten() {
        let mut stream = match stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(stream)) => stream.into_inner(),
            // The thread that uses the stream looks by itself.
            Err(TryLockError::WouldBlock) => continue,
        };
        // A fault shows again at the next use.
        let _ = stream.keep_up();
    }
}

/// A stream, which [`keep_up_streams`] finds if it is made anew when it breaks.
#[derive(Default)]
pub(super) struct SharedStream(Arc<Mutex<Stream>>);

impl SharedStream {
    pub(super) fn lock(&self) -> MutexGuard<'_, Stream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with this connection.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] at a limit of this process.
    pub(super) fn open<K>(&self, opened: OpenedStream<K>) -> Result<(), Fault> {
        self.lock().open(opened)?;
        if self.lock().resumption.is_some() {
            let streams = RESUMABLE_STREAMS.get().lock();
            let mut streams = streams.unwrap_or_else(PoisonError::into_inner);
            streams.retain(|stream| stream.strong_count() > 0);
            streams.push(Arc::downgrade(&self.0));
        }
        Ok(())
    }
}

/// The connection of a stream, and what goes out on it first.
#[derive(Default)]
pub(super) struct Stream {
    /// `None` before the first slot, and while the stream is broken.
    connection: Option<Arc<TcpStream>>,
    /// Bytes that go out before the first slot, as far as they have not left.
    hello: Vec<u8>,
    /// Bytes of slots that the system has taken, on all connections.
    pub(super) sent_bytes: u64,
    /// The next bytes can leave once the peer's system has acknowledged others.
    is_full: bool,
    /// The way to make the stream anew; `None` where its end is final.
    resumption: Option<Box<Resumption>>,
}

struct Resumption {
    way: Box<dyn Redial>,
    kept: Kept,
    /// The number of the connection among those of the stream.
    generation: u32,
    /// The attempt to make a broken stream anew.
    attempt: Option<Attempt>,
    /// How the stream has ended, which is not made anew any more.
    lost: Option<String>,
}

/// The fault of this process, which lacks what the link needs.
fn lacking(doing: &str, answer: impl Into<io::Error>) -> Fault {
    Fault::NoMemory(Box::new(Error::io(doing, answer)))
}

impl Stream {
    fn open<K>(&mut self, opened: OpenedStream<K>) -> Result<(), Fault> {
        let OpenedStream { stream, hello, way, .. } = opened;
        (self.connection, self.hello) = (Some(stream), hello);
        if let Some(way) = way {
            let doing = "keeping the bytes of a link";
            let kept = Kept::new().ok_or_else(|| lacking(doing, ErrorKind::OutOfMemory))?;
            let (generation, attempt, lost) = (0, None, None);
            self.resumption = Some(Box::new(Resumption { way, kept, generation, attempt, lost }));
            // There may have been no way for the first connection.
            if let Some(Err(end)) = self.connection.as_deref().map(look) {
                return self.break_off(&end);
            }
        }
        Ok(())
    }

    /// Sends bytes of `header` and then of `payload`, after those that come before: how many the
    /// system has taken, if any.
    pub(super) fn send(&mut self, header: &[u8], payload: Src<'_>) -> Result<Option<usize>, Fault> {
        self.go_on()?;
        match self.try_send(header, payload) {
            Err(end) => self.break_off(&end).map(|()| None),
            Ok(sent) => {
                self.sent_bytes += sent.unwrap_or_default() as u64;
                Ok(sent)
            }
        }
    }

    fn try_send(&mut self, header: &[u8], payload: Src<'_>) -> Result<Option<usize>, End> {
        if !self.send_earlier()? {
            return Ok(None);
        }
        let Some(connection) = self.connection.as_deref() else { return Ok(None) };
        let Some(Resumption { kept, .. }) = self.resumption.as_deref_mut() else {
            return bytes_moved(|| raw::send(connection, header, payload));
        };
        let room = kept.room(connection, header.len() + payload.len());
        self.is_full = room == 0;
        if self.is_full {
            // A connection that has ended acknowledges nothing any more.
            return look(connection).map(|_| None);
        }
        let header = &header[..header.len().min(room)];
        let payload = payload.part(0..payload.len().min(room - header.len()));
        let sent = bytes_moved(|| raw::send(connection, header, payload))?;
        if let Some(bytes) = sent {
            let of_header = bytes.min(header.len());
            kept.push(&header[..of_header]);
            kept.push(raw::slice(&payload.part(0..bytes - of_header)));
        }
        Ok(sent)
    }

    /// Sends the hello, and bytes that were lost with a connection; true once all have left.
    fn send_earlier(&mut self) -> Result<bool, End> {
        let Some(mut connection) = self.connection.as_deref() else { return Ok(false) };
        while !self.hello.is_empty() {
            let Some(bytes) = bytes_moved(|| connection.write(&self.hello))? else {
                return Ok(false);
            };
            self.hello.drain(..bytes);
        }
        let Some(Resumption { kept, .. }) = self.resumption.as_deref_mut() else {
            return Ok(true);
        };
        while !kept.untaken().is_empty() {
            let Some(bytes) = bytes_moved(|| connection.write(kept.untaken()))? else {
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
        if let Some(connection) = self.connection.take() {
            abandon(&*connection);
        }
        self.hello.clear();
        self.is_full = false;
        let patience = resumption.way.patience();
        // A peer that leaves closes its links before it says goodbye.
        let pause = if matches!(end, End::Closed) { PAUSE } else { Duration::ZERO };
        let attempt = Attempt::new(how, resumption.generation, pause, patience);
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
        let Resumption { way, kept, generation, attempt: now, lost } = resumption;
        if let Some(how) = lost {
            return Err(Fault::Lost(how.clone()));
        }
        let Some(attempt) = now else { return Ok(()) };
        if !way.is_peer_there() {
            return Err(Fault::Lost(attempt.how.clone()));
        }
        // The sender of a link receives nothing.
        let how = match attempt.advance(&mut **way, 0) {
            // A peer that has ended shows that at its control channel, too.
            Progress::Underway | Progress::Refused => return Ok(()),
            Progress::Lacking(error) => return Err(lacking("connecting a link again", error)),
            Progress::Resumed(connection, number, received) if kept.resume_from(received) => {
                let after = attempt.elapsed();
                (*generation, *now) = (number, None);
                self.connection = Some(Arc::new(connection));
                way.note_resumed(after);
                return Ok(());
            }
            Progress::Resumed(..) => "it lacks bytes that were acknowledged".into(),
            Progress::Over => attempt.how.clone(),
        };
        // A stream with an attempt owes bytes, for which its close would wait.
        (*now, *lost) = (None, Some(how.clone()));
        Err(Fault::Lost(how))
    }

    /// Looks whether the stream is open, and goes on with one that is not.
    ///
    /// # Errors
    /// If its end is final, or the peer is gone.
    pub(super) fn check(&mut self) -> Result<(), Fault> {
        self.go_on()?;
        let Some(connection) = self.connection.as_deref() else { return Ok(()) };
        // The receiver never sends, so there is nothing to read until the connection ends.
        let looked = match look(connection) {
            Ok(_) if self.resumption.is_some() && is_unanswered(connection) => {
                Err(End::Broken(ErrorKind::TimedOut.into()))
            }
            looked => looked,
        };
        match looked.and_then(|_| self.send_earlier()) {
            Ok(_) => Ok(()),
            Err(end) => self.break_off(&end),
        }
    }

    /// As [`Self::check`], for a stream of which bytes may be lost that will be sent again.
    fn keep_up(&mut self) -> Result<(), Fault> {
        let Some(Resumption { kept, attempt, .. }) = self.resumption.as_deref_mut() else {
            return Ok(());
        };
        let is_at_rest = attempt.is_none()
            && self.hello.is_empty()
            && self.connection.as_deref().is_none_or(|connection| !kept.has_any(connection));
        if is_at_rest { Ok(()) } else { self.check() }
    }

    /// True if the stream is broken, or bytes of an earlier connection wait.
    pub(super) fn owes_bytes(&self) -> bool {
        let owes = |it: &Resumption| it.attempt.is_some() || !it.kept.untaken().is_empty();
        let is_open = |it: &&Resumption| it.lost.is_none();
        self.resumption.as_deref().filter(is_open).is_some_and(owes)
    }

    /// True if the stream owes bytes to a peer that is there.
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
        self.connection.as_ref().filter(|_| !self.is_full).map(|it| it.as_raw_fd())
    }

    /// True if the peer's system has got all bytes. A connection that was reset has no peer any
    /// more, and acknowledges nothing.
    pub(super) fn is_acknowledged(&self) -> bool {
        let connection = self.connection.as_deref();
        connection.is_none_or(|it| raw::unacknowledged(it) == 0 || it.peer_addr().is_err())
    }

    /// Ends the stream after its last byte.
    pub(super) fn shut_down(&self) {
        if let Some(connection) = &self.connection {
            // The shutdown fails if the peer is gone, and is not needed then.
            let _ = connection.shutdown(Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::super::attempt::ANSWER_LEN;
    use super::*;

    /// A way that leads nowhere, tried for so long.
    #[derive(Debug)]
    struct NoWay(Duration);

    impl Redial for NoWay {
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
            self.0
        }

        fn note_resumed(&self, _after: Duration) {}
    }

    /// A stream to a peer that is there, which keeps at most so many bytes, and the peer's end.
    fn stream(size: usize, patience: Duration) -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        connection.set_nonblocking(true).unwrap();
        let (kept, way) = (Kept::of_one_size(size), Box::new(NoWay(patience)));
        let resumption = Resumption { way, kept, generation: 0, attempt: None, lost: None };
        let stream = Stream {
            connection: Some(Arc::new(connection)),
            resumption: Some(Box::new(resumption)),
            ..Stream::default()
        };
        (stream, listener.accept().unwrap().0)
    }

    /// The peer is there and may still answer, but nobody dials it any more.
    #[test]
    fn a_stream_that_is_lost_owes_nothing() {
        let (mut stream, peer) = stream(4096, Duration::ZERO);
        assert!(stream.send(&[5; 64], Src::from(&[][..])).unwrap().is_some());
        drop(peer);
        let until = crate::sync::Instant::now() + Duration::from_secs(60);
        while stream.check().is_ok() {
            assert!(crate::sync::Instant::now() < until, "the stream is not lost");
        }
        assert!(!stream.owes_bytes() && !stream.may_deliver() && !stream.lacks_events());
        assert!(matches!(stream.send(&[5], Src::from(&[][..])), Err(Fault::Lost(_))));
    }

    /// The socket would take more, and the peer's system acknowledges no more than fits there.
    #[test]
    fn a_stream_that_keeps_all_it_may_waits_and_goes_on_once_bytes_are_acknowledged() {
        const SIZE: usize = 4096;
        let (mut stream, mut peer) = stream(SIZE, Duration::from_secs(60));
        let send = |stream: &mut Stream| stream.send(&[5; SIZE / 2], Src::from(&[][..])).unwrap();
        while send(&mut stream).is_some() {}
        assert!(stream.lacks_events() && stream.descriptor().is_none());
        let sent = stream.sent_bytes;
        peer.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let until = crate::sync::Instant::now() + Duration::from_secs(60);
        while send(&mut stream).is_none() {
            assert!(crate::sync::Instant::now() < until, "no byte is acknowledged");
            // Without bytes to read the system may not have acknowledged the last ones yet.
            let _ = peer.read(&mut [0; 64 << 10]);
        }
        assert!(!stream.lacks_events() && stream.descriptor().is_some());
        assert!(stream.sent_bytes > sent);
    }
}
