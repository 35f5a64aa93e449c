//! Children forked by tests, which tell by a pipe what they find.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, alarm, dup, fork, getpid, getppid, pause, write};

use super::*;

/// A forked child that lives until it is dropped.
struct Child(Pid);

impl Child {
    /// Forks a child in which `check` must hold. It may make system calls alone.
    fn new(check: impl FnOnce() -> bool) -> Self {
        let (mut answer, asked) = std::io::pipe().unwrap();
        match fork_process() {
            ForkResult::Child => {
                alarm::set(60);
                let _ = write(&asked, &[u8::from(check())]);
                idle()
            }
            ForkResult::Parent { child } => {
                let child = Self(child);
                drop(asked);
                let mut answered = [0];
                answer.read_exact(&mut answered).unwrap();
                assert_eq!(answered, [1], "the child's check");
                child
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

fn fork_process() -> ForkResult {
    // SAFETY: children make system calls alone, and end by a signal.
    unsafe { fork() }.unwrap()
}

fn idle() -> ! {
    loop {
        pause();
    }
}

fn pair() -> [UnixStream; 2] {
    let open = || UnixStream::pair().map(|(one, other)| SocketPair(one, other));
    let SocketPair(one, other) = open_sockets(open).unwrap();
    [one, other]
}

fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the callers keep the descriptor open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

#[test]
fn a_connection_ends_while_a_forked_child_and_its_child_live() {
    let [mut one, mut other] = pair();
    let fd = other.as_raw_fd();
    let child = Child::new(|| {
        let parent = getpid();
        if matches!(fork_process(), ForkResult::Child) {
            alarm::set(60);
            let _ = set_pdeathsig(Signal::SIGKILL);
            // The parent may have ended before that.
            if getppid() == parent {
                idle();
            }
            let _ = kill(getpid(), Signal::SIGKILL);
        }
        // The number stays taken, by a socket that leads nowhere.
        let is_open = fcntl(borrowed(fd), FcntlArg::F_GETFD).is_ok();
        is_open && send(fd, &[1], MsgFlags::MSG_NOSIGNAL).is_err()
    });
    one.write_all(&[7]).unwrap();
    other.read_exact(&mut [0]).unwrap();
    drop(other);
    assert_eq!(one.read(&mut [0]).unwrap(), 0, "the other end is closed everywhere");
    drop(child);
}

#[test]
fn a_forked_child_keeps_the_descriptors_of_the_program() {
    let [one, other] = pair();
    let number = one.into_raw_fd();
    // SAFETY: the number is that of the socket above, which nothing else owns.
    let mut reused = unsafe { OwnedFd::from_raw_fd(number) };
    let (mut reader, writer) = std::io::pipe().unwrap();
    // The socket's number becomes that of a pipe of the program.
    nix::unistd::dup2(&writer, &mut reused).unwrap();
    drop(writer);
    let (kept, _other_end) = UnixStream::pair().unwrap();
    let child = Child::new(|| [write(&reused, &[1]), write(&kept, &[1])] == [Ok(1), Ok(1)]);
    reader.read_exact(&mut [0]).unwrap();
    drop((child, other, reused));
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_fork_waits_for_a_thread_that_has_not_registered_its_socket_yet() {
    let (begun, is_begun) = std::sync::mpsc::channel();
    let opened = std::thread::spawn(move || {
        let began = Instant::now();
        let open = || {
            let (one, other) = UnixStream::pair()?;
            begun.send(()).unwrap();
            // The fork comes meanwhile.
            std::thread::sleep(MAX_WAIT / 5);
            std::io::Result::Ok(SocketPair(one, other))
        };
        let pair = open_sockets(open).unwrap();
        (pair, began.elapsed())
    });
    is_begun.recv().unwrap();
    let child = Child::new(|| true);
    let (SocketPair(mut one, other), registered_after) = opened.join().unwrap();
    drop(other);
    // Children of other tests let go of the socket a moment later.
    one.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // On a busy machine the thread may take longer than a fork waits.
    if registered_after < MAX_WAIT {
        assert_eq!(one.read(&mut [0]).unwrap(), 0);
    }
    drop(child);
}

#[test]
fn a_child_at_the_limit_of_descriptors_lets_go_of_sockets_too() {
    let child = Child::new(|| {
        let Ok((one, other)) = UnixStream::pair() else { return false };
        let own = [&one, &other].map(AsRawFd::as_raw_fd);
        let limit = own[1] as u64 + 9;
        let is_limited = setrlimit(Resource::RLIMIT_NOFILE, limit, limit).is_ok();
        while dup(&one).map(OwnedFd::into_raw_fd).is_ok() {}
        let before = own.map(inode_of);
        own.iter().for_each(|&fd| register(fd));
        release_in_child();
        let is_replaced = |at: usize| inode_of(own[at]).is_some_and(|now| before[at] != Some(now));
        is_limited && is_replaced(0) && is_replaced(1)
    });
    drop(child);
}
