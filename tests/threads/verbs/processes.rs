//! The same, with ranks that are processes: this program again, over shared memory and over TCP.

use ringreduce::{CallOptions, Communicator, ReduceOp, bf16};

use super::rank::Rank;
use harness::processes::{run, this_rank};

const BODY: &str = "verbs::processes::body";

/// Not a test of its own.
pub(crate) fn body() {
    let Some(mut comm) = this_rank() else { return };
    let (n, me) = (comm.size(), comm.rank());
    for count in [0, 1, 1000, 65_537] {
        Rank { comm: &mut comm, n, me, count }.everything::<f32>();
    }
    Rank { comm: &mut comm, n, me, count: 300_000 }.everything::<u8>();
    deterministic(&mut comm);
}

/// The bits of a fold in the order of ranks, over any transport and from any memory.
fn deterministic(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    let value = |rank: usize, i: usize| 3_f32.powi((rank * 5 + i) as i32 % 17 - 8) / 7.0;
    for count in [1, 1000, 65_537] {
        let wide = |i| (0..n).map(|rank| value(rank, i)).reduce(|a, b| a + b).unwrap();
        let narrow = |rank, i| bf16::from_f32(value(rank, i));
        let once = |i| (0..n).map(|rank| narrow(rank, i).to_f32()).reduce(|a, b| a + b).unwrap();
        let mut shared = comm.alloc::<bf16>(count).unwrap();
        let mut comm = comm.with(CallOptions::new().deterministic(true));
        let mut buf: Vec<f32> = (0..count).map(|i| value(me, i)).collect();
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        assert!(buf.iter().enumerate().all(|(i, got)| got.to_bits() == wide(i).to_bits()));
        let mut buf: Vec<bf16> = (0..count).map(|i| narrow(me, i)).collect();
        shared.copy_from_slice(&buf);
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        comm.all_reduce(&mut shared, ReduceOp::Sum).unwrap();
        assert!(buf.iter().enumerate().all(|(i, &got)| got == bf16::from_f32(once(i))));
        assert!(buf[..] == shared[..]);
    }
}

#[test]
fn over_shared_memory() {
    run(BODY, 4, "shm");
}

#[test]
fn over_tcp() {
    run(BODY, 4, "tcp");
}
