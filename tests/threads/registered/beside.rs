//! Registered memory beside everything else that a communicator does: operations that are started,
//! groups, verbs that go over links, reductions of other kinds.

use ringreduce::schedule::{Collective, Op, Place, Schedule, Step};
use ringreduce::{Algorithm, CallOptions, Communicator, FoldOrder, ReduceOp, Reduction, Result};

use harness::on_ranks;

const COUNT: usize = 30_000;

type Call<'a> = &'a dyn Fn(&mut Communicator, &mut [u32]) -> Result<()>;

/// Contributions whose sum shows the order in which they were added.
fn number(rank: usize, i: usize) -> f32 {
    (1.0 + (i % 97) as f32 / 97.0) * [1.0, 1e8, -1e8, 3e-3][rank % 4]
}

fn fill(buf: &mut [f32], rank: usize) {
    buf.iter_mut().enumerate().for_each(|(i, it)| *it = number(rank, i));
}

/// Is it what ranks that share memory make of these ranks' numbers: their sum in rank order?
fn is_direct(buf: &[f32], mut ranks: impl Iterator<Item = usize> + Clone) -> bool {
    let first = ranks.next().unwrap();
    let sum = |i| ranks.clone().fold(number(first, i), |sum, rank| sum + number(rank, i));
    buf.iter().enumerate().all(|(i, it)| it.to_bits() == sum(i).to_bits())
}

#[test]
fn an_operation_that_is_started_goes_the_same_way() {
    on_ranks(5, |comm| {
        let rank = comm.rank();
        let mut buf = comm.alloc(COUNT).unwrap();
        fill(&mut buf, rank);
        comm.scope(|s| s.all_reduce(&mut buf[..], ReduceOp::Sum).wait().map(drop)).unwrap();
        assert!(is_direct(&buf, 0..5));
        fill(&mut buf, rank);
        let pending = comm.nonblocking().all_reduce(buf, ReduceOp::Sum);
        // Registering waits for what is pending.
        let mut other = comm.alloc(COUNT).unwrap();
        assert!(pending.is_done());
        assert!(is_direct(&pending.wait().unwrap(), 0..5));
        fill(&mut other, rank);
        comm.all_reduce(&mut other, ReduceOp::Sum).unwrap();
        assert!(is_direct(&other, 0..5));
    });
}

/// Who names an algorithm or a schedule gets it, wherever the buffer is.
#[test]
fn what_is_asked_for_is_done_on_registered_memory_too() {
    let line = |me: u32| {
        let (first, all) = (Place::input(0), Place::output(0));
        let mut steps = Vec::new();
        // Up from rank 3 to rank 0, and down again.
        match me {
            3 => steps.push(Step::new(Op::Send, me, first).to(2)),
            0 => steps.push(Step::new(Op::RecvReduceCopy, me, first).from(1).into(all).last(true)),
            _ => steps.push(Step::new(Op::RecvReduceSend, me, first).from(me + 1).to(me - 1)),
        }
        if me == 0 {
            steps.push(Step::new(Op::Send, me, all).to(1));
        } else if me == 3 {
            steps.push(Step::new(Op::Recv, me, all).from(2));
        } else {
            steps.push(Step::new(Op::RecvCopySend, me, all).from(me - 1).to(me + 1));
        }
        Schedule { steps, ..Schedule::new(1, 1) }
    };
    on_ranks(4, |comm| {
        let rank = comm.rank();
        let mut registered = comm.alloc(COUNT).unwrap();
        let mut plain = vec![0.0; COUNT];
        for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
            if algorithm == Algorithm::Direct {
                // Too much for the stages, and not too much for registered memory.
                assert!(comm.with(CallOptions::new().algorithm(algorithm)).barrier().is_ok());
            }
            fill(&mut registered, rank);
            fill(&mut plain, rank);
            let options = CallOptions::new().algorithm(algorithm);
            comm.with(options.clone()).all_reduce(&mut registered, ReduceOp::Sum).unwrap();
            let done = comm.with(options).all_reduce(&mut plain, ReduceOp::Sum);
            assert_eq!(done.is_ok(), algorithm != Algorithm::Direct);
            assert!(done.is_err() || registered[..] == plain[..], "{algorithm}");
            assert_eq!(is_direct(&registered, 0..4), algorithm == Algorithm::Direct);
        }
        let proven = comm.prove(Collective::AllReduce, line).unwrap();
        let mine: Vec<f32> = (0..COUNT).map(|i| number(rank, i)).collect();
        comm.run_reduction(&proven, &mine, &mut plain, ReduceOp::Sum).unwrap();
        comm.run_reduction(&proven, &mine, &mut registered, ReduceOp::Sum).unwrap();
        assert!(registered[..] == plain[..]);
    });
}

#[test]
fn an_operation_may_register() {
    on_ranks(3, |comm| {
        let work = |comm: &mut Communicator, buf: &mut Vec<f32>| {
            fill(buf, comm.rank());
            let mut guard = comm.register(buf)?;
            comm.all_reduce(&mut guard, ReduceOp::Sum)
        };
        let buf = comm.nonblocking().start(vec![0.0; COUNT], work).wait().unwrap();
        assert!(is_direct(&buf, 0..3));
    });
}

#[test]
fn groups_register_for_themselves() {
    on_ranks(8, |comm| {
        let rank = comm.rank();
        let mut whole = comm.alloc(COUNT).unwrap();
        let mut half = comm.split(Some(rank as u32 % 2), 0).unwrap().unwrap();
        let others = (rank % 2..8).step_by(2);
        let mut own = half.alloc(COUNT).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..5 {
                    fill(&mut own, rank);
                    half.all_reduce(&mut own, ReduceOp::Sum).unwrap();
                    assert!(is_direct(&own, others.clone()));
                }
            });
            for _ in 0..5 {
                fill(&mut whole, rank);
                comm.all_reduce(&mut whole, ReduceOp::Sum).unwrap();
                assert!(is_direct(&whole, 0..8));
            }
        });
        // To another communicator it is memory like any other.
        whole.fill(1.0);
        half.all_reduce(&mut whole, ReduceOp::Sum).unwrap();
        assert!(whole.iter().all(|&it| it == 4.0));
        let mut twin = comm.duplicate().unwrap();
        drop(whole);
        let mut again = twin.alloc(COUNT).unwrap();
        fill(&mut again, rank);
        twin.all_reduce(&mut again, ReduceOp::Sum).unwrap();
        assert!(is_direct(&again, 0..8));
    });
}

#[test]
fn calls_over_links_come_between() {
    on_ranks(4, |comm| {
        let rank = comm.rank();
        let (next, before) = ((rank + 1) % 4, (rank + 3) % 4);
        let mut buf = comm.alloc(COUNT).unwrap();
        for round in 0..20 {
            fill(&mut buf, rank);
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(is_direct(&buf, 0..4), "round {round}");
            // A rank may come to its next call on registered memory by another way than the rest.
            if round % 2 == 0 || rank > 1 {
                comm.barrier().unwrap();
            } else {
                comm.nonblocking().barrier().wait().unwrap();
            }
            let mut from = [0_u32];
            comm.send_recv(&[rank as u32], next, &mut from, before).unwrap();
            assert_eq!(from, [before as u32]);
            // These have no other way, on memory of any kind.
            buf.fill(1.0);
            comm.scan(&mut buf, ReduceOp::Sum).unwrap();
            assert!(buf.iter().all(|&it| it == (rank + 1) as f32));
            comm.all_to_all_in_place(&mut buf).unwrap();
            assert!((0..COUNT).all(|i| buf[i] == (i / (COUNT / 4) + 1) as f32));
            let counts = [COUNT - 6, 1, 2, 3];
            let mine = vec![rank as f32; counts[rank]];
            comm.all_gather_v(&mine, &mut buf, &counts).unwrap();
            assert_eq!([0, COUNT - 6, COUNT - 4, COUNT - 1].map(|i| buf[i]), [0.0, 1.0, 2.0, 3.0]);
        }
    });
}

#[test]
fn an_all_gather_into_registered_memory_takes_from_any() {
    on_ranks(3, |comm| {
        let rank = comm.rank();
        let mut all = comm.alloc::<u32>(3 * COUNT).unwrap();
        let mut own = comm.alloc::<u32>(COUNT).unwrap();
        own.fill(rank as u32 + 1);
        let right =
            |all: &[u32], more: usize| (0..3 * COUNT).all(|i| all[i] as usize == i / COUNT + more);
        comm.all_gather(&own, &mut all).unwrap();
        assert!(right(&all, 1));
        let plain = vec![rank as u32 + 2; COUNT];
        comm.all_gather(&plain, &mut all).unwrap();
        assert!(right(&all, 2));
        // Each in its way: the call is the same.
        if rank == 1 {
            all[COUNT..2 * COUNT].fill(1);
            comm.all_gather_in_place(&mut all).unwrap();
        } else {
            all.fill(9);
            comm.all_gather(&vec![rank as u32; COUNT], &mut all).unwrap();
        }
        assert!(right(&all, 0));
        // The other way round it goes over links.
        let mut plain = vec![0; 3 * COUNT];
        comm.all_gather(&own, &mut plain).unwrap();
        assert!(right(&plain, 1));
    });
}

#[test]
fn among_many_ranks() {
    on_ranks(40, |comm| {
        for count in [1, 2000, 5000, 10_000] {
            let mut buf = comm.alloc(count).unwrap();
            fill(&mut buf, comm.rank());
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(is_direct(&buf, 0..40), "{count}");
        }
    });
}

#[test]
fn other_reductions() {
    let after = |a: &u32, b: &u32| a.wrapping_mul(31) ^ b;
    on_ranks(4, |comm| {
        let rank = comm.rank() as u32;
        let mut memory = comm.alloc::<u32>(COUNT).unwrap();
        let mut plain = vec![0; COUNT];
        let mut all = |call: Call<'_>| {
            memory.fill(rank + 1);
            plain.fill(rank + 1);
            call(comm, &mut memory).unwrap();
            call(comm, &mut plain).unwrap();
            assert!(memory[..] == plain[..] && memory.iter().all(|&it| it == memory[0]));
            memory[0]
        };
        assert_eq!(all(&|comm, buf| comm.all_reduce(buf, Reduction::premul_sum(3_u32))), 30);
        assert_eq!(all(&|comm, buf| comm.all_reduce(buf, ReduceOp::Avg)), 2);
        let folded = [2, 3, 4].iter().fold(1, |a, b| after(&a, b));
        let order = FoldOrder::Ranks;
        assert_eq!(all(&|comm, buf| comm.all_reduce_by(buf, order, after)), folded);
    });
}
