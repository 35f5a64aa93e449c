//! Each rank registers what it likes: calls for which some ranks have registered their buffers and
//! others have not, or parts of other buffers, have the results of any other call; and a call is
//! direct if all have registered theirs, wherever they are.

use ringreduce::{Algorithm, CallOptions, Communicator, ReduceOp, Registered, bf16};

use super::{fill, sum_of, value};
use harness::on_ranks;

/// Elements on both sides of the least length and of the stages' block.
const COUNTS: [usize; 4] = [600, 4096, 5001, 70_000];

/// A buffer of a rank's, registered or not, with `count` elements for the call.
enum Memory<'a> {
    Plain(&'a mut Vec<u32>),
    Registered(Registered<'a, u32>, usize),
}

impl<'a> Memory<'a> {
    /// Of the kind with this number: ordinary, allocated or adopted, from another place on at each
    /// rank.
    fn new(comm: &Communicator, kind: usize, own: &'a mut Vec<u32>, count: usize) -> Self {
        let at = 1024 * comm.rank() + kind % 2 * 7;
        own.resize(count, 0);
        match kind {
            0 => Self::Plain(own),
            1 => Self::Registered(comm.alloc(at + count + 5).unwrap(), at),
            _ => {
                own.resize(at + count, 0);
                Self::Registered(comm.register(own).unwrap(), at)
            }
        }
    }

    fn get(&mut self, count: usize) -> &mut [u32] {
        match self {
            Self::Plain(buf) => buf,
            Self::Registered(buf, at) => &mut buf[*at..*at + count],
        }
    }
}

/// The call of this number, over a buffer of `n` parts and one of a part, and a check of its
/// result.
fn call(comm: &mut Communicator, number: usize, whole: &mut [u32], apart: &mut [u32]) {
    let (n, me, part) = (comm.size(), comm.rank(), whole.len() / comm.size());
    let mine = me * part..(me + 1) * part;
    fill(whole, me);
    match number {
        0 => {
            comm.all_reduce(whole, ReduceOp::Sum).unwrap();
            assert!((0..whole.len()).all(|i| whole[i] == sum_of(n, i)));
        }
        1 => {
            comm.reduce_scatter(whole, apart, ReduceOp::Sum).unwrap();
            assert!(mine.zip(&*apart).all(|(i, &it)| it == sum_of(n, i)));
            assert!((0..whole.len()).all(|i| whole[i] == value(me, i)), "the input stays");
        }
        2 => {
            comm.all_gather_in_place(whole).unwrap();
            assert!((0..n * part).all(|i| whole[i] == value(i / part, i)));
        }
        3 => {
            fill(apart, me);
            comm.all_gather(apart, whole).unwrap();
            assert!((0..n * part).all(|i| whole[i] == value(i / part, i % part)));
        }
        root => {
            comm.broadcast(whole, root - 4).unwrap();
            assert!((0..whole.len()).all(|i| whole[i] == value(root - 4, i)));
        }
    }
}

#[test]
fn any_ranks_may_have_registered_their_buffers() {
    if !harness::share::makes_test(3) {
        return;
    }
    for (n, kinds) in [(2, 9), (3, 27), (4, 40), (8, 25)] {
        on_ranks(n, |comm| {
            for case in 0..kinds {
                // The ranks' kinds are the digits of the case, or some digits of it.
                let digit = 3_usize.pow((comm.rank() % 4) as u32);
                let kind = (case * if n > 3 { 7 } else { 1 } / digit + comm.rank() / 4) % 3;
                for count in COUNTS {
                    let (mut own, mut apart) = (Vec::new(), vec![0; count]);
                    let mut memory = Memory::new(comm, kind, &mut own, n * count);
                    for number in 0..4 + n {
                        call(comm, number, memory.get(n * count), &mut apart);
                    }
                }
                comm.barrier().unwrap();
            }
        });
    }
}

/// Ranks that are one call apart, since a root need not wait: none takes an offer for another call.
#[test]
fn offers_of_calls_one_after_the_other_are_kept_apart() {
    on_ranks(3, |comm| {
        let rank = comm.rank();
        let mut shared = comm.alloc::<u32>(3 * 5000).unwrap();
        let mut plain = vec![0_u32; 3 * 5000];
        for round in 0..600 {
            let root = round % 3;
            // Another rank's memory is ordinary in each round, or none's.
            let buf = if (rank + round) % 4 == 0 { &mut plain[..] } else { &mut shared[..] };
            let count = 5000 + round % 7;
            fill(&mut buf[..count], rank + round);
            comm.broadcast(&mut buf[..count], root).unwrap();
            assert!((0..count).all(|i| buf[i] == value(root + round, i)), "round {round}");
            let ring = CallOptions::new().algorithm(Algorithm::Ring);
            match round % 5 {
                1 => comm.barrier().unwrap(),
                2 => comm.with(ring).broadcast(&mut buf[..9], root).unwrap(),
                _ => (),
            }
        }
    });
}

fn direct() -> CallOptions {
    CallOptions::new().algorithm(Algorithm::Direct)
}

#[test]
fn a_call_is_direct_wherever_the_registered_buffers_are() {
    for n in [2, 3, 8] {
        on_ranks(n, |comm| {
            let rank = comm.rank();
            // Another length and type at each rank, and another order of registration.
            let mut bytes = comm.alloc::<u8>((40_000 + rank) * 4).unwrap();
            let mut own = vec![0_u32; 50_000 + 999 * rank];
            let mut guard = comm.register(&mut own).unwrap();
            let mut other = comm.alloc::<u32>(60_000).unwrap();
            for (round, count) in [30_000, 5001, 4, 30_011].into_iter().enumerate() {
                let from = 17 * rank + round;
                let buf = match (rank + round) % 3 {
                    0 => bytemuck::cast_slice_mut(&mut bytes[4 * from..4 * (from + count)]),
                    1 => &mut guard[from..from + count],
                    _ => &mut other[from..from + count],
                };
                fill(buf, rank);
                comm.with(direct()).all_reduce(buf, ReduceOp::Sum).unwrap();
                assert_eq!((0..count).find(|&i| buf[i] != sum_of(n, i)), None, "{n} {count}");
            }
        });
    }
}

#[test]
fn input_and_output_may_be_registered_at_some_ranks_each() {
    for case in 0..64_usize {
        on_ranks(3, |comm| {
            let (rank, count) = (comm.rank(), 20_000);
            let has = |buffer: usize| case >> (2 * rank + buffer) & 1 == 1;
            let (mut own, mut into) = (vec![0; count], vec![0; count]);
            let mut memory = [comm.alloc::<u32>(count).unwrap(), comm.alloc(count).unwrap()];
            let [first, second] = &mut memory;
            let send = if has(0) { &mut first[..] } else { &mut own[..] };
            fill(send, rank);
            let recv = if has(1) { &mut second[..] } else { &mut into[..] };
            comm.all_reduce_into(send, recv, ReduceOp::Sum).unwrap();
            assert!((0..count).all(|i| recv[i] == sum_of(3, i)), "{case}");
            assert!((0..count).all(|i| send[i] == value(rank, i)), "{case}");
            // In place at some ranks, and apart at others.
            if rank == case % 3 {
                comm.all_reduce(send, ReduceOp::Sum).unwrap();
                assert!((0..count).all(|i| send[i] == sum_of(3, i)), "{case}");
            } else {
                comm.all_reduce_into(send, recv, ReduceOp::Sum).unwrap();
                assert!((0..count).all(|i| recv[i] == sum_of(3, i)), "{case}");
            }
        });
    }
}

/// Sums that are rounded once have the same bits on any memory.
#[test]
fn a_wide_sum_does_not_depend_on_where_buffers_are() {
    for case in 0..8_usize {
        let sums = on_ranks(3, |comm| {
            let (rank, count) = (comm.rank(), 9000);
            let mut memory = comm.alloc::<bf16>(count).unwrap();
            let mut plain = vec![bf16::ZERO; count];
            let buf = if case >> rank & 1 == 1 { &mut memory[..] } else { &mut plain[..] };
            let wide = || CallOptions::new().wide(true);
            for _ in 0..3 {
                for (i, it) in buf.iter_mut().enumerate() {
                    *it = bf16::from_f32((1 + i % 5) as f32 * [256.0, 1.0, 1.0][rank]);
                }
                comm.with(wide()).all_reduce(buf, ReduceOp::Sum).unwrap();
            }
            buf.to_vec()
        });
        for sum in &sums {
            let want = |i: usize| bf16::from_f32((1 + i % 5) as f32 * 258.0);
            assert!((0..sum.len()).all(|i| sum[i] == want(i)), "{case}");
        }
    }
}

/// The direct algorithm can be required of all ranks alone; a rank that can't have it is told.
#[test]
fn a_required_direct_call_is_refused_on_ordinary_memory() {
    on_ranks(2, |comm| {
        let mut shared = comm.alloc::<u32>(100_000).unwrap();
        let mut plain = vec![0; 100_000];
        let odd = comm.rank() == 1;
        if odd {
            assert!(comm.with(direct()).all_reduce(&mut plain, ReduceOp::Sum).is_err());
        }
        fill(&mut shared, comm.rank());
        comm.with(direct()).all_reduce(&mut shared, ReduceOp::Sum).unwrap();
        assert!((0..100_000).all(|i| shared[i] == sum_of(2, i)));
        let buf = if odd { &mut plain } else { &mut shared[..] };
        let done = match odd {
            true => comm.all_reduce(buf, ReduceOp::Sum),
            false => comm.with(direct()).all_reduce(buf, ReduceOp::Sum),
        };
        assert!(done.unwrap_err().to_string().contains("the algorithm"));
    });
}
