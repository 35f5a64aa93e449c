//! Passing of a file descriptor from process to process over a Unix socket (`SCM_RIGHTS`, unix(7)).
//! Law: a number becomes an owned descriptor only after the kernel has made it for this process.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::poll;
use crate::error::{Error, Limit, Result};

/// The most descriptors that the kernel puts into one message. With room for all of them, no
/// descriptor can be cut off and lost.
const MOST_FDS: usize = 253;

/// Passes `fd` to the rank that errors call `peer`.
///
/// # Errors
/// If the peer does not take it.
pub(crate) fn pass(stream: &impl AsRawFd, fd: OwnedFd, peer: &str) -> Result<()> {
    let refused = |error| Error::Handshake {
        peer: peer.into(),
        reason: format!("it did not accept a descriptor: {error}"),
    };
    send_fd(stream, fd).map_err(refused)
}

/// Receives a descriptor of `what` from the rank that errors call `peer`.
///
/// # Errors
/// If none comes before the deadline, or this process has reached its limit of descriptors.
pub(crate) fn receive(
    stream: &impl AsRawFd,
    what: &str,
    peer: &str,
    deadline: Instant,
) -> Result<OwnedFd> {
    recv_fd(stream, deadline).map_err(|error| match Limit::of(&error) {
        Some(_) => Error::io(format!("taking a {what} from {peer}"), error),
        None => {
            let reason = format!("no {what} came: {error}");
            Error::Handshake { peer: peer.into(), reason }
        }
    })
}

/// Sends `fd` to the peer at the other end of `stream`.
///
/// # Errors
/// If the peer is gone.
pub fn send_fd(stream: &impl AsRawFd, fd: OwnedFd) -> io::Result<()> {
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

/// Receives the one descriptor that the peer at the other end of `stream` sends; it is
/// close-on-exec.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at `until`; [`io::ErrorKind::UnexpectedEof`] if the peer is gone;
/// [`io::ErrorKind::InvalidData`] if the peer sent none or several, which are closed; the system's
/// error if this process has reached its limit of descriptors.
pub fn recv_fd(stream: &impl AsRawFd, until: Instant) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut control = nix::cmsg_space!([RawFd; MOST_FDS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let mut fds = Vec::new();
    loop {
        let mut buf = [IoSliceMut::new(&mut byte)];
        let message = match recvmsg::<()>(stream.as_raw_fd(), &mut buf, Some(&mut control), flags) {
            Ok(message) => message,
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                poll::sleep(left, Some(stream.as_raw_fd()), &[]);
                continue;
            }
            Err(errno) => return Err(errno.into()),
        };
        for part in message.cmsgs()? {
            let ControlMessageOwned::ScmRights(raw) = part else { continue };
            // SAFETY: the kernel has just made these descriptors for this call, so no other code
            // owns them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        if message.bytes == 0 && fds.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The buffer has room for any message, so a cut one means the limit of this process.
        if message.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(Errno::EMFILE.into());
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
