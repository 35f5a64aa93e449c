//! The end of a process that has asked the launcher's PMI: it says `finalize`, as an MPI library
//! does. Launchers take the end of a process that has asked and not said so for a failure: those of
//! MPICH and Intel MPI kill the other ranks of the host, which may still have work to do. A process
//! that is killed, or aborts, says nothing.
//! Law: `finalize` is the last request of a process. An MPI library that has said it before leaves
//! a socket that is closed at the other end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, send};

use super::{MEETINGS, MOST};
use crate::bootstrap::socket::wait_unless;
use crate::memory::inherited::inherited_socket;
use crate::sync::{Instant, Process, call_at_exit};

const REQUEST: &[u8] = b"cmd=finalize\n";
/// The longest wait for the launcher's answer. The launcher would take a socket that is closed
/// before it has answered for a failure too.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The launcher's socket, which stays where this process has inherited it.
struct Inherited {
    /// The process that has asked there.
    process: Process,
    fd: RawFd,
    /// The number of the socket in the kernel: a program may have closed `fd` and opened another.
    inode: u64,
}

static SOCKET: Mutex<Option<Inherited>> = Mutex::new(None);

/// Has this process say goodbye at its exit, by the socket that it has inherited as `fd`.
pub(super) fn say_at_exit(fd: RawFd) -> io::Result<()> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let (_, inode) = open(fd)?;
    let inherited = Inherited { process: Process::default(), fd, inode };
    *SOCKET.lock().unwrap_or_else(PoisonError::into_inner) = Some(inherited);
    if *REGISTERED.get_or_init(|| call_at_exit(at_exit)) {
        return Ok(());
    }
    Err(ErrorKind::OutOfMemory.into())
}

/// A copy of the inherited socket, and the number of the socket.
fn open(fd: RawFd) -> io::Result<(UnixStream, u64)> {
    let socket = File::from(inherited_socket(fd)?);
    let inode = socket.metadata()?.ino();
    Ok((UnixStream::from(OwnedFd::from(socket)), inode))
}

extern "C" fn at_exit() {
    // A thread that holds one of the locks meets, or has left an answer behind.
    let Ok(known) = SOCKET.try_lock() else { return };
    let Some(Inherited { process, fd, inode }) = known.as_ref() else { return };
    if !process.is_current() || MEETINGS.get().try_lock().map_or(true, |meetings| meetings.is_lost)
    {
        return;
    }
    if let Ok((socket, own)) = open(*fd)
        && own == *inode
        && send(socket.as_raw_fd(), REQUEST, MsgFlags::MSG_NOSIGNAL).is_ok()
    {
        await_answer(&socket);
    }
}

/// Reads a line. What goes wrong no longer matters to this process.
fn await_answer(mut socket: &UnixStream) {
    let deadline = Instant::now() + ANSWER_LIMIT;
    for _ in 0..MOST {
        let readable = (socket.as_fd(), PollFlags::POLLIN);
        let mut byte = [0];
        if wait_unless(&|| false, readable, deadline).is_err()
            || !matches!(socket.read(&mut byte), Ok(1))
            || byte == *b"\n"
        {
            return;
        }
    }
}
