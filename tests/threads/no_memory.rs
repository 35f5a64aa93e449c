//! Slots get memory in the first call, or the first message, that needs them. What a rank says that
//! lacks the memory, and what the others are told.

use harness::on_ranks;
use ringreduce::memory::pretend_free_memory;
use ringreduce::{Algorithm, CallOptions, Communicator, Error, ReduceOp, Result, bf16};

use super::SUM;

/// Elements of a buffer that is longer than a slot.
const COUNT: usize = 100_000;
/// The rank that lacks memory.
const LACKS: usize = 1;

/// A communicator whose slots have no memory yet, on ranks that have measured what they measure.
fn fresh(world: &mut Communicator) -> Communicator {
    world.all_reduce(&mut vec![1_u32; COUNT], ReduceOp::Sum).unwrap();
    world.duplicate().unwrap()
}

/// Makes a call while this rank may lack memory.
fn with_little_memory<T>(rank: usize, call: impl FnOnce() -> Result<T>) -> Result<T> {
    pretend_free_memory((rank == LACKS).then_some(4096));
    let done = call();
    pretend_free_memory(None);
    done
}

fn text(done: Result<()>) -> String {
    match done.unwrap_err() {
        error @ Error::Exhausted { .. } => error.to_string(),
        error => panic!("{error}"),
    }
}

#[test]
fn all_ranks_are_told_which_rank_lacks_memory_for_its_slots() {
    use Algorithm::{AllPairs, Ring, SingleCopy, Staged};
    for (algorithm, lack) in [
        (Staged, "bringing "),
        (SingleCopy, "mapping "),
        (Ring, "bringing "),
        (AllPairs, "bringing "),
    ] {
        on_ranks(3, |world| {
            let (mut comm, rank) = (fresh(world), world.rank());
            // Sixteen bytes fit the head of a slot, which needs no memory.
            let mut small = [1_u32; 4];
            let call = || comm.all_reduce(&mut small, ReduceOp::Sum);
            with_little_memory(rank, call).unwrap();
            let options = CallOptions::new().algorithm(algorithm);
            let mut long = vec![1_u32; COUNT];
            let call = || comm.with(options).all_reduce(&mut long, ReduceOp::Sum);
            let text = text(with_little_memory(rank, call));
            let words = if rank == LACKS { lack } else { "memory of rank 1 " };
            assert!(text.contains(words) && text.contains("memory"), "{algorithm}: {text}");
            // The communicator that this one was made of has its memory.
            assert!(comm.barrier().is_err());
            world.barrier().unwrap();
        });
    }
}

/// Copies of the library's own: for a call that must be safe to retry, and for another type.
#[test]
fn all_ranks_are_told_which_rank_lacks_memory_for_its_copies() {
    let is_told = |rank, done| {
        let text = text(done);
        assert_eq!(text.contains("memory of rank 1 "), rank != LACKS, "{text}");
    };
    on_ranks(3, |world| {
        let rank = world.rank();
        let (mut safe, mut wide) = (fresh(world), fresh(world));
        let mut buf = vec![1_u32; COUNT];
        let call = || safe.with(CallOptions::new().retry_safe(true)).all_reduce(&mut buf, SUM);
        is_told(rank, with_little_memory(rank, call));
        let mut buf = vec![bf16::ONE; COUNT];
        let call = || wide.with(CallOptions::new().wide(true)).all_reduce(&mut buf, SUM);
        is_told(rank, with_little_memory(rank, call));
        world.barrier().unwrap();
    });
}

#[test]
fn a_message_without_memory_for_its_slots_is_an_error_of_its_sender_alone() {
    on_ranks(2, |world| {
        let (mut comm, rank) = (fresh(world), world.rank());
        let mut got = vec![0_u32; COUNT];
        if rank == LACKS {
            let sent = vec![7_u32; COUNT];
            let failed = with_little_memory(rank, || comm.send(&sent, 0));
            assert!(text(failed).contains("bringing "));
            comm.send(&sent, 0).unwrap();
        } else {
            comm.recv(&mut got, LACKS).unwrap();
            assert!(got.iter().all(|&it| it == 7));
        }
        comm.barrier().unwrap();
    });
}
