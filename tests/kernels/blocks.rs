//! Reductions of f32 that travel in blocks. Deterministic calls of every kind have the bits of a
//! plain fold that rounds the blocks after each addition. Other calls are within the bound, and all
//! ranks have the same bits.

use harness::on_ranks;
use harness::processes::{run, this_rank};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::Algorithm;
use ringreduce::{
    BlockFormat, CallOptions, Communicator, DataType, F8E4M3, ReduceOp, Reduction, Wire, wire_error,
};

const SUM: ReduceOp = ReduceOp::Sum;
const WIRES: [Wire; 2] = [Wire::INT8_BLOCK, Wire::F8E4M3_BLOCK];
const LEN: usize = BlockFormat::LEN;
const COUNTS: [usize; 8] = [0, 1, 31, 32, 33, 64, 1000, LARGEST];
/// A few elements more than a chunk of each algorithm.
const LARGEST: usize = 40_001;
/// Several pieces among two ranks, the last one with a block that is not full.
const SEVERAL_PIECES: usize = 1_000_003;

/// Numbers of all ranks, as a rank makes them for itself. The length of a buffer does not change
/// them.
fn numbers(n: usize) -> Vec<Vec<f32>> {
    (0..n as u64)
        .map(|rank| {
            let mut random = SmallRng::seed_from_u64(rank);
            (0..LARGEST)
                .map(|_| random.random_range(-1.0..1.0) * 2_f32.powi(random.random_range(-9..9)))
                .collect()
        })
        .collect()
}

/// The numbers as they travel, by the description of the formats.
fn rounded(wire: Wire, numbers: &[f32]) -> Vec<f32> {
    let of_block = |block: &[f32]| {
        let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let scaled: Vec<f32> = if wire == Wire::INT8_BLOCK {
            // The scale has 17 binary digits.
            let scale = f64::from(largest / 127.0);
            let unit = 2_f64.powi(scale.log2().floor() as i32 - 16);
            let scale = ((scale / unit).round_ties_even() * unit) as f32;
            let factor = 1.0 / scale;
            block.iter().map(|&x| (x * factor).round_ties_even() * scale).collect()
        } else {
            let scale = (largest / 464.0).log2().ceil().exp2();
            block.iter().map(|&x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect()
        };
        if largest == 0.0 { block.to_vec() } else { scaled }
    };
    numbers.chunks(LEN).flat_map(of_block).collect()
}

/// The fold of some contributions to a part of a buffer, in the order of ranks; of `n` ranks.
fn folded(wire: Wire, op: Reduction, n: usize, all: &[&[f32]]) -> Vec<f32> {
    let factor = if op == Reduction::premul_sum(FACTOR) { FACTOR } else { 1.0 };
    let contribution =
        |of: &[f32]| rounded(wire, &of.iter().map(|x| x * factor).collect::<Vec<_>>());
    let mut sum = contribution(all[0]);
    for (number, of) in all.iter().enumerate().skip(1) {
        let is_last = number + 1 == all.len();
        let both = |(a, b): (&f32, f32)| match op {
            _ if op == ReduceOp::Min.into() => a.min(b),
            _ if op == ReduceOp::Max.into() => a.max(b),
            _ if op == ReduceOp::Avg.into() && is_last => (a + b) / n as f32,
            _ => a + b,
        };
        sum = rounded(wire, &sum.iter().zip(contribution(of)).map(both).collect::<Vec<_>>());
    }
    sum
}

const FACTOR: f32 = 0.3;

fn assert_same(got: &[f32], want: &[f32], what: &str) {
    let differs = got.iter().zip(want).position(|(got, want)| got != want);
    assert!(got.len() == want.len() && differs.is_none(), "{what}: {differs:?} of {}", want.len());
}

/// Deterministic calls of every kind, each with the bits of [`folded`].
fn every_deterministic_call(comm: &mut Communicator, wire: Wire, op: Reduction, count: usize) {
    let (n, me) = (comm.size(), comm.rank());
    let numbers = numbers(n);
    let options = CallOptions::new().wire(wire).deterministic(true);
    // The result of some ranks for a range of the buffer that is a part of its own.
    let want = |ranks: usize, range: std::ops::Range<usize>| {
        let all: Vec<_> = numbers[..ranks].iter().map(|of| &of[range.clone()]).collect();
        folded(wire, op, n, &all)
    };
    let (send, all) = (&numbers[me][..count], want(n, 0..count));
    let what = |call| format!("{call} {wire} {op} n={n} {count}");
    for algorithm in Algorithm::ALL {
        let mut buf = send.to_vec();
        // Other algorithms are refused, because of their order.
        if comm.with(options.clone().algorithm(algorithm)).all_reduce(&mut buf, op).is_ok() {
            assert_same(&buf, &all, &what(algorithm.name()));
        }
    }
    let mut memory = comm.alloc::<f32>(count).unwrap();
    memory.copy_from_slice(send);
    let mut comm = comm.with(options);
    comm.all_reduce(&mut memory, op).unwrap();
    assert_same(&memory, &all, &what("registered"));
    let mut buf = vec![7.0; count];
    comm.all_reduce_into(send, &mut buf, op).unwrap();
    assert_same(&buf, &all, &what("all_reduce_into"));
    let mut buf = send.to_vec();
    // Blocks go on from one buffer of the list to the next.
    let (first, second) = buf.split_at_mut(count / 3);
    comm.all_reduce_many(&mut [first, second], op).unwrap();
    assert_same(&buf, &all, &what("all_reduce_many"));
    let mut buf = send.to_vec();
    comm.reduce(&mut buf, op, count % n).unwrap();
    assert_same(&buf, if me == count % n { &all } else { send }, &what("reduce"));
    let part = count / n;
    let mut buf = vec![7.0; part];
    comm.reduce_scatter(&send[..part * n], &mut buf, op).unwrap();
    assert_same(&buf, &want(n, me * part..(me + 1) * part), &what("reduce_scatter"));
    let counts: Vec<_> = (0..n).map(|rank| count * (rank % 3) / (2 * n)).collect();
    let at = counts[..me].iter().sum::<usize>();
    let mut buf = vec![7.0; counts[me]];
    comm.reduce_scatter_v(&send[..counts.iter().sum()], &mut buf, &counts, op).unwrap();
    assert_same(&buf, &want(n, at..at + counts[me]), &what("reduce_scatter_v"));
    if op == ReduceOp::Avg.into() {
        return; // There is no average of a prefix.
    }
    let mut buf = send.to_vec();
    comm.scan(&mut buf, op).unwrap();
    assert_same(&buf, &want(me + 1, 0..count), &what("scan"));
    let mut buf = send.to_vec();
    comm.exscan(&mut buf, op).unwrap();
    let before = if me == 0 { send.to_vec() } else { want(me, 0..count) };
    assert_same(&buf, &before, &what("exscan"));
}

/// Calls by each algorithm that makes them: equal bits at all ranks, within the bound.
fn every_algorithm(comm: &mut Communicator, wire: Wire, count: usize) {
    let n = comm.size();
    let numbers = numbers(n);
    let largest = numbers.iter().flatten().fold(0.0_f32, |most, x| most.max(x.abs()));
    let bound = wire_error(n, wire, largest.into());
    let exact = |i: usize| numbers.iter().map(|of| f64::from(of[i])).sum::<f64>();
    let mut made = 0;
    for algorithm in Algorithm::ALL {
        let mut buf = numbers[comm.rank()][..count].to_vec();
        let options = CallOptions::new().wire(wire).algorithm(algorithm);
        if comm.with(options).all_reduce(&mut buf, SUM).is_err() {
            continue;
        }
        made += 1;
        let off = (0..count).map(|i| (f64::from(buf[i]) - exact(i)).abs()).fold(0.0, f64::max);
        assert!(off <= bound, "{algorithm} {wire} n={n} {count}: {off}, over {bound}");
        let mut all = vec![0.0; count * n];
        comm.all_gather(&buf, &mut all).unwrap();
        for other in all.chunks(count.max(1)) {
            let is_same = bytemuck::cast_slice::<_, u8>(other) == bytemuck::cast_slice(&buf);
            assert!(is_same, "{algorithm} {wire} n={n} {count}: ranks differ");
        }
    }
    assert!(made >= 5, "{made} algorithms only");
}

/// Calls of every kind, with blocks of both formats.
fn every_call(comm: &mut Communicator) {
    let by = [SUM, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max].map(Reduction::from);
    for wire in WIRES {
        for count in COUNTS {
            every_deterministic_call(comm, wire, SUM.into(), count);
            every_algorithm(comm, wire, count);
        }
        for op in by.into_iter().chain([Reduction::premul_sum(FACTOR)]) {
            every_deterministic_call(comm, wire, op, 1000);
        }
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    every_call(&mut comm);
}

#[test]
fn over_shared_memory() {
    run("blocks::rank", 3, "shm");
}

#[test]
fn over_tcp() {
    run("blocks::rank", 3, "tcp");
}

#[test]
fn among_threads() {
    for n in [2, 4, 5] {
        on_ranks(n, every_call);
    }
}

#[test]
fn calls_of_several_pieces_are_cut_at_the_borders_of_blocks() {
    on_ranks(2, |comm| {
        let mine = (comm.rank() + 1) as f32;
        let numbers: Vec<_> = (0..SEVERAL_PIECES).map(|i| mine * (i % 127) as f32).collect();
        let mut buf = numbers.clone();
        let mut comm = comm.with(CallOptions::new().wire(Wire::INT8_BLOCK));
        comm.all_reduce(&mut buf, SUM).unwrap();
        let is_near = |i: usize, got: f32| (got - 3.0 * (i % 127) as f32).abs() < 4.0;
        assert!(buf.iter().enumerate().all(|(i, &got)| is_near(i, got)));
        let explained =
            comm.explain(ringreduce::Collective::AllReduce, SEVERAL_PIECES, DataType::F32);
        assert_eq!(explained.unwrap().travels, Some((Wire::INT8_BLOCK, 2)));
        let counts = [SEVERAL_PIECES - 100, 100];
        let mut part = vec![0.0; counts[comm.rank()]];
        comm.reduce_scatter_v(&numbers, &mut part, &counts, SUM).unwrap();
        let start = if comm.rank() == 0 { 0 } else { counts[0] };
        assert!(part.iter().enumerate().all(|(i, &got)| is_near(start + i, got)));
    });
}

/// An overflow at one rank is seen by all, at its own element, and a sum that overflows is seen.
#[test]
fn numbers_that_are_not_finite_are_nan_at_all_ranks() {
    for wire in WIRES {
        on_ranks(3, |comm| {
            let mut buf = vec![1.0_f32; 100];
            if comm.rank() == 1 {
                (buf[40], buf[99]) = (f32::INFINITY, f32::NAN);
            }
            buf[0] = 3e38;
            comm.with(CallOptions::new().wire(wire)).all_reduce(&mut buf, SUM).unwrap();
            let odd: Vec<_> = (0..100).filter(|&i| !buf[i].is_finite()).collect();
            assert_eq!(odd, [0, 40, 99], "{wire}");
            assert!((buf[41] - 3.0).abs() < 1e-4 && buf[41] == buf[60], "{wire}: {}", buf[41]);
        });
    }
}
