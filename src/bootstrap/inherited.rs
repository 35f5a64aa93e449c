//! Descriptors inherited from the launcher. May touch: nix.
//! Law: a number becomes an owned descriptor here only, after the kernel said what it is.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt,
};

/// An own copy of the connected Unix stream socket that this process inherited as `fd`. The
/// original stays open for a later meeting, but no child inherits it.
pub(super) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    of_launcher(fd, |original| {
        let kind = getsockopt(&original, sockopt::SockType)?;
        let family = getsockname::<SockaddrStorage>(fd)?.family();
        if kind != SockType::Stream || family != Some(AddressFamily::Unix) {
            return Err(io::Error::other("it is no Unix stream socket"));
        }
        Ok(())
    })
}

/// The same of the sealed memory that this process inherited as `fd`.
pub(crate) fn inherited_file(fd: RawFd) -> io::Result<OwnedFd> {
    of_launcher(fd, |original| {
        // Nothing but such memory has seals.
        fcntl(original, FcntlArg::F_GET_SEALS)?;
        Ok(())
    })
}

/// An own copy of a descriptor that is what it should be. No child inherits the original.
fn of_launcher(
    fd: RawFd,
    check: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the number is not -1. Until the kernel has said that it is what the launcher gives
    // it is only asked about; from then on it is the launcher's, which gave it to this process for
    // this use, and nothing else in it closes a descriptor that it does not own.
    let original = unsafe { BorrowedFd::borrow_raw(fd) };
    check(original)?;
    fcntl(original, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    original.try_clone_to_owned()
}
