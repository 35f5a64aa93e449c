//! A program forks.
#![allow(unsafe_code, reason = "forks")]

use harness::processes::{run, this_rank};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use ringreduce::ReduceOp;

const SUM: ReduceOp = ReduceOp::Sum;

/// A process: a rank whose child drops its copies while operations are pending.
pub(crate) fn forks() {
    let Some(mut comm) = this_rank() else { return };
    let n = comm.size() as u64;
    let mut memory = comm.alloc::<u64>(10_000).unwrap();
    memory.fill(1);
    comm.all_reduce(&mut memory, SUM).unwrap();
    let pending = comm.nonblocking().all_reduce(vec![1_u64; 300_000], SUM);
    let messages = comm.messenger();
    // SAFETY: the child only drops values and ends; the system's allocator works after a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the argument is a number. The alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
            drop(memory);
            drop((comm, messages));
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
    messages.send(&[me as u32], (me + 1) % n, 0).unwrap();
    messages.recv(&mut [0_u32], (me + n - 1) % n, 0).unwrap();
}

#[test]
fn a_forked_child_may_drop_its_copies() {
    for transport in ["shm", "tcp"] {
        run("fork::forks", 4, transport);
    }
}
