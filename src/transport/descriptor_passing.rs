//! Passing of a file descriptor from process to process over a Unix socket (`SCM_RIGHTS`, unix(7)).
//! Law: a number becomes an owned descriptor only after the kernel has made it for this process.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::poll;
use crate::error::{Error, Limit, Result};
use crate::sync::Instant;

/// The most descriptors that the kernel puts into one message. With room for all of them, no
/// descriptor can be cut off and lost.
const MOST_FDS: usize = 253;

/// Passes `fd` to the rank that errors call `peer`.
///
/// # Errors
/// If the peer does not take it.
pub(crate) fn pass(stream: &impl AsRawFd, fd: OwnedFd, peer: &str) -> Result<()> {
    send_fd(stream, fd).map_err(|error| refusal(peer, "it did not accept a descriptor", &error))
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
        None => refusal(peer, &format!("no {what} came"), &error),
    })
}

/// The error of a rank that could not pass a descriptor to `peer`, or receive one from it.
fn refusal(peer: &str, what: &str, error: &io::Error) -> Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let reason = match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => {
            format!(
                "{what}: it closed the connection while the ranks connected; its own error says why"
            )
        }
        _ => format!("{what}: {error}"),
    };
    Error::Handshake { peer: peer.into(), reason }
}

/// Sends `fd` to the peer at the other end of `stream`.
///
/// # Errors
/// If the peer is gone.
pub fn send_fd(stream: &impl AsRawFd, fd: OwnedFd) -> io::Result<()> {
    loop {
        match send_with_fd(stream, &[0], &fd) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done.map(drop),
        }
    }
}

/// Sends `fd` with the first of these bytes; how many bytes were sent.
///
/// # Errors
/// The system's, among them that it has no room now.
pub(crate) fn send_with_fd(stream: &impl AsRawFd, bytes: &[u8], fd: &OwnedFd) -> io::Result<usize> {
    let fds = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    let bytes = [IoSlice::new(bytes)];
    let sent = sendmsg::<()>(stream.as_raw_fd(), &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None);
    sent.map_err(Into::into)
}

/// Reads what has come, without waiting; how many bytes, 0 at the end of the stream. `keep` takes
/// the descriptors that came with them, or the error that this process may have no more.
///
/// # Errors
/// The system's, among them that nothing has come.
pub(crate) fn read_with_fds(
    stream: &impl AsRawFd,
    bytes: &mut [u8],
    mut keep: impl FnMut(io::Result<OwnedFd>),
) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([RawFd; MOST_FDS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let mut buf = [IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut buf, Some(&mut control), flags)?;
    // The buffer has room for any message, so a cut one means the limit of this process.
    let is_cut = message.flags.contains(MsgFlags::MSG_CTRUNC);
    for part in message.cmsgs().into_iter().flatten() {
        let ControlMessageOwned::ScmRights(raw) = part else { continue };
        for fd in raw {
            // SAFETY: the kernel has just made the descriptor for this call, so no other code owns
            // it.
            keep(Ok(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if is_cut {
        keep(Err(Errno::EMFILE.into()));
    }
    Ok(message.bytes)
}

/// Receives the one descriptor that the peer at the other end of `stream` sends; it is
/// close-on-exec.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at `until`; [`io::ErrorKind::UnexpectedEof`] if the peer is gone, or
/// sent anything else, as a rank does that gives up; [`io::ErrorKind::InvalidData`] if it sent
/// several, which are closed; the system's error if this process has reached its limit of
/// descriptors.
pub fn recv_fd(stream: &impl AsRawFd, until: Instant) -> io::Result<OwnedFd> {
    let (mut byte, mut fds, mut cut) = ([0], Vec::new(), Ok(()));
    loop {
        let keep = |fd| match fd {
            Ok(fd) => fds.push(fd),
            Err(error) => cut = Err(error),
        };
        match read_with_fds(stream, &mut byte, keep) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                poll::sleep(left, Some(stream.as_raw_fd()), &[]);
            }
            Err(error) => return Err(error),
        }
    }
    cut?;
    match (fds.pop(), fds.len()) {
        (Some(fd), 0) => Ok(fd),
        // A rank that fails while it connects closes the stream, or says goodbye on it first.
        (None, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (Some(_), more) => {
            let text = format!("expected one descriptor, got {}", more + 1);
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_that_gives_up_while_it_connects_is_said_to_have_closed_the_connection() {
        let is_named = |error: Error| {
            let text = error.to_string();
            let starts = text.starts_with("handshake with rank 1: ");
            assert!(starts && text.contains("closed the connection while"), "{text}");
        };
        let (here, mut there) = UnixStream::pair().unwrap();
        let receive = || receive(&here, "status entry", "rank 1", Instant::now()).unwrap_err();
        assert!(receive().to_string().ends_with("no status entry came: timed out"));
        there.write_all(b"goodbye").unwrap();
        drop(there);
        is_named(receive());
        let (here, _) = UnixStream::pair().unwrap();
        is_named(pass(&here, here.try_clone().unwrap().into(), "rank 1").unwrap_err());
    }
}
