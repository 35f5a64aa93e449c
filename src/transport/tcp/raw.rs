//! Send, receive, checksum and encryption of memory that is known by its address only, such as a
//! user's buffer. Unsafe: the system calls, and slices made of views.
#![allow(unsafe_code)]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::libc;

use crate::memory::{Dst, Src};

/// Sends as much of `header` and then of `payload` as the system takes now; the number of bytes.
pub(super) fn send(stream: &TcpStream, header: &[u8], payload: Src<'_>) -> io::Result<usize> {
    let part =
        |base: *const u8, len| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
    let mut parts = [part(header.as_ptr(), header.len()), part(payload.ptr(), payload.len())];
    // SAFETY: a message header has integers and pointers only, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the system reads the two parts: one is borrowed, and the view guarantees the other.
    to_result(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// Receives what has arrived into `out`, from byte `filled` on; the number of bytes.
pub(super) fn receive(stream: &TcpStream, out: &mut Dst<'_>, filled: usize) -> io::Result<usize> {
    assert!(filled <= out.len());
    let (start, len) = (out.ptr().wrapping_add(filled), out.len() - filled);
    // SAFETY: the system writes up to `len` bytes, which the view guarantees.
    to_result(unsafe { libc::recv(stream.as_raw_fd(), start.cast(), len, 0) })
}

/// Bytes that were sent and that the peer's system has not acknowledged; 0 if the system does not
/// say, as after the end of a connection.
pub(crate) fn unacknowledged(stream: &impl AsRawFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the system writes one integer, which is borrowed.
    let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Resets a connection at once, as the system does when somebody destroys its socket: what has not
/// left is lost, and so is what has come and was not read.
pub(crate) fn reset(stream: &impl AsRawFd) {
    let nowhere =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let len = size_of_val(&nowhere) as libc::socklen_t;
    // A connection that has ended needs no reset, so the answer does not matter.
    // SAFETY: the system reads an address, which is borrowed.
    let _ = unsafe { libc::connect(stream.as_raw_fd(), &raw const nowhere, len) };
}

/// Memory as one to read and one to write, for a reduction that overwrites what it reads.
pub(super) fn both_views(bytes: &mut [u8]) -> (Src<'_>, Dst<'_>) {
    let mut write = Dst::from(bytes);
    // SAFETY: the bytes are borrowed for as long as both views, and written through `write` alone,
    // which coincides with `read`.
    let read = unsafe { Src::new(write.ptr(), write.len()) };
    (read, write)
}

/// CRC-32C of `bytes` (RFC 3720, 12.1), by the CPU's own instructions where the CPU has them.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The bytes of a view of memory, which no other code may write meanwhile.
pub(super) fn slice<'a>(view: &Src<'a>) -> &'a [u8] {
    if view.is_empty() {
        return &[];
    }
    // SAFETY: the view guarantees its bytes.
    unsafe { std::slice::from_raw_parts(view.ptr(), view.len()) }
}

/// The bytes of a view of memory, which no other code may touch meanwhile.
pub(super) fn slice_mut<'a>(view: &'a mut Dst<'_>) -> &'a mut [u8] {
    let (start, len) = (view.ptr(), view.len());
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the view guarantees its bytes.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

fn to_result(bytes: isize) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}
