//! The launcher's end of one rank's PMI socket. Law: no call waits, and a connection has bounded
//! memory: while the rank does not read its answers, none of its requests is read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

/// The longest line, in bytes. The longest that MPICH sends is the argument of a program to spawn.
const MAX_LINE: usize = 64 << 10;
/// The most bytes that are read at a time, so that the other ranks have their turn.
const MAX_READ: usize = 4096;

/// The result of [`Connection::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes,
    /// Nothing can be read now, or nothing shall be before the rank reads its answers.
    Nothing,
    /// The rank and all who inherited its end have closed it.
    End,
    /// A line is longer than [`MAX_LINE`].
    TooLong,
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    incoming: Vec<u8>,
    /// The bytes of `incoming` that were taken as lines.
    taken: usize,
    outgoing: Vec<u8>,
    /// True while the loop waits until the rank reads, and not until it writes.
    pub(crate) awaits_reader: bool,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, incoming: vec![], taken: 0, outgoing: vec![], awaits_reader: false }
    }

    /// Reads some bytes, if there are any.
    pub(crate) fn receive(&mut self) -> Received {
        if self.has_answers() {
            return Received::Nothing;
        }
        self.incoming.drain(..self.taken);
        self.taken = 0;
        if self.incoming.len() > MAX_LINE {
            return Received::TooLong;
        }
        let mut bytes = [0; MAX_READ];
        match recv(self.stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Received::End,
            Ok(count) => {
                self.incoming.extend_from_slice(&bytes[..count]);
                Received::Bytes
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// The next whole line, without its end; none while the rank has answers to read.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        let rest = self.incoming.get(self.taken..).filter(|_| !self.has_answers())?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = rest[..end].to_vec();
        self.taken += end + 1;
        Some(line)
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.outgoing.extend_from_slice(line.as_bytes());
        self.flush();
    }

    /// Sends as much as the socket has room for. A rank that has ended needs no answer.
    pub(crate) fn flush(&mut self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while self.has_answers() {
            match send(self.stream.as_raw_fd(), &self.outgoing, flags) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(_) => self.outgoing.clear(),
            }
        }
    }

    /// True while answers wait for the rank to read earlier ones.
    pub(crate) fn has_answers(&self) -> bool {
        !self.outgoing.is_empty()
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

    use super::*;

    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(ours), theirs)
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let (mut connection, mut rank) = pair();
        assert_eq!(connection.receive(), Received::Nothing);
        for piece in ["cmd=in", "it\ncmd=get_", "maxes\n\n"] {
            rank.write_all(piece.as_bytes()).unwrap();
            assert_eq!(connection.receive(), Received::Bytes);
        }
        let lines: Vec<_> = std::iter::from_fn(|| connection.next_line()).collect();
        assert_eq!(lines, [&b"cmd=init"[..], b"cmd=get_maxes", b""]);
        drop(rank);
        assert_eq!(connection.receive(), Received::End);
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let (mut connection, mut rank) = pair();
        let mut received = Received::Bytes;
        for _ in 0..MAX_LINE / MAX_READ + 2 {
            assert_eq!(received, Received::Bytes);
            rank.write_all(&[b'x'; MAX_READ]).unwrap();
            received = connection.receive();
        }
        assert_eq!((received, connection.next_line()), (Received::TooLong, None));
    }

    #[test]
    fn a_rank_that_does_not_read_is_not_read() {
        let (mut connection, mut rank) = pair();
        rank.write_all(b"cmd=a\ncmd=b\n").unwrap();
        assert_eq!(connection.receive(), Received::Bytes);
        let answer = "x".repeat(100);
        let mut sent = 0;
        while !connection.has_answers() {
            connection.send(&answer);
            sent += answer.len();
        }
        assert_eq!((connection.receive(), connection.next_line()), (Received::Nothing, None));
        let mut all = vec![0; sent];
        let mut read = 0;
        while read < sent {
            read += rank.read(&mut all[read..]).unwrap();
            connection.flush();
        }
        assert_eq!(connection.next_line().as_deref(), Some(&b"cmd=a"[..]));
    }
}
