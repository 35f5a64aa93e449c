//! One end of a rank's stream, whose other end is on another host: bytes that are read here are
//! written there, and the other way round.
//! Law: an end holds [`WINDOW`] bytes at most, and a stream that nobody takes waits alone.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::{getpgrp, tcgetpgrp};

/// The most bytes of a stream that its other end may send before they are written here.
pub(super) const WINDOW: usize = 256 << 10;
/// Bytes that are read at a time.
pub(super) const READ: usize = 32 << 10;

/// The directions in which an end moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the descriptor here to the other end.
    Reads,
    /// From the other end to the descriptor here.
    Writes,
    Both,
}

pub(crate) struct StreamEnd {
    fd: OwnedFd,
    is_terminal: bool,
    direction: Direction,
    /// The bytes that may be sent to the other end.
    credit: usize,
    /// Bytes that came and are not written yet.
    incoming: VecDeque<u8>,
    /// Bytes that were written, of which the other end has not heard.
    written: usize,
    has_read_all: bool,
    /// The other end sends no more.
    is_last: bool,
    has_written_all: bool,
}

/// The news of a stream for its other end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    Bytes(Vec<u8>),
    Credit(usize),
    End,
    Stop,
}

impl StreamEnd {
    pub(crate) fn new(fd: impl Into<OwnedFd>, direction: Direction) -> io::Result<Self> {
        let fd = fd.into();
        if direction != Direction::Reads {
            // The reading end of an input is shared with other programs; what is written to is not.
            fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self {
            is_terminal: direction == Direction::Reads && fd.is_terminal(),
            fd,
            direction,
            credit: WINDOW,
            incoming: VecDeque::new(),
            written: 0,
            has_read_all: direction == Direction::Writes,
            is_last: false,
            has_written_all: direction == Direction::Reads,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn wants_read(&self) -> bool {
        !self.has_read_all && self.credit > 0 && !self.is_in_background()
    }

    /// True where a read would stop this process: it is a background job of the terminal.
    fn is_in_background(&self) -> bool {
        self.is_terminal && tcgetpgrp(&self.fd).is_ok_and(|foreground| foreground != getpgrp())
    }

    /// True if the other end has not taken what was sent.
    pub(super) fn waits_for_credit(&self) -> bool {
        !self.has_read_all && self.credit == 0
    }

    pub(super) fn wants_write(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// True once no byte will pass any more.
    pub(super) fn is_done(&self) -> bool {
        self.has_read_all && self.has_written_all
    }

    /// Reads once, from a descriptor that can be read.
    pub(super) fn read(&mut self) -> Option<StreamEvent> {
        let mut bytes = vec![0; READ.min(self.credit)];
        match nix::unistd::read(&self.fd, &mut bytes) {
            Err(Errno::EAGAIN | Errno::EINTR) => None,
            Ok(0) | Err(_) => {
                self.has_read_all = true;
                Some(StreamEvent::End)
            }
            Ok(length) => {
                bytes.truncate(length);
                self.credit -= length;
                Some(StreamEvent::Bytes(bytes))
            }
        }
    }

    /// Writes what the descriptor accepts.
    pub(super) fn write(&mut self) -> Option<StreamEvent> {
        while !self.incoming.is_empty() {
            match nix::unistd::write(&self.fd, self.incoming.as_slices().0) {
                Ok(length) => {
                    self.incoming.drain(..length);
                    self.written += length;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    self.incoming.clear();
                    self.has_written_all = true;
                    return Some(StreamEvent::Stop);
                }
            }
        }
        if self.incoming.is_empty() && self.is_last && !self.has_written_all {
            self.has_written_all = true;
            if self.direction == Direction::Both {
                let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
            }
        }
        let tells = self.written >= WINDOW / 4 || self.written > 0 && self.incoming.is_empty();
        tells.then(|| StreamEvent::Credit(std::mem::take(&mut self.written)))
    }

    /// Takes news of the other end; the answer, if there is one. Fails if the other end sends more
    /// than it may.
    pub(super) fn take(&mut self, news: StreamEvent) -> Result<Option<StreamEvent>, &'static str> {
        Ok(match news {
            // The descriptor here takes no more bytes.
            StreamEvent::Bytes(_) if self.has_written_all => None,
            StreamEvent::Bytes(bytes)
                if self.incoming.len() + self.written + bytes.len() > WINDOW =>
            {
                return Err("it sent more bytes of a stream than it may");
            }
            StreamEvent::Bytes(bytes) => {
                self.incoming.extend(bytes);
                self.write()
            }
            StreamEvent::Credit(bytes) => {
                self.credit = self.credit.saturating_add(bytes).min(WINDOW);
                None
            }
            StreamEvent::End => {
                self.is_last = true;
                self.write()
            }
            StreamEvent::Stop => {
                self.has_read_all = true;
                None
            }
        })
    }
}
