//! Registered memory and other features: nonblocking operations, subgroups, verbs over links, other
//! reductions.

use ringreduce::schedule::{Collective, Op, Place, Schedule, Step};
use ringreduce::{
    Algorithm, Buffers, CallOptions, Communicator, DataType, FoldOrder, ReduceOp, Reduction, Result,
};

use harness::on_ranks;

const COUNT: usize = 30_000;

type Call<'a> = &'a dyn Fn(&mut Communicator, &mut [u32]) -> Result<()>;

/// A contribution; the sum depends on the order of ranks.
fn number(rank: usize, i: usize) -> f32 {
    (1.0 + (i % 97) as f32 / 97.0) * [1.0, 1e8, -1e8, 3e-3][rank % 4]
}

fn fill(buf: &mut [f32], rank: usize) {
    buf.iter_mut().enumerate().for_each(|(i, it)| *it = number(rank, i));
}

/// True if `buf` is the sum in rank order, which ranks that share memory compute.
fn is_direct(buf: &[f32], mut ranks: impl Iterator<Item = usize> + Clone) -> bool {
    let first = ranks.next().unwrap();
    let sum = |i| ranks.clone().fold(number(first, i), |sum, rank| sum + number(rank, i));
    buf.iter().enumerate().all(|(i, it)| it.to_bits() == sum(i).to_bits())
}

#[test]
fn a_nonblocking_operation_on_registered_memory_is_direct() {
    on_ranks(5, |comm| {
        let rank = comm.rank();
        let mut buf = comm.alloc(COUNT).unwrap();
        fill(&mut buf, rank);
        comm.scope(|s| s.all_reduce(&mut buf[..], ReduceOp::Sum).wait().map(drop)).unwrap();
        assert!(is_direct(&buf, 0..5));
        fill(&mut buf, rank);
        let pending = comm.nonblocking().all_reduce(buf, ReduceOp::Sum);
        // A rank registers memory while operations are pending.
        let mut other = comm.alloc(COUNT).unwrap();
        assert!(is_direct(&pending.wait().unwrap(), 0..5));
        fill(&mut other, rank);
        comm.all_reduce(&mut other, ReduceOp::Sum).unwrap();
        assert!(is_direct(&other, 0..5));
    });
}

/// The root's input and the other ranks' outputs are registered; the root's output need not be.
#[test]
fn a_broadcast_from_another_buffer_than_its_result_is_direct() {
    on_ranks(3, |comm| {
        let (me, direct) = (comm.rank(), CallOptions::new().algorithm(Algorithm::Direct));
        for root in 0..3 {
            let broadcast = Collective::Broadcast { root: root as u32 };
            let call = ringreduce::Call::new(broadcast, DataType::F32);
            let (mut given, mut plain) = (comm.alloc(COUNT).unwrap(), vec![0.0; COUNT]);
            let mut got = comm.alloc(COUNT).unwrap();
            fill(&mut given, me);
            let (send, recv) =
                if me == root { (&given[..], &mut plain[..]) } else { (&[][..], &mut got[..]) };
            let (send, recv) = (bytemuck::cast_slice(send), bytemuck::cast_slice_mut(recv));
            comm.with(direct.clone()).call(&call, Buffers::OutOfPlace { send, recv }).unwrap();
            let result = if me == root { &plain[..] } else { &got[..] };
            assert!(is_direct(result, [root].into_iter()), "root {root}");
        }
    });
}

/// A group checks its calls before it makes them.
#[test]
fn a_group_may_name_the_algorithm_that_registered_memory_alone_has() {
    on_ranks(2, |comm| {
        let mut memory = comm.alloc(COUNT).unwrap();
        fill(&mut memory, comm.rank());
        let mut with = comm.with(CallOptions::new().algorithm(Algorithm::Direct));
        with.group(|group| group.all_reduce(&mut memory, ReduceOp::Sum)).unwrap();
        assert!(is_direct(&memory, 0..2));
    });
}

#[test]
fn a_named_algorithm_or_schedule_is_used_on_registered_memory_too() {
    let line = |me: u32| {
        let (first, all) = (Place::input(0), Place::output(0));
        let mut steps = Vec::new();
        // The contributions go from rank 3 to rank 0, and the result back.
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
                // This length does not fit the stages of ordinary memory.
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
fn a_nonblocking_operation_may_register_memory() {
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
fn memory_is_registered_with_one_communicator() {
    on_ranks(8, |comm| {
        let rank = comm.rank();
        let mut shared = comm.alloc(COUNT).unwrap();
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
                fill(&mut shared, rank);
                comm.all_reduce(&mut shared, ReduceOp::Sum).unwrap();
                assert!(is_direct(&shared, 0..8));
            }
        });
        // For another communicator the memory is ordinary.
        shared.fill(1.0);
        half.all_reduce(&mut shared, ReduceOp::Sum).unwrap();
        assert!(shared.iter().all(|&it| it == 4.0));
        let mut twin = comm.duplicate().unwrap();
        drop(shared);
        let mut again = twin.alloc(COUNT).unwrap();
        fill(&mut again, rank);
        twin.all_reduce(&mut again, ReduceOp::Sum).unwrap();
        assert!(is_direct(&again, 0..8));
    });
}

#[test]
fn calls_over_links_may_alternate_with_direct_calls() {
    on_ranks(4, |comm| {
        let rank = comm.rank();
        let (next, before) = ((rank + 1) % 4, (rank + 3) % 4);
        let mut buf = comm.alloc(COUNT).unwrap();
        for round in 0..20 {
            fill(&mut buf, rank);
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(is_direct(&buf, 0..4), "round {round}");
            // Ranks may differ in blocking and nonblocking forms between direct calls.
            if round % 2 == 0 || rank > 1 {
                comm.barrier().unwrap();
            } else {
                comm.nonblocking().barrier().wait().unwrap();
            }
            let mut from = [0_u32];
            comm.send_recv(&[rank as u32], next, &mut from, before).unwrap();
            assert_eq!(from, [before as u32]);
            // Prefixes and all-to-all go over links for memory of every kind.
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
fn an_all_gather_into_registered_memory_may_read_ordinary_memory() {
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
        // The forms in place and apart are the same call.
        if rank == 1 {
            all[COUNT..2 * COUNT].fill(1);
            comm.all_gather_in_place(&mut all).unwrap();
        } else {
            all.fill(9);
            comm.all_gather(&vec![rank as u32; COUNT], &mut all).unwrap();
        }
        assert!(right(&all, 0));
        // From registered into ordinary memory the call goes over links.
        let mut plain = vec![0; 3 * COUNT];
        comm.all_gather(&own, &mut plain).unwrap();
        assert!(right(&plain, 1));
    });
}

#[test]
fn forty_ranks_reduce_directly() {
    on_ranks(40, |comm| {
        for count in [1, 2000, 5000, 10_000] {
            let mut buf = comm.alloc(count).unwrap();
            fill(&mut buf, comm.rank());
            // Short calls are direct if they are asked to be.
            let options = CallOptions::new();
            let options = if count < 4096 { options.algorithm(Algorithm::Direct) } else { options };
            comm.with(options).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(is_direct(&buf, 0..40), "{count}");
        }
    });
}

#[test]
fn averages_scaled_sums_and_functions_give_the_result_of_ordinary_memory() {
    // An element of this size does not divide a stage or a page.
    type Odd = [u32; 3];
    let after = |a: &Odd, b: &Odd| std::array::from_fn(|at| a[at].wrapping_mul(31) ^ b[at]);
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
        let folded = [2, 3, 4].iter().fold([1; 3], |a, b| after(&a, &[*b; 3]));
        let call = |comm: &mut Communicator, buf: &mut [u32]| {
            comm.all_reduce_by(bytemuck::cast_slice_mut(buf), FoldOrder::Ranks, after)
        };
        assert_eq!(all(&call), folded[0]);
    });
}
