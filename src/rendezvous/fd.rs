//! Descriptors that come from elsewhere: inherited from the launcher, or handed over by a peer.
//! May touch: nix, socket2.
//! Law: a number becomes an owned descriptor here only, after the kernel said what it is.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockType, SockaddrLike,
    SockaddrStorage, getsockname, getsockopt, recvmsg, sendmsg, sockopt,
};

use super::socket::wait_one;

/// The most descriptors that the kernel lets into one message; room for all of them means that
/// none can be cut off and lost.
const MOST_FDS: usize = 253;

/// An own copy of the connected Unix stream socket that this process inherited as `fd`. The
/// original stays open for a later meeting, but no child inherits it.
pub(super) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the number is not -1. Until the kernel has said that it is an open socket it is only
    // asked about; from then on it is the launcher's, which gave it to this process for this use,
    // and nothing else in it closes a descriptor that it does not own.
    let original = unsafe { BorrowedFd::borrow_raw(fd) };
    let kind = getsockopt(&original, sockopt::SockType)?;
    let family = getsockname::<SockaddrStorage>(fd)?.family();
    if kind != SockType::Stream || family != Some(AddressFamily::Unix) {
        return Err(io::Error::other("it is no Unix stream socket"));
    }
    fcntl(original, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    original.try_clone_to_owned()
}

/// Hands `fd` to the peer at the other end of `stream`.
///
/// # Errors
/// If the peer is gone.
pub fn send_fd(stream: &UnixStream, fd: OwnedFd) -> io::Result<()> {
    let fds = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    let byte = [IoSlice::new(&[0])];
    loop {
        match sendmsg::<()>(stream.as_raw_fd(), &byte, &rights, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Takes the one descriptor that the peer at the other end of `stream` hands over; it is
/// close-on-exec.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] when `until` has come, [`io::ErrorKind::UnexpectedEof`] if the peer
/// is gone, [`io::ErrorKind::InvalidData`] if it sent none or several, which are closed.
pub fn recv_fd(stream: &UnixStream, until: Instant) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut control = nix::cmsg_space!([RawFd; MOST_FDS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let mut fds = Vec::new();
    loop {
        wait_one(stream.as_fd(), PollFlags::POLLIN, until)?;
        let mut buf = [IoSliceMut::new(&mut byte)];
        let message = match recvmsg::<()>(stream.as_raw_fd(), &mut buf, Some(&mut control), flags) {
            Ok(message) => message,
            Err(Errno::EINTR | Errno::EAGAIN) => continue,
            Err(errno) => return Err(errno.into()),
        };
        for part in message.cmsgs()? {
            let ControlMessageOwned::ScmRights(raw) = part else { continue };
            // SAFETY: the kernel has just made these descriptors for this call alone, so nobody
            // else owns them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        if message.bytes == 0 && fds.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        break;
    }
    match (fds.pop(), fds.is_empty()) {
        (Some(fd), true) => Ok(fd),
        (fd, _) => {
            let count = fds.len() + usize::from(fd.is_some());
            let text = format!("expected one descriptor, got {count}");
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}
