//! Sleeping until a descriptor has something to say. May touch: libc. Unsafe: the system call.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

/// A set of descriptors to sleep on. It keeps its memory, so that waiting allocates only once.
#[derive(Default)]
pub(super) struct Poll {
    fds: Vec<libc::pollfd>,
}

impl Poll {
    /// Sleeps until `readable` can be read or one of `writable` written (an end or an error counts
    /// as both), or `limit` has passed, or a signal came. With nothing to wait for, just sleeps.
    pub(super) fn sleep(
        &mut self,
        limit: Duration,
        readable: Option<RawFd>,
        writable: impl Iterator<Item = RawFd>,
    ) {
        let entry = |events| move |fd| libc::pollfd { fd, events, revents: 0 };
        self.fds.clear();
        self.fds.extend(readable.map(entry(libc::POLLIN)));
        self.fds.extend(writable.map(entry(libc::POLLOUT)));
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
        };
        let count = self.fds.len() as libc::nfds_t;
        // What woke us is not asked: the caller looks at its links again, and meets errors there.
        // SAFETY: the pointers are to `count` initialised entries and to a timespec, both of which
        // outlive the call; any number may stand for a descriptor.
        unsafe { libc::ppoll(self.fds.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
    }
}
