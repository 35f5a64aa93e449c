//! Sleep until a descriptor can be read or written: `ppoll(2)`. Unsafe: the system call.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use nix::libc;

use crate::sync::MAX_SLEEP;

/// The most descriptors of one sleep. The caller looks at the others when it wakes.
const MAX_FDS: usize = 64;

/// Sleeps until one of `readable` can be read, one of `writable` can be written, `limit` has
/// passed, or a signal arrives; may return early. A closed or failed descriptor counts as readable
/// and writable.
pub(super) fn sleep(
    limit: Duration,
    readable: impl IntoIterator<Item = RawFd>,
    writable: &[RawFd],
) {
    let entry = |events| move |fd| libc::pollfd { fd, events, revents: 0 };
    let wanted = readable.into_iter().map(entry(libc::POLLIN));
    let wanted = wanted.chain(writable.iter().copied().map(entry(libc::POLLOUT)));
    let mut fds = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MAX_FDS];
    let mut count = 0;
    for (place, fd) in fds.iter_mut().zip(wanted) {
        *place = fd;
        count += 1;
    }
    let limit = limit.min(MAX_SLEEP);
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    };
    // The result does not matter: the caller looks at its links again, and finds errors there.
    // SAFETY: the pointers are to `count` initialised entries and to a timespec, both of which
    // outlive the call; any number may stand for a descriptor.
    unsafe { libc::ppoll(fds.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
}
