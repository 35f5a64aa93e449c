//! A program forks.
#![allow(unsafe_code, reason = "forks")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use harness::process;
use harness::processes::{Process, World, run, this_rank};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use ringreduce::bootstrap::{Instant, Server, Store};
use ringreduce::config::StoreAddr;
use ringreduce::{Error, ReduceOp};

const SUM: ReduceOp = ReduceOp::Sum;

/// A process: a rank whose child makes calls and drops its copies while operations are pending.
pub(crate) fn forks() {
    let Some(mut comm) = this_rank() else { return };
    let all = comm.size() as u64;
    let mut memory = comm.alloc::<u64>(10_000).unwrap();
    memory.fill(1);
    comm.all_reduce(&mut memory, SUM).unwrap();
    let pending = comm.nonblocking().all_reduce(vec![1_u64; 300_000], SUM);
    let messages = comm.messenger();
    let (me, n) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let awaited = messages.irecv(vec![0_u32], previous, 7).unwrap();
    // SAFETY: the child only drops values and ends; the system's allocator works after a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            let refused = [
                comm.all_reduce(&mut [1_u64], SUM),
                comm.send(&[1_u64], next),
                messages.send(&[1_u64], next, 0),
                messages.recv(&mut [1_u64], previous, 0).map(drop),
                awaited.wait().map(drop),
                pending.wait().map(drop),
            ];
            let is_broken = |result| matches!(result, Err(Error::Broken { .. }));
            // A panic would run the parent's handlers.
            let code = if refused.into_iter().all(is_broken) { 0 } else { 1 };
            drop(memory);
            drop((comm, messages));
            // SAFETY: the call does not return.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(pending.wait().unwrap().iter().all(|&it| it == all));
    for round in 2..5 {
        comm.all_reduce(&mut memory, SUM).unwrap();
        assert!(memory.iter().all(|&it| it == all.pow(round)));
    }
    let mut other = vec![1_u64; 200_000];
    comm.all_reduce(&mut other, SUM).unwrap();
    assert!(other.iter().all(|&it| it == all));
    messages.send(&[me as u32], next, 7).unwrap();
    assert_eq!(awaited.wait().unwrap().0, [previous as u32]);
    comm.send_recv(&[me as u32], next, &mut [0], previous).unwrap();
    messages.send(&[me as u32], next, 0).unwrap();
    messages.recv(&mut [0_u32], previous, 0).unwrap();
}

/// A process: a rank with a launcher's socket, whose child connects to the launcher's store too.
pub(crate) fn connects_again() {
    let until = Instant::now() + Duration::from_secs(60);
    let server = Server::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let address = StoreAddr::Fd(ours.as_raw_fd());
    let connect = || Store::connect(&address, until).map(drop);
    connect().unwrap();
    // SAFETY: the child only connects and ends; the system's allocator works after a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            let error = connect().err().map(|error| error.to_string()).unwrap_or_default();
            let is_named = error.contains("this process is a fork of a rank's process")
                && error.contains("RINGREDUCE_LAUNCHER=none");
            let _ = writeln!(std::io::stderr(), "{error}");
            // SAFETY: the call does not return.
            unsafe { libc::_exit(i32::from(!is_named)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    connect().unwrap();
    eprintln!("right");
}

/// A process: a rank whose child drops its copy when the parent has gone on.
pub(crate) fn forks_while_traced() {
    let Some(mut comm) = this_rank() else { return };
    let (mut from_parent, mut to_child) = std::io::pipe().unwrap();
    comm.all_reduce(&mut [1_u64], SUM).unwrap();
    // SAFETY: the child only waits, drops values and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            let _ = from_parent.read(&mut [0]);
            drop(comm);
            // SAFETY: the call does not return.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            for _ in 0..2000 {
                comm.all_reduce(&mut [1_u64], SUM).unwrap();
            }
            // The child's copy of the events is written after those of the parent, if at all.
            let failed = comm.broadcast(&mut [1_u64], 99);
            assert!(failed.is_err());
            drop(comm);
            to_child.write_all(&[1]).unwrap();
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

#[test]
fn the_trace_of_a_rank_is_whole_although_a_forked_child_drops_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().to_str().unwrap().to_owned();
    let settings = |_| vec![("RINGREDUCE_TRACE", trace.clone())];
    World::start("fork::forks_while_traced", 2, "shm", settings).succeeds("traced");
    for rank in 0..2 {
        let text =
            std::fs::read_to_string(folder.path().join(format!("rank.{rank}.json"))).unwrap();
        assert!(text.starts_with("[\n") && text.ends_with("\n]\n"), "{text}");
        assert_eq!(text.matches("\n]\n").count(), 1, "it ends once");
        assert!(text.matches("\"call\":2001,").count() == 1, "it has each call once");
        assert!(text.matches("\"call\":1,").count() == 1, "it has each call once");
    }
}

#[test]
fn a_forked_child_is_told_that_the_launchers_socket_is_its_parents() {
    let lines = Process::start(process("fork::connects_again")).succeeds("");
    assert!(lines.lines().any(|line| line == "right"), "{lines}");
}

#[test]
fn a_forked_child_may_drop_its_copies_and_its_calls_fail() {
    for transport in ["shm", "tcp"] {
        run("fork::forks", 4, transport);
    }
}
