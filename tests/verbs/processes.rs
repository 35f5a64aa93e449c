//! The same, with ranks that are processes: this program again, over shared memory and over TCP.

use std::process::{Child, Command, Stdio};

use ringreduce::{CallOptions, Communicator, ReduceOp, Transport, bf16};

use crate::rank::Rank;

/// What tells a process which rank it is: rank, size, store and transport.
const SEAT: &str = "VERBS_SEAT";

/// Not a test of its own.
#[test]
#[ignore = "what the ranks of the other tests do"]
fn body() {
    let Ok(seat) = std::env::var(SEAT) else { return };
    let [rank, size, store, transport] = seat.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{seat}");
    };
    let (me, n) = (rank.parse().unwrap(), size.parse().unwrap());
    let forced = if transport == "tcp" { Transport::Tcp } else { Transport::Shm };
    let builder = Communicator::builder().rank(me).size(n).store(store);
    let mut comm = builder.transport(forced).build().unwrap();
    assert_eq!(comm.transports(), [transport]);
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

fn every_verb(transport: &str) {
    let n = 4;
    let store = format!("unix:@verbs-{transport}-{}", std::process::id());
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::body", "--ignored", "--nocapture"]);
        command.env(SEAT, format!("{rank} {n} {store} {transport}"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..n).map(start).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let ended = child.wait_with_output().unwrap();
        let says = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(ended.status.success(), "rank {rank}: {}\n{}", says[0], says[1]);
    }
}

#[test]
fn over_shared_memory() {
    every_verb("shm");
}

#[test]
fn over_tcp() {
    every_verb("tcp");
}
