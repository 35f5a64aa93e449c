//! A program forks, or lacks address space for the memory of other ranks.
#![allow(unsafe_code, reason = "forks, and sets limits")]

use std::fs::read_to_string;

use harness::processes::{run, this_rank};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use ringreduce::{Communicator, Error, Limit, ReduceOp, Result};

const SUM: ReduceOp = ReduceOp::Sum;

/// A process: a rank whose child drops its copies while operations are pending.
pub(crate) fn forks() {
    let Some(mut comm) = this_rank() else { return };
    let n = comm.size() as u64;
    let mut memory = comm.alloc::<u64>(10_000).unwrap();
    memory.fill(1);
    comm.all_reduce(&mut memory, SUM).unwrap();
    let pending = comm.nonblocking().all_reduce(vec![1_u64; 300_000], SUM);
    // SAFETY: the child only drops values and ends; the system's allocator works after a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            drop(memory);
            drop(comm);
            // SAFETY: the call does not return.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(pending.wait().unwrap().iter().all(|&it| it == n));
    for round in 2..5 {
        comm.all_reduce(&mut memory, SUM).unwrap();
        assert!(memory.iter().all(|&it| it == n.pow(round)));
    }
    let mut other = vec![1_u64; 200_000];
    comm.all_reduce(&mut other, SUM).unwrap();
    assert!(other.iter().all(|&it| it == n));
    let (me, n) = (comm.rank(), comm.size());
    comm.send_recv(&[me as u32], (me + 1) % n, &mut [0], (me + n - 1) % n).unwrap();
}

#[test]
fn a_forked_child_may_drop_its_copies() {
    for transport in ["shm", "tcp"] {
        run("fork::forks", 4, transport);
    }
}

/// Limits the memory that this process may map; gives the limit before.
fn limit(most: libc::rlim_t) -> libc::rlim_t {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut now) }, 0);
    let new = libc::rlimit { rlim_cur: most, ..now };
    // SAFETY: the pointer is valid for one limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const new) }, 0);
    now.rlim_cur
}

const BYTES: usize = 16 << 20;

/// Calls `register` while rank 2 has space for less than the memory of two others: the call fails
/// at all ranks, and the communicator works on.
fn fails_with_little_memory(
    comm: &mut Communicator,
    register: impl Fn(&mut Communicator) -> Result<()>,
) -> Error {
    comm.barrier().unwrap();
    let small = comm.rank() == 2;
    let pages = read_to_string("/proc/self/statm").unwrap();
    let mapped = pages.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096;
    let before = small.then(|| limit((mapped + 2 * BYTES) as libc::rlim_t));
    let error = register(comm).unwrap_err();
    before.map(limit);
    let mut buf = vec![1_u32; 1000];
    comm.all_reduce(&mut buf, SUM).unwrap();
    assert_eq!(buf, [comm.size() as u32; 1000]);
    register(comm).unwrap();
    error
}

/// A process: a rank that registers and allocates memory.
pub(crate) fn maps() {
    let Some(mut comm) = this_rank() else { return };
    let n = comm.size() as u8;
    let registers = |comm: &mut Communicator| {
        let mut buf = vec![1_u8; BYTES];
        let result = comm.register(&mut buf).and_then(|mut guard| comm.all_reduce(&mut guard, SUM));
        let value = if result.is_ok() { n } else { 1 };
        assert!(buf.iter().all(|&it| it == value));
        result
    };
    let allocates = |comm: &mut Communicator| {
        let mut memory = comm.alloc::<u8>(BYTES)?;
        memory.fill(1);
        comm.all_reduce(&mut memory, SUM)?;
        assert!(memory.iter().all(|&it| it == n));
        Ok(())
    };
    let errors = [
        fails_with_little_memory(&mut comm, registers),
        fails_with_little_memory(&mut comm, allocates),
    ];
    for error in errors {
        let own = comm.rank() == 2;
        let text = error.to_string();
        assert!(matches!(error, Error::Exhausted { limit: Limit::Memory, .. }), "{text}");
        assert!(text.contains(if own { "mapping" } else { "rank 2" }), "{text}");
    }
}

#[test]
fn memory_that_one_rank_cannot_map_is_registered_at_none() {
    run("fork::maps", 4, "shm");
}
