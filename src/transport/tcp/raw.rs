//! Sending from and receiving into memory that is known by address only, a user's buffer: by the
//! system, and for its checksum and seal. May touch: libc, memory. Unsafe: the system calls, and
//! views taken as slices.
#![allow(unsafe_code)]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::libc;

use crate::memory::{Dst, Src};

/// Sends what fits now of `header` and then of `payload`; how many bytes that was.
pub(super) fn send(stream: &TcpStream, header: &[u8], payload: Src<'_>) -> io::Result<usize> {
    let part =
        |base: *const u8, len| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
    let mut parts = [part(header.as_ptr(), header.len()), part(payload.ptr(), payload.len())];
    // SAFETY: a message header is integers and pointers, for all of which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the system reads the two parts, of which the one is borrowed and the view of the
    // other vouches for its bytes.
    answer(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// Receives what is there now, up to the end of `out`, of which `have` bytes are here already; how
/// many bytes that was.
pub(super) fn receive(stream: &TcpStream, out: &mut Dst<'_>, have: usize) -> io::Result<usize> {
    assert!(have <= out.len());
    let (start, len) = (out.ptr().wrapping_add(have), out.len() - have);
    // SAFETY: the system writes up to `len` bytes, for which the view vouches.
    answer(unsafe { libc::recv(stream.as_raw_fd(), start.cast(), len, 0) })
}

/// CRC-32C of these bytes (RFC 3720, 12.1), by the CPU's own instructions where it has them.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// What a view of memory shows that nobody writes meanwhile.
pub(super) fn bytes<'a>(view: &Src<'a>) -> &'a [u8] {
    if view.is_empty() {
        return &[];
    }
    // SAFETY: the view vouches for so many bytes.
    unsafe { std::slice::from_raw_parts(view.ptr(), view.len()) }
}

/// What a view of memory shows that nobody else touches meanwhile.
pub(super) fn room<'a>(view: &'a mut Dst<'_>) -> &'a mut [u8] {
    let (start, len) = (view.ptr(), view.len());
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the view vouches for so many bytes.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

fn answer(bytes: isize) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}
