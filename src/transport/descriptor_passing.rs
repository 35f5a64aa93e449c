//! A descriptor handed from process to process over a Unix socket. May touch: nix, poll.
//! Law: a number becomes an owned descriptor only when the kernel has just made it for us.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::poll;

/// The most descriptors that the kernel lets into one message; room for all of them means that
/// none can be cut off and lost.
const MOST_FDS: usize = 253;

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
/// is gone, [`io::ErrorKind::InvalidData`] if it sent none or several, which are closed; what the
/// system says if this process may not have one more.
pub fn recv_fd(stream: &UnixStream, until: Instant) -> io::Result<OwnedFd> {
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
            // SAFETY: the kernel has just made these descriptors for this call alone, so nobody
            // else owns them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        if message.bytes == 0 && fds.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // There was room for as many as there can be: this process may not have one more.
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
