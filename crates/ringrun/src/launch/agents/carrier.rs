//! The carrier of the bytes between a launcher and an agent: the standard streams of the remote
//! shell, or an encrypted connection of its own, which can be made anew.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ringreduce::bootstrap::SealedStream;

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

pub(super) enum Carrier {
    Shell { input: OwnedFd, output: OwnedFd },
    Own(SealedStream),
}

impl Carrier {
    /// The standard streams, from which nothing waits any more.
    pub(super) fn of_shell(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        for fd in [&input, &output] {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self::Shell { input, output })
    }

    /// The descriptors to read and to write.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        match self {
            Self::Shell { input, output } => [input.as_fd(), output.as_fd()],
            Self::Own(stream) => [stream.fd(), stream.fd()],
        }
    }

    /// True if bytes that were written have not left yet.
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Shell { .. } => false,
            Self::Own(stream) => stream.has_unsent(),
        }
    }

    /// Appends what has come, or a part of it; false at the end.
    pub(super) fn read(&mut self, to: &mut Vec<u8>) -> io::Result<bool> {
        let input = match self {
            Self::Own(stream) => return stream.read(to),
            Self::Shell { input, .. } => input,
        };
        let mut bytes = vec![0; READ];
        match nix::unistd::read(&*input, &mut bytes) {
            Ok(0) => Ok(false),
            Ok(length) => {
                to.extend_from_slice(&bytes[..length]);
                Ok(true)
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(true),
            Err(cause) => Err(cause.into()),
        }
    }

    /// Writes some of the bytes, and gives their number: 0 while none are taken.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let output = match self {
            Self::Own(stream) => return stream.write(bytes),
            Self::Shell { output, .. } => output,
        };
        match nix::unistd::write(&*output, bytes) {
            Ok(length) => Ok(length),
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(0),
            Err(cause) => Err(cause.into()),
        }
    }
}
