//! Descriptors that a rank inherits from its launcher.
//! Law: a number becomes an owned descriptor here only, after the kernel has confirmed its type.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use crate::sync::{adopt_socket, is_forked_child, open_sockets};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getpeername, getsockname, getsockopt,
    sockopt,
};

/// Why a forked child can't use a launcher's socket that its parent has used.
const STAYS_WITH_PARENT: &str = "this process is a fork of a rank's process, with which the \
    launcher's socket stays; make no communicator in it, or start it by another way than fork, \
    with RINGREDUCE_LAUNCHER=none";

/// Duplicates the connected Unix stream socket that this process inherited as `fd`. The original
/// stays open for a later rendezvous, but no child inherits either.
pub(crate) fn inherited_socket(fd: RawFd) -> io::Result<OwnedFd> {
    let copy = || {
        checked_copy(fd, |original| {
            let kind = getsockopt(&original, sockopt::SockType)?;
            let family = getsockname::<SockaddrStorage>(fd)?.family();
            if kind != SockType::Stream || family != Some(AddressFamily::Unix) {
                return Err(io::Error::other("it is no Unix stream socket"));
            }
            // A forked child has let go of its parent's socket.
            if is_forked_child() && getpeername::<SockaddrStorage>(fd) == Err(Errno::ENOTCONN) {
                return Err(io::Error::new(io::ErrorKind::NotConnected, STAYS_WITH_PARENT));
            }
            adopt_socket(&original);
            Ok(())
        })
    };
    open_sockets(copy)
}

/// Duplicates the sealed memory that this process inherited as `fd`.
pub(crate) fn inherited_file(fd: RawFd) -> io::Result<OwnedFd> {
    checked_copy(fd, |original| {
        // Only sealable memory files have seals.
        fcntl(original, FcntlArg::F_GET_SEALS)?;
        Ok(())
    })
}

/// Duplicates a descriptor that passes `check`. No child inherits the original.
fn checked_copy(
    fd: RawFd,
    check: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the number is not negative. Before `check` has passed, the kernel is only asked about
    // it. After that it is the launcher's descriptor, given to this process for this use, and no
    // other code of the process closes descriptors that it does not own.
    let original = unsafe { BorrowedFd::borrow_raw(fd) };
    check(original)?;
    fcntl(original, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    original.try_clone_to_owned()
}
