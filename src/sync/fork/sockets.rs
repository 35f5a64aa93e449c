//! Sockets that forked children let go of. A child inherits each open socket, and with a copy in a
//! living child, peers on other hosts would not see that a rank was killed.
//!
//! Algorithm: sockets are registered by descriptor, with the inode number, which no other open
//! socket has. A child puts an unconnected socket in the place of each descriptor that is still the
//! registered socket. So closing a socket needs no registry, the child touches no descriptor of the
//! program's own, and numbers stay taken, so that it closes nothing else when it drops its copies.
//!
//! Law: after a fork only atomics and system calls; no wait for or in a fork exceeds 100 ms.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc;

/// Descriptors in one table of inode numbers.
const TABLE_LEN: usize = 4096;
/// The most tables: descriptors from 4,194,304 on are not registered. The system's own limit
/// (`fs.nr_open`) is 1,048,576 where nobody has raised it.
const MAX_TABLES: usize = 1024;

/// The inode numbers of the sockets of descriptors; 0 for none.
type Table = [AtomicU64; TABLE_LEN];

/// The tables, made on first use and never freed.
static TABLES: [AtomicPtr<Table>; MAX_TABLES] = [const { AtomicPtr::new(null_mut()) }; MAX_TABLES];
/// Threads that open a socket and have not registered it yet.
static OPENING: AtomicU32 = AtomicU32::new(0);
/// Threads that fork now.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The longest wait of a fork for threads that open sockets, and of those for a fork. Each takes
/// microseconds; the limit is for a program that forks in a signal handler.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Opens sockets by `open`, and has forked children let go of them.
pub(crate) fn open_sockets<T: Sockets, E>(open: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    super::count_forks();
    let _opening = Opening::begin();
    let opened = open()?;
    opened.each(&mut |fd| register(fd));
    Ok(opened)
}

/// Has forked children let go of a socket that was open before.
pub(crate) fn adopt_socket(socket: &impl AsRawFd) {
    super::count_forks();
    register(socket.as_raw_fd());
}

/// A socket, or two of a pair.
pub(crate) trait Sockets {
    /// Calls `visit` with each descriptor.
    fn each(&self, visit: &mut dyn FnMut(RawFd));
}

impl<S: AsRawFd> Sockets for S {
    fn each(&self, visit: &mut dyn FnMut(RawFd)) {
        visit(self.as_raw_fd());
    }
}

/// Two sockets that are connected with each other.
pub(crate) struct SocketPair<S>(pub(crate) S, pub(crate) S);

impl<S: AsRawFd> Sockets for SocketPair<S> {
    fn each(&self, visit: &mut dyn FnMut(RawFd)) {
        [&self.0, &self.1].into_iter().for_each(|socket| visit(socket.as_raw_fd()));
    }
}

/// A thread that opens a socket, which no fork interrupts before it is registered.
struct Opening;

impl Opening {
    fn begin() -> Self {
        let until = Instant::now() + MAX_WAIT;
        loop {
            OPENING.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) == 0 || Instant::now() > until {
                return Self;
            }
            OPENING.fetch_sub(1, Ordering::SeqCst);
            std::thread::yield_now();
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The entry of a descriptor, if its table exists.
fn entry(fd: RawFd, make: bool) -> Option<&'static AtomicU64> {
    let at = usize::try_from(fd).ok()?;
    let place = TABLES.get(at / TABLE_LEN)?;
    let mut table = place.load(Ordering::Acquire);
    if table.is_null() {
        if !make {
            return None;
        }
        let new = Box::into_raw(Box::new([const { AtomicU64::new(0) }; TABLE_LEN]));
        match place.compare_exchange(table, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => table = new,
            Err(other) => {
                // SAFETY: the box was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                table = other;
            }
        }
    }
    // SAFETY: a table that a place points to is initialised and never freed.
    let table = unsafe { &*table };
    table.get(at % TABLE_LEN)
}

fn register(fd: RawFd) {
    if let (Some(inode), Some(entry)) = (inode_of(fd), entry(fd, true)) {
        entry.store(inode, Ordering::Release);
    }
}

/// The inode number of an open socket.
fn inode_of(fd: RawFd) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes to a buffer of the right size; any number may stand for a
    // descriptor.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so the kernel has filled the buffer.
    let stat = unsafe { stat.assume_init() };
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Before a fork: waits until no thread has a socket that is not registered yet.
pub(super) extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    let until = Instant::now() + MAX_WAIT;
    while OPENING.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// After a fork, in the parent.
pub(super) extern "C" fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// After a fork, in the child, which has this thread alone.
pub(super) fn release_in_child() {
    FORKING.store(0, Ordering::Relaxed);
    OPENING.store(0, Ordering::Relaxed);
    let mut unconnected = -1;
    for (number, place) in TABLES.iter().enumerate() {
        let table = place.load(Ordering::Acquire);
        if table.is_null() {
            continue;
        }
        // SAFETY: a table that a place points to is initialised and never freed.
        let table = unsafe { &*table };
        for (at, entry) in table.iter().enumerate() {
            let fd = (number * TABLE_LEN + at) as RawFd;
            let inode = entry.load(Ordering::Relaxed);
            if inode == 0 {
                continue;
            }
            if inode_of(fd) == Some(inode) {
                replace(fd, &mut unconnected);
            }
            entry.store(0, Ordering::Relaxed);
        }
    }
    if unconnected >= 0 {
        close(unconnected);
    }
}

/// Puts an unconnected socket in the place of `fd`; `unconnected` is one that was made before, or
/// negative.
fn replace(fd: RawFd, unconnected: &mut RawFd) {
    if *unconnected < 0 {
        *unconnected = unconnected_socket();
    }
    if *unconnected < 0 {
        // At the limit of descriptors the new socket takes the number of the one it replaces.
        close(fd);
        let made = unconnected_socket();
        if made == fd {
            return;
        }
        *unconnected = made;
    }
    if *unconnected >= 0 {
        // SAFETY: the call takes numbers alone, and `fd` is a socket of the library's, which this
        // process does not use.
        unsafe { libc::dup3(*unconnected, fd, libc::O_CLOEXEC) };
    }
}

/// The number of a new socket; negative if there is none.
fn unconnected_socket() -> RawFd {
    // SAFETY: the call takes numbers alone.
    unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }
}

fn close(fd: RawFd) {
    // SAFETY: the descriptor is the library's, and nothing of this process uses it.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests;
