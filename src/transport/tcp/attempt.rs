//! How a connection that has broken is made anew: connect, send the hello of the next generation,
//! await the number of bytes or frames that the other end has received. Each failure begins anew.
//! Law: no step waits. A connection that stands is waited for as long as the peer may be busy; one
//! that does not come about, until the patience ends. Only a connection that was tried shows that
//! it has: nobody may have looked for longer. What this process lacks is no sign of the peer.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::errno::Errno;

use super::{abandon, is_unanswered};
use crate::error::Limit;
use crate::sync::Instant;

/// Bytes of the answer to a hello: a number, and a tag that proves both.
pub const ANSWER_LEN: usize = 40;

/// How long connections, one after the other, may take to come about before another one is tried.
/// The system itself waits longer from one try to the next, and a cable that was cut may be back by
/// then, for a moment only. The longest is enough for a way through satellites; each of up to four
/// addresses gets it in its turn.
const CONNECT_MS: [u64; 5] = [250, 250, 250, 500, 1000];
/// Connections in a row without an answer that no lost packet explains.
const REPEATEDLY: u32 = 2;
/// The pause after a connection that failed.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
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

    /// True if nothing of the peer's process listens any more. The connection that was begun last
    /// was refused, the last one of so many in a row: other addresses of the peer may still be
    /// good.
    fn is_refusal_final(&self, refusals: u32) -> bool;

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
    /// Nothing of the peer's process listens any more.
    Refused,
    /// This process itself has lacked what a connection needs until the patience ended.
    Lacking(io::Error),
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
    /// Since when no connection has come about, though this process had what it needs for one.
    unanswered_since: Instant,
    until: Instant,
    /// The generation of the last hello, and the connections so far.
    generation: u32,
    connections: u32,
    /// The last connections that were refused, one after the other.
    refusals: u32,
    /// The last connections without an answer, one after the other.
    unanswered_connections: u32,
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
    /// An attempt after connection number `generation` has broken, which begins after a pause; the
    /// host may be silent for `patience` more.
    pub(crate) fn new(how: String, generation: u32, pause: Duration, patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            how,
            began: now,
            unanswered_since: now,
            until: now + patience,
            generation,
            connections: 0,
            refusals: 0,
            unanswered_connections: 0,
            stage: Stage::Pause(now + pause),
        }
    }

    /// The time since the break was noticed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// For how long no connection has come about.
    pub(crate) fn unanswered(&self) -> Duration {
        self.unanswered_since.elapsed()
    }

    /// True once [`REPEATEDLY`] connections in a row have had no answer.
    pub(crate) fn is_unanswered_repeatedly(&self) -> bool {
        self.unanswered_connections >= REPEATEDLY
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
            let latest = self.connections.wrapping_sub(1) as usize % CONNECT_MS.len();
            let limit = Duration::from_millis(CONNECT_MS[latest]);
            match &mut self.stage {
                Stage::Pause(until) if now < *until => return Progress::Underway,
                Stage::Pause(_) => {
                    let connected = way.connect(self.connections);
                    self.connections = self.connections.wrapping_add(1);
                    match connected {
                        Ok(stream) => self.stage = Stage::Connecting(stream, now),
                        Err(error) if is_own_lack(&error) => return self.lacks(error, now),
                        Err(error) => return self.failed(&error, way, now),
                    }
                }
                Stage::Connecting(stream, since) => match connected(stream) {
                    Ok(true) => self.say_hello(way, received, now),
                    Ok(false) if now.saturating_duration_since(*since) < limit => {
                        return Progress::Underway;
                    }
                    Ok(false) if now >= self.until => return Progress::Over,
                    Ok(false) => {
                        self.unanswered_connections += 1;
                        (self.refusals, self.stage) = (0, Stage::Pause(now));
                    }
                    Err(error) => return self.failed(&error, way, now),
                },
                Stage::Awaiting(awaiting) => match awaiting.advance(way) {
                    Ok(Some(theirs)) => return self.finish(theirs, now),
                    Ok(None) => return Progress::Underway,
                    Err(error) => {
                        if now.saturating_duration_since(awaiting.since) >= STOOD_LONG {
                            self.until = self.until.max(now + way.patience());
                            self.unanswered_since = now;
                        }
                        abandon(&awaiting.stream);
                        return self.failed(&error, way, now);
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
        self.unanswered_connections = 0;
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

    fn failed(&mut self, error: &io::Error, way: &dyn Redial, now: Instant) -> Progress {
        self.stage = Stage::Pause(now + PAUSE);
        let is_refused = error.kind() == ErrorKind::ConnectionRefused;
        (self.refusals, self.unanswered_connections) = match is_refused {
            true => (self.refusals.saturating_add(1), 0),
            false => (0, self.unanswered_connections + 1),
        };
        match is_refused && way.is_refusal_final(self.refusals) {
            true => Progress::Refused,
            false if now < self.until => Progress::Underway,
            false => Progress::Over,
        }
    }

    /// Waits until this process may have what it lacks.
    fn lacks(&mut self, error: io::Error, now: Instant) -> Progress {
        (self.refusals, self.unanswered_connections, self.unanswered_since) = (0, 0, now);
        self.stage = Stage::Pause(now + PAUSE);
        if now < self.until { Progress::Underway } else { Progress::Lacking(error) }
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

/// True of an answer about this process or its host, which says nothing of the peer.
pub(crate) fn is_own_lack(error: &io::Error) -> bool {
    Limit::of(error).is_some() || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use socket2::{Domain, Socket, Type};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The way to a peer that has several addresses, of which none has answered; `None` stands for
    /// a time at which this process lacks a descriptor.
    #[derive(Debug)]
    struct Addresses(Vec<Option<SocketAddr>>);

    impl Redial for Addresses {
        fn connect(&mut self, attempt: u32) -> io::Result<TcpStream> {
            let address = self.0[attempt as usize % self.0.len()];
            let stream = TcpStream::connect(address.ok_or(Errno::EMFILE)?)?;
            stream.set_nonblocking(true).map(|()| stream)
        }

        fn hello(&self, _generation: u32, _received: u64) -> Vec<u8> {
            vec![1]
        }

        fn received_by_peer(&self, _hello: &[u8], answer: &[u8; ANSWER_LEN]) -> Option<u64> {
            Some(answer[0].into())
        }

        fn is_refusal_final(&self, refusals: u32) -> bool {
            refusals as usize >= self.0.len()
        }

        fn is_peer_there(&self) -> bool {
            true
        }

        fn patience(&self) -> Duration {
            LONG
        }

        fn note_resumed(&self, _after: Duration) {}
    }

    /// A port that refuses connections, and that nobody else gets meanwhile.
    fn refusing() -> (Socket, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    fn attempt(patience: Duration) -> Attempt {
        Attempt::new("reset".into(), 0, Duration::ZERO, patience)
    }

    /// What the attempt leads to.
    fn outcome(attempt: &mut Attempt, way: &mut Addresses) -> Progress {
        let until = Instant::now() + LONG;
        loop {
            match attempt.advance(way, 0) {
                Progress::Underway => assert!(Instant::now() < until, "it goes on"),
                led_to => return led_to,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_address_that_refuses_is_not_the_end_of_a_peer_with_a_good_one() {
        let (_port, refused) = refusing();
        let good = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = good.local_addr().unwrap();
        for first in [Some(refused), None] {
            let answering = good.try_clone().unwrap();
            let peer = std::thread::spawn(move || {
                let (mut stream, _) = answering.accept().unwrap();
                stream.read_exact(&mut [0]).and_then(|()| stream.write_all(&[7; ANSWER_LEN]))
            });
            let led_to = outcome(&mut attempt(LONG), &mut Addresses(vec![first, Some(address)]));
            assert!(matches!(led_to, Progress::Resumed(_, 1, 7)), "{first:?}: {led_to:?}");
            peer.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_peer_has_ended_once_all_its_addresses_refuse_in_a_row() {
        let ports = [(); 3].map(|()| refusing());
        let mut way = Addresses(ports.iter().map(|(_, address)| Some(*address)).collect());
        let mut attempt = attempt(LONG);
        assert!(matches!(outcome(&mut attempt, &mut way), Progress::Refused));
        assert_eq!(attempt.connections, 3);
        // What this process lacked in between is no refusal.
        (way.0[1], attempt) = (None, self::attempt(Duration::from_millis(200)));
        let led_to = outcome(&mut attempt, &mut way);
        assert!(matches!(led_to, Progress::Lacking(_) | Progress::Over), "{led_to:?}");
    }

    #[test]
    fn a_process_without_descriptors_says_so_at_the_end_of_the_patience() {
        let led_to = outcome(&mut attempt(Duration::ZERO), &mut Addresses(vec![None]));
        let Progress::Lacking(error) = led_to else { panic!("{led_to:?}") };
        assert_eq!(Limit::of(&error), Some(Limit::Descriptors));
    }
}
