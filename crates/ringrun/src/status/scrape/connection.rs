//! A connection to the server of metrics: it takes one request, answers it, and ends.
//! Law: no method waits, and a connection keeps no more than one request or one answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::request::{self, MAX_REQUEST_BYTES, Request};

/// A client must have sent its request within this time, and have taken the answer within as much.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

enum Stage {
    /// The bytes of the request that have come.
    Asking(Vec<u8>),
    /// The bytes of the answer that have not been sent.
    Answering(Vec<u8>),
    /// The answer is sent. What else the client has sent is read, since the system would discard
    /// the answer with it.
    Leaving,
}

pub(super) struct Connection {
    stream: TcpStream,
    stage: Stage,
    pub(super) deadline: Instant,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (stage, deadline) = (Stage::Asking(vec![]), Instant::now() + CLIENT_TIMEOUT);
        Ok(Self { stream, stage, deadline })
    }

    /// The event for which the connection waits.
    pub(super) const fn event(&self) -> PollFlags {
        match self.stage {
            Stage::Asking(_) | Stage::Leaving => PollFlags::POLLIN,
            Stage::Answering(_) => PollFlags::POLLOUT,
        }
    }

    /// True if the client has asked, and has not got all of the answer.
    pub(super) const fn is_answering(&self) -> bool {
        matches!(self.stage, Stage::Answering(_))
    }

    /// Goes on as far as the client allows. `metrics` makes the answer that has the metrics.
    /// False once the connection has ended.
    pub(super) fn advance(&mut self, metrics: impl FnOnce() -> Vec<u8>) -> bool {
        match self.try_advance(metrics) {
            Ok(is_open) => is_open,
            Err(cause) => matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn try_advance(&mut self, metrics: impl FnOnce() -> Vec<u8>) -> io::Result<bool> {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        match &mut self.stage {
            Stage::Leaving => Ok(self.stream.read(&mut bytes)? > 0),
            Stage::Answering(_) => self.send(),
            Stage::Asking(request) => {
                let len = self.stream.read(&mut bytes[request.len()..])?;
                request.extend_from_slice(&bytes[request.len()..][..len]);
                let answer = match Request::read(request) {
                    Request::Incomplete => return Ok(len > 0),
                    Request::Metrics => metrics(),
                    Request::Home => request::home(),
                    Request::Refused(why) => request::refusal(why),
                };
                self.stage = Stage::Answering(answer);
                self.deadline = Instant::now() + CLIENT_TIMEOUT;
                self.send()
            }
        }
    }

    /// Sends as much of the answer as the client takes.
    fn send(&mut self) -> io::Result<bool> {
        let Stage::Answering(answer) = &mut self.stage else { return Ok(true) };
        while !answer.is_empty() {
            let sent = self.stream.write(answer)?;
            answer.drain(..sent);
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.stage = Stage::Leaving;
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Instant;

    use super::Connection;

    /// More bytes than the buffers of a connection hold.
    const LARGE: usize = 64 << 20;

    fn connection() -> (TcpStream, Connection) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Connection::new(listener.accept().unwrap().0).unwrap())
    }

    /// Lets the connection go on until it takes no more of this request and sends its answer.
    fn ask(client: &mut TcpStream, connection: &mut Connection) {
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while !connection.is_answering() {
            assert!(connection.advance(|| vec![b'a'; LARGE]));
        }
    }

    #[test]
    fn a_client_that_does_not_read_is_not_waited_for() {
        let (mut client, mut connection) = connection();
        ask(&mut client, &mut connection);
        (0..100).for_each(|_| assert!(connection.advance(Vec::new)));
        assert!(connection.is_answering() && connection.deadline > Instant::now());
        drop(client);
        while connection.advance(Vec::new) {}
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
        while connection.advance(Vec::new) {}
        assert_eq!(reads.join().unwrap().unwrap(), LARGE);
    }
}
