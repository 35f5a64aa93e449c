//! Every call by the algorithm that the library chooses: long blocks among threads, and ranks that
//! are processes over shared memory and over TCP.

use harness::on_ranks;
use harness::processes::{run, this_rank};
use ringreduce::{CallOptions, Communicator, ReduceOp, bf16};

use super::table::{LONG, Walk};

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    let mut walk = Walk::new(&mut comm);
    walk.chosen::<f32>(&[0, 1, 1000, LONG]);
    walk.chosen::<u8>(&[300_000]);
    deterministic(&mut comm);
}

/// A deterministic sum has the bits of a fold in rank order, over any transport and memory.
fn deterministic(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    let value = |rank: usize, i: usize| 3_f32.powi((rank * 5 + i) as i32 % 17 - 8) / 7.0;
    for count in [1, 1000, LONG] {
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
    run("matrix::chosen::rank", 4, "shm");
}

#[test]
fn over_tcp() {
    run("matrix::chosen::rank", 4, "tcp");
}

/// Each chunk takes several rounds: it is longer than half of a link's slots.
#[test]
fn long_blocks_among_threads() {
    for n in 1..=9 {
        on_ranks(n, |comm| {
            let mut walk = Walk::new(comm);
            walk.chosen::<u64>(&[LONG]);
            walk.chosen::<f32>(&[LONG]);
            walk.chosen::<u8>(&[LONG]);
        });
    }
}
