//! Sleep until a descriptor can be read or written: `ppoll(2)`. Unsafe: the system call.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use crate::sync::MAX_SLEEP;

/// The most descriptors of a sleep that allocates nothing.
const INLINE_FDS: usize = 64;

/// Sleeps until one of `readable` can be read, one of `writable` can be written, `limit` has
/// passed, or a signal arrives; may return early. True if a descriptor is ready. A closed or failed
/// descriptor counts as readable and writable.
pub(super) fn sleep(
    limit: Duration,
    readable: impl IntoIterator<Item = RawFd>,
    writable: &[RawFd],
) -> bool {
    let entry = |events| move |fd| libc::pollfd { fd, events, revents: 0 };
    let wanted = readable.into_iter().map(entry(libc::POLLIN));
    let mut wanted = wanted.chain(writable.iter().copied().map(entry(libc::POLLOUT)));
    let mut few = [libc::pollfd { fd: -1, events: 0, revents: 0 }; INLINE_FDS];
    let mut count = 0;
    for (place, fd) in few.iter_mut().zip(wanted.by_ref()) {
        *place = fd;
        count += 1;
    }
    let Some(next) = wanted.next() else { return ppoll(&mut few[..count], limit) };
    let mut many: Vec<_> = few.into_iter().chain([next]).chain(wanted).collect();
    ppoll(&mut many, limit)
}

/// Sleeps until `own` or one of `others` can be read, as [`sleep`]; the indices of the others that
/// are ready.
pub(super) fn sleep_for_any(limit: Duration, own: RawFd, others: &[RawFd]) -> Vec<usize> {
    let entry = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut wanted: Vec<_> = [own].iter().chain(others).map(entry).collect();
    ppoll(&mut wanted, limit);
    (0..others.len()).filter(|at| wanted[at + 1].revents != 0).collect()
}

/// Sleeps until one of these entries is ready; false if `limit` has passed or a signal has come.
fn ppoll(fds: &mut [libc::pollfd], limit: Duration) -> bool {
    let limit = limit.min(MAX_SLEEP);
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    };
    // The caller looks at its links again, and finds errors there.
    // SAFETY: the pointers are to as many initialised entries as are named and to a timespec, both
    // of which outlive the call; any number may stand for a descriptor.
    let poll = |fds: &mut [libc::pollfd]| unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const limit, std::ptr::null())
    };
    let ready = poll(fds);
    if ready == -1 && Errno::last() == Errno::EINVAL {
        // The system polls at most as many entries as a process may have descriptors.
        let most = INLINE_FDS.min(fds.len());
        return poll(&mut fds[..most]) > 0;
    }
    ready > 0
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Write, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    /// A server may have more connections than a sleep has room for in its frame.
    #[test]
    fn any_one_of_many_descriptors_ends_the_sleep() {
        let mut pipes: Vec<(PipeReader, PipeWriter)> = (0..200).map(|_| pipe().unwrap()).collect();
        let fds: Vec<RawFd> = pipes.iter().map(|(reader, _)| reader.as_raw_fd()).collect();
        for at in [0, 63, 64, 199] {
            pipes[at].1.write_all(&[1]).unwrap();
            assert!(sleep(Duration::from_secs(60), fds[at..].iter().copied(), &[]));
            assert!(sleep(Duration::from_secs(60), fds[..=at].iter().copied(), &[]));
        }
        let writer = [pipes[0].1.as_raw_fd()];
        let unready = fds[1..63].iter().chain(&fds[65..199]).copied();
        assert!(sleep(Duration::from_secs(60), unready.clone(), &writer));
        assert!(!sleep(Duration::from_millis(1), unready, &[]));
    }
}
