//! Sending from and receiving into memory that is known by address only: a user's buffer; and its
//! checksum. May touch: libc, memory. Unsafe: the system calls.
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
pub(super) fn checksum(bytes: Src<'_>) -> u32 {
    checksum_at(bytes.ptr(), bytes.len())
}

/// That of what has come to `out`, all of it.
pub(super) fn landed(out: &mut Dst<'_>) -> u32 {
    let len = out.len();
    checksum_at(out.ptr(), len)
}

fn checksum_at(start: *const u8, len: usize) -> u32 {
    if len == 0 {
        return 0;
    }
    // SAFETY: the view that the callers have vouches for so many bytes, which nobody writes
    // meanwhile.
    crc_fast::crc32_iscsi(unsafe { std::slice::from_raw_parts(start, len) })
}

fn answer(bytes: isize) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}
