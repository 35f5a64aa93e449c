//! How a connection that has broken is made anew: connect, send the hello of the next generation,
//! await the number of bytes or frames that the other end has received. Each failure begins anew.
//! Law: no step waits. A connection that stands is waited for as long as the peer may be busy; one
//! that does not come about, until the patience ends. Only a connection that was tried shows that
//! it has: nobody may have looked for longer.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{abandon, is_unanswered};
use crate::sync::Instant;

/// Bytes of the answer to a hello: a number, and a tag that proves both.
pub const ANSWER_LEN: usize = 40;

/// How long a connection may take to come about before another one is tried. The system itself
/// waits longer from one try to the next, and a cable that was cut may be back by then.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// The pause after a connection that failed.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that stood for this long shows that the peer's host can be reached.
const STOOD_LONG: Duration = Duration::from_secs(1);

/// The way on which the end of a broken stream reaches the other one.
pub trait Redial: Send + fmt::Debug {
    /// Begins a connection, number `attempt` of this way. Never waits: the system may still connect
    /// it.
    ///
    /// # Errors
    /// The system's answer.
    fn connect(&mut self, attempt: u32) -> io::Result<TcpStream>;

    /// The hello of connection number `generation` of the stream, from an end that has received so
    /// many bytes or frames.
    fn hello(&self, generation: u32, received: u64) -> Vec<u8>;

    /// How many bytes or frames the other end has received, by its answer to this hello; `None` if
    /// the answer is another one's.
    fn received_by_peer(&self, hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64>;

    /// True while the peer lives and has not left, as far as is known.
    fn is_peer_there(&self) -> bool;

    /// How long the peer's host may be out of reach.
    fn patience(&self) -> Duration;

    /// Notes that the stream goes on, after so long.
    fn note_resumed(&self, after: Duration);
}

/// What a step has led to.
#[derive(Debug)]
pub(crate) enum Progress {
    Underway,
    /// Nothing listens at the peer's address.
    Refused,
    /// The patience has ended.
    Over,
    /// The connection, its generation, and what the other end has received.
    Resumed(TcpStream, u32, u64),
}

/// The attempt to make a broken connection anew.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// How the connection has broken.
    pub(crate) how: String,
    began: Instant,
    until: Instant,
    /// The generation of the last hello, and the connections so far.
    generation: u32,
    connections: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Pause(Instant),
    Connecting(TcpStream, Instant),
    Awaiting(Box<Awaiting>),
}

/// A connection whose hello is on its way, or has no answer yet.
#[derive(Debug)]
struct Awaiting {
    stream: TcpStream,
    since: Instant,
    hello: Vec<u8>,
    sent: usize,
    answer: [u8; ANSWER_LEN],
    filled: usize,
}

impl Attempt {
    /// An attempt after connection number `generation` has broken; its host gave the last sign of
    /// life `silence` ago, and may be silent for `patience`.
    pub(crate) fn new(how: String, generation: u32, silence: Duration, patience: Duration) -> Self {
        let now = Instant::now();
        let until = now + patience.saturating_sub(silence);
        Self { how, began: now, until, generation, connections: 0, stage: Stage::Pause(now) }
    }

    /// The time since the break was noticed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// True once a hello of this end is on its way.
    pub(crate) fn has_said_hello(&self) -> bool {
        matches!(self.stage, Stage::Awaiting(_))
    }

    /// Goes on as far as is possible without waiting. This end has received so many bytes or
    /// frames, and receives no more of the broken connection.
    pub(crate) fn advance(&mut self, way: &mut dyn Redial, received: u64) -> Progress {
        let now = Instant::now();
        loop {
            match &mut self.stage {
                Stage::Pause(until) if now < *until => return Progress::Underway,
                Stage::Pause(_) => {
                    let connected = way.connect(self.connections);
                    self.connections = self.connections.wrapping_add(1);
                    match connected {
                        Ok(stream) => self.stage = Stage::Connecting(stream, now),
                        Err(error) => return self.failed(&error, now),
                    }
                }
                Stage::Connecting(stream, since) => match connected(stream) {
                    Ok(true) => self.say_hello(way, received, now),
                    Ok(false) if now.saturating_duration_since(*since) < CONNECT_TIME => {
                        return Progress::Underway;
                    }
                    Ok(false) if now >= self.until => return Progress::Over,
                    Ok(false) => self.stage = Stage::Pause(now),
                    Err(error) => return self.failed(&error, now),
                },
                Stage::Awaiting(awaiting) => match awaiting.advance(way) {
                    Ok(Some(theirs)) => return self.finish(theirs, now),
                    Ok(None) => return Progress::Underway,
                    Err(error) => {
                        if now.saturating_duration_since(awaiting.since) >= STOOD_LONG {
                            self.until = self.until.max(now + way.patience());
                        }
                        abandon(&awaiting.stream);
                        return self.failed(&error, now);
                    }
                },
            }
        }
    }

    fn say_hello(&mut self, way: &dyn Redial, received: u64, now: Instant) {
        let Stage::Connecting(stream, _) =
            std::mem::replace(&mut self.stage, Stage::Pause(now + PAUSE))
        else {
            return;
        };
        self.generation += 1;
        let hello = way.hello(self.generation, received);
        let (answer, sent, filled) = ([0; ANSWER_LEN], 0, 0);
        let awaiting = Awaiting { stream, since: now, hello, sent, answer, filled };
        self.stage = Stage::Awaiting(Box::new(awaiting));
    }

    fn finish(&mut self, theirs: u64, now: Instant) -> Progress {
        match std::mem::replace(&mut self.stage, Stage::Pause(now)) {
            Stage::Awaiting(awaiting) => {
                Progress::Resumed(awaiting.stream, self.generation, theirs)
            }
            _ => Progress::Underway,
        }
    }

    fn failed(&mut self, error: &io::Error, now: Instant) -> Progress {
        self.stage = Stage::Pause(now + PAUSE);
        match error.kind() {
            ErrorKind::ConnectionRefused => Progress::Refused,
            _ => self.unless_over(now),
        }
    }

    fn unless_over(&self, now: Instant) -> Progress {
        if now < self.until { Progress::Underway } else { Progress::Over }
    }
}

impl Drop for Attempt {
    /// The other end may have taken a connection whose hello has come, which has not ended there.
    fn drop(&mut self) {
        if let Stage::Awaiting(awaiting) = &self.stage {
            abandon(&awaiting.stream);
        }
    }
}

/// Whether the system has connected this socket.
fn connected(stream: &TcpStream) -> io::Result<bool> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream.peer_addr().is_ok()),
    }
}

impl Awaiting {
    /// What the other end has received, once its answer has come.
    fn advance(&mut self, way: &dyn Redial) -> io::Result<Option<u64>> {
        while self.sent < self.hello.len() {
            match (&self.stream).write(&self.hello[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while self.filled < ANSWER_LEN {
            match (&self.stream).read(&mut self.answer[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_gone = is_unanswered(&self.stream);
                    return if is_gone { Err(ErrorKind::TimedOut.into()) } else { Ok(None) };
                }
                Err(error) => return Err(error),
            }
        }
        let theirs = way.received_by_peer(&self.hello, &self.answer);
        theirs.map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
    }
}
