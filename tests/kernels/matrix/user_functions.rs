//! Functions of the caller, by every algorithm: commutative ones, over elements whose size divides
//! neither slots nor chunks, and ones that are only associative.

use bytemuck::{Pod, Zeroable};
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::{Communicator, FoldOrder};

use super::table::{LONG, STAGE, options};

/// 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Span {
    low: i64,
    high: i64,
    sum: i64,
}

fn span(rank: usize, i: usize) -> Span {
    let value = ((rank * 37 + i * 11) % 101) as i64;
    Span { low: value, high: value, sum: value + i as i64 }
}

fn join(a: &Span, b: &Span) -> Span {
    Span { low: a.low.min(b.low), high: a.high.max(b.high), sum: a.sum + b.sum }
}

/// x -> a x + b; two such functions, one after the other, are a third one.
type Line = [u32; 2];

fn line(rank: usize, i: usize) -> Line {
    [(2 * rank + 3) as u32, (rank * 1000 + i) as u32]
}

/// The left function, then the right one.
fn then(left: &Line, right: &Line) -> Line {
    let [a, b] = *left;
    let [c, d] = *right;
    [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)]
}

/// Makes both verbs with one function and compares with a fold from rank 0 on.
fn check<T: Pod + PartialEq + std::fmt::Debug>(
    comm: &mut Communicator,
    way: (Option<Algorithm>, FoldOrder),
    count: usize,
    of: fn(usize, usize) -> T,
    by: fn(&T, &T) -> T,
) {
    let (n, me, (algorithm, order)) = (comm.size(), comm.rank(), way);
    let mut comm = comm.with(options(algorithm));
    let ring = Ring::natural(n as u32);
    let all = |i| (1..n).fold(of(0, i), |left, rank| by(&left, &of(rank, i)));
    let want: Vec<T> = (0..n * count).map(all).collect();
    let send: Vec<T> = (0..n * count).map(|i| of(me, i)).collect();
    let is_made = |collective, elements: usize| {
        let is_direct = algorithm == Some(Algorithm::Direct);
        let fits =
            if is_direct { elements * size_of::<T>() <= STAGE } else { elements <= 2 * LONG };
        fits && algorithm.is_none_or(|it| it.makes(collective, &ring))
    };
    if is_made(Collective::AllReduce, count) {
        let mut buf = send[..count].to_vec();
        comm.all_reduce_by(&mut buf, order, by).unwrap();
        assert!(buf == want[..count], "all_reduce {way:?} n={n} me={me} {count}");
    }
    if is_made(Collective::ReduceScatter, n * count) {
        let mut part = vec![T::zeroed(); count];
        comm.reduce_scatter_by(&send, &mut part, order, by).unwrap();
        let mine = me * count..(me + 1) * count;
        assert!(part == want[mine], "reduce_scatter {way:?} n={n} me={me} {count}");
    }
}

/// Every algorithm; in the order of ranks those that keep that order, or keep it on request.
pub(crate) fn walk(comm: &mut Communicator, counts: &[usize]) {
    for (&count, algorithm) in counts.iter().flat_map(|count| Algorithm::ALL.map(|a| (count, a))) {
        check(comm, (Some(algorithm), FoldOrder::Any), count, span, join);
        if algorithm.in_rank_order() {
            check(comm, (Some(algorithm), FoldOrder::Any), count, line, then);
        }
        if algorithm.folds_left(Collective::AllReduce) {
            check(comm, (Some(algorithm), FoldOrder::Ranks), count, line, then);
        }
    }
    for &count in counts.iter().chain(&[LONG]) {
        check(comm, (None, FoldOrder::Any), count, span, join);
        check(comm, (None, FoldOrder::Ranks), count, line, then);
    }
}
