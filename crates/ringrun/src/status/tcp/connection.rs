//! A connection to a server: its session answers one request after the other, and the last answer
//! ends it.
//! Law: no method waits, and a connection keeps no more than one request and one answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

/// A client must have taken an answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read at a time.
const READ_AT_ONCE: usize = 8 << 10;

/// The protocol of a server's connections, and the state of one of them.
pub(in crate::status) trait Session: Default {
    /// The longest request.
    const MAX_REQUEST_BYTES: usize;
    /// A client must have sent a request within this time.
    const REQUEST_TIMEOUT: Duration;
    /// The source of the answers, for all connections of a server.
    type Source;

    /// The answer to the request that these bytes begin with. As many bytes as a request may have
    /// are never incomplete.
    fn reply(&mut self, bytes: &[u8], source: &mut Self::Source) -> Reply;
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::status) enum Reply {
    /// More of the request has to come.
    Incomplete,
    /// The answer to a request of so many bytes, behind which the client may ask again.
    Next { request_bytes: usize, answer: Vec<u8> },
    /// The answer that ends the connection.
    Last(Vec<u8>),
}

enum Stage {
    /// The client may send a request.
    Asking,
    /// The bytes of the answer that have not been sent.
    Answering { answer: Vec<u8>, is_last: bool },
    /// The last answer is sent. What else the client has sent is read, since the system would
    /// discard the answer with it.
    Leaving,
}

pub(super) struct Connection<S> {
    stream: TcpStream,
    session: S,
    /// The bytes that have come and are not answered.
    received: Vec<u8>,
    stage: Stage,
    pub(super) deadline: Instant,
}

impl<S: Session> Connection<S> {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (session, received, stage) = (S::default(), vec![], Stage::Asking);
        let deadline = Instant::now() + S::REQUEST_TIMEOUT;
        Ok(Self { stream, session, received, stage, deadline })
    }

    /// The event for which the connection waits.
    pub(super) const fn event(&self) -> PollFlags {
        match self.stage {
            Stage::Asking | Stage::Leaving => PollFlags::POLLIN,
            Stage::Answering { .. } => PollFlags::POLLOUT,
        }
    }

    /// True if the client has asked, and has not got all of the answer.
    pub(super) const fn is_answering(&self) -> bool {
        matches!(self.stage, Stage::Answering { .. })
    }

    /// Goes on as far as the client allows, by one read at most. False once the connection has
    /// ended.
    pub(super) fn advance(&mut self, source: &mut S::Source) -> bool {
        match self.try_advance(source) {
            Ok(is_open) => is_open,
            Err(cause) => matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn try_advance(&mut self, source: &mut S::Source) -> io::Result<bool> {
        let mut bytes = [0; READ_AT_ONCE];
        match &mut self.stage {
            Stage::Leaving => return Ok(self.stream.read(&mut bytes)? > 0),
            Stage::Answering { .. } => self.send()?,
            Stage::Asking => {
                let room = S::MAX_REQUEST_BYTES.saturating_sub(self.received.len());
                let len = self.stream.read(&mut bytes[..room.min(READ_AT_ONCE)])?;
                self.received.extend_from_slice(&bytes[..len]);
                if len == 0 {
                    return Ok(false);
                }
            }
        }
        // One read may bring several requests.
        while matches!(self.stage, Stage::Asking) && self.reply(source) {
            self.send()?;
        }
        Ok(true)
    }

    /// Answers the next request that has come. False if none has come as a whole.
    fn reply(&mut self, source: &mut S::Source) -> bool {
        let (answer, is_last) = match self.session.reply(&self.received, source) {
            Reply::Incomplete => return false,
            Reply::Next { request_bytes, answer } => {
                self.received.drain(..request_bytes.min(self.received.len()));
                (answer, false)
            }
            Reply::Last(answer) => (answer, true),
        };
        self.stage = Stage::Answering { answer, is_last };
        self.deadline = Instant::now() + ANSWER_TIMEOUT;
        true
    }

    /// Sends as much of the answer as the client takes.
    fn send(&mut self) -> io::Result<()> {
        let Stage::Answering { answer, is_last } = &mut self.stage else { return Ok(()) };
        while !answer.is_empty() {
            let sent = self.stream.write(answer)?;
            answer.drain(..sent);
        }
        if *is_last {
            self.stream.shutdown(Shutdown::Write)?;
            self.stage = Stage::Leaving;
        } else {
            self.stage = Stage::Asking;
            self.deadline = Instant::now() + S::REQUEST_TIMEOUT;
        }
        Ok(())
    }
}

impl<S> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::{Connection, Reply, Session};

    /// More bytes than the buffers of a connection hold.
    const LARGE: usize = 64 << 20;

    /// Answers each line by its length, and an empty one by the source, as the last.
    #[derive(Default)]
    struct Lines;

    impl Session for Lines {
        const MAX_REQUEST_BYTES: usize = 16;
        const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
        type Source = Vec<u8>;

        fn reply(&mut self, bytes: &[u8], source: &mut Vec<u8>) -> Reply {
            match bytes.iter().position(|byte| *byte == b'\n') {
                Some(0) => Reply::Last(std::mem::take(source)),
                Some(len) => Reply::Next { request_bytes: len + 1, answer: len.to_string().into() },
                None if bytes.len() == Self::MAX_REQUEST_BYTES => Reply::Last(b"long".into()),
                None => Reply::Incomplete,
            }
        }
    }

    fn connection() -> (TcpStream, Connection<Lines>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Connection::new(listener.accept().unwrap().0).unwrap())
    }

    /// Lets the connection go on until it takes no more of this request and sends its answer.
    fn ask(client: &mut TcpStream, connection: &mut Connection<Lines>) {
        client.write_all(b"\n").unwrap();
        while !connection.is_answering() {
            assert!(connection.advance(&mut vec![b'a'; LARGE]));
        }
    }

    #[test]
    fn a_client_that_does_not_read_is_not_waited_for() {
        let (mut client, mut connection) = connection();
        ask(&mut client, &mut connection);
        (0..100).for_each(|_| assert!(connection.advance(&mut vec![])));
        assert!(connection.is_answering() && connection.deadline > Instant::now());
        drop(client);
        while connection.advance(&mut vec![]) {}
    }

    #[test]
    fn a_slow_client_gets_all_of_an_answer() {
        let (mut client, mut connection) = connection();
        ask(&mut client, &mut connection);
        // More than is read as a request does not cost the client the answer.
        client.write_all(b"more").unwrap();
        let reads = std::thread::spawn(move || {
            let mut answer = vec![];
            client.read_to_end(&mut answer).map(|_| answer.len())
        });
        while connection.advance(&mut vec![]) {}
        assert_eq!(reads.join().unwrap().unwrap(), LARGE);
    }

    #[test]
    fn requests_are_answered_in_order_however_they_come() {
        for (parts, expected) in [
            (&["a\nbc\n\n"][..], "12end"),
            (&["a", "\nbc\n", "\n"], "12end"),
            (&["a\n"], "1"),
            (&["a\nbc"], "1"),
            (&["a\n0123456789012345"], "1long"),
            (&[""], ""),
        ] {
            let (mut client, mut connection) = connection();
            let mut source = b"end".to_vec();
            for part in parts {
                client.write_all(part.as_bytes()).unwrap();
                assert!(connection.advance(&mut source));
            }
            // The client ends its half of the connection, and still gets the answers.
            client.shutdown(Shutdown::Write).unwrap();
            while connection.advance(&mut source) {}
            drop(connection);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, expected, "{parts:?}");
        }
    }
}
