//! The process of a peer on this host: whether it is ending, and whether it has ended. The system
//! closes what an ending process had open one thing after the other, and the sockets need not be
//! the last of it. Unsafe: a system call.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{LivenessStream, is_hung_up};

/// A process at the other end of a stream, which stays open as long as this.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    stream: LivenessStream,
    /// Refers to the process; none where the system has no such descriptors.
    process: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process at the other end, which has not ended.
    pub(crate) fn new(stream: LivenessStream) -> Self {
        let process = getsockopt(&stream, PeerCredentials).ok().and_then(|peer| open(peer.pid()));
        Self { stream, process }
    }

    /// True from when the process begins to close its sockets.
    pub(crate) fn is_ending(&self) -> bool {
        is_hung_up(&self.stream)
    }

    /// True once the process has closed all that it had open; false for ever where that can't be
    /// known.
    pub(crate) fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        })
    }
}

/// A descriptor of a process, which can be read once all its threads have ended: pidfd_open(2), of
/// Linux 5.3.
fn open(process: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: a system call on two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0 as libc::c_uint) };
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0);
    if fd.is_none() {
        let error = std::io::Error::last_os_error();
        tracing::info!(
            "no descriptor of process {process}: {error}; if this process is lost, device memory \
             that it has open is not freed"
        );
    }
    // SAFETY: a new descriptor, which this alone owns.
    fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
