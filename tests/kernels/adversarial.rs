//! A search for violations of docs/numerics.md among the worst values: any bits, NaN of any
//! payload, infinities, subnormals, zeros of both signs, sums that overflow and that cancel. Where
//! the document gives the order of a fold, the bits are compared; elsewhere its bound must hold.

use harness::on_ranks;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::{CallOptions, Communicator, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use super::floats::Float;

/// The number of worlds for each type.
const SEEDS: u64 = 24;
/// Elements of a rank's block.
const BLOCK: usize = 48;

const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// Half a unit of the last place, with the loss of f32 where narrow floats pass through it.
fn unit<T: Float>() -> f64 {
    T::UNIT + if T::DIGITS < 24 { 1.5 / f64::from(1 << 24) } else { 0.0 }
}

/// The contributions of all ranks at one position.
fn column<T: Float>(random: &mut SmallRng, n: usize) -> Vec<T> {
    let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0, 1.0, T::LARGEST];
    let kind = random.random_range(0..8);
    let last = random.random_range(-1.0..1.0);
    let scale = 2_f64.powi(random.random_range(-20..20));
    let one = |rank: usize| {
        let sign = if random.random() { 1.0 } else { -1.0 };
        let part: f64 = random.random_range(0.5..1.0);
        match kind {
            0 => {
                let bytes: Vec<u8> = (0..size_of::<T>()).map(|_| random.random()).collect();
                bytemuck::pod_read_unaligned(&bytes)
            }
            1 => T::of(T::LEAST * f64::from(random.random_range(-9..10))),
            2 => T::of(T::LARGEST * sign * part),
            3 => T::of(T::LARGEST * part),
            // All contributions but the last cancel each other.
            4 if rank + 1 == n => T::of(last * scale / 64.0),
            4 => T::of(if rank.is_multiple_of(2) { scale } else { -scale }),
            5 => T::of(sign * 0.0),
            6 => T::of(specials[random.random_range(0..specials.len())]),
            _ => T::of(sign * part * 2_f64.powi(random.random_range(-7..5))),
        }
    };
    (0..n).map(one).collect()
}

/// The options of a call that concern its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Plain,
    Deterministic,
    Wide,
}

/// One call.
#[derive(Clone, Copy, Debug)]
struct Case {
    op: ReduceOp,
    /// None for the algorithm that the library chooses.
    algorithm: Option<Algorithm>,
    collective: Collective,
    /// True if the blocks of ranks differ in length.
    uneven: bool,
    numbers: Numbers,
}

fn cases(n: usize) -> Vec<Case> {
    let ring = Ring::natural(n as u32);
    let mut all: Vec<Case> = Vec::new();
    let mut add = |algorithm, collective, uneven, numbers| {
        let prefix = is_prefix(collective);
        let ops = OPS.into_iter().filter(|&op| !(prefix && op == ReduceOp::Avg));
        all.extend(ops.map(|op| Case { op, algorithm, collective, uneven, numbers }));
    };
    for collective in [Collective::AllReduce, Collective::ReduceScatter] {
        for algorithm in Algorithm::ALL.into_iter().filter(|it| it.makes(collective, &ring)) {
            add(Some(algorithm), collective, false, Numbers::Plain);
        }
        add(None, collective, false, Numbers::Deterministic);
    }
    add(None, Collective::ReduceScatter, true, Numbers::Deterministic);
    for collective in [Collective::Scan, Collective::Exscan] {
        for numbers in [Numbers::Plain, Numbers::Deterministic, Numbers::Wide] {
            add(None, collective, false, numbers);
        }
    }
    all
}

fn is_prefix(collective: Collective) -> bool {
    matches!(collective, Collective::Scan | Collective::Exscan)
}

fn call<T: Float>(comm: &mut Communicator, case: Case, mine: &[T]) -> Vec<T> {
    let (me, n) = (comm.rank(), comm.size());
    let options = CallOptions::new();
    let options = case.algorithm.map_or(options.clone(), |it| options.algorithm(it));
    let options = options.deterministic(case.numbers == Numbers::Deterministic);
    let mut comm = comm.with(options.wide(case.numbers == Numbers::Wide));
    let mut buf = mine.to_vec();
    match case.collective {
        Collective::AllReduce => comm.all_reduce(&mut buf, case.op).unwrap(),
        Collective::Scan => comm.scan(&mut buf, case.op).unwrap(),
        Collective::Exscan => comm.exscan_into(mine, &mut buf, case.op).unwrap(),
        _ if case.uneven => {
            let mut counts = vec![BLOCK; n];
            counts[0] -= 17;
            counts[n - 1] += 17;
            buf.truncate(counts[me]);
            comm.reduce_scatter_v(mine, &mut buf, &counts, case.op).unwrap();
        }
        _ => {
            buf.truncate(BLOCK);
            comm.reduce_scatter(mine, &mut buf, case.op).unwrap();
        }
    }
    buf
}

impl Case {
    /// The most roundings of a contribution.
    fn roundings(self, n: usize) -> usize {
        let up = n.next_power_of_two().ilog2() as usize;
        match self.algorithm {
            Some(Algorithm::TwoRings) => (n / 2 + 1).min(n - 1),
            Some(Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling) => up,
            Some(Algorithm::Binomial | Algorithm::Bruck) => up,
            Some(Algorithm::DoubleTree) => 2 * up,
            _ => n - 1,
        }
    }

    /// The result, where the order of ranks does not depend on the position in the buffer.
    fn expression<T: Float>(self, all: &[T]) -> Option<T> {
        let n = all.len();
        let exact = matches!(self.op, ReduceOp::Min | ReduceOp::Max);
        let is_direct = self.algorithm.is_some_and(Algorithm::is_in_shared_memory);
        if (self.numbers != Numbers::Plain || is_direct) && !exact {
            return Some(T::fold(self.op, all, Some(n)));
        }
        let step = |a, b, last: bool| T::fold(self.op, &[a, b], last.then_some(n));
        let tree = |mut level: Vec<T>| {
            while level.len() > 1 {
                let last = level.len() == 2;
                let pair = |of: &[T]| if of.len() == 2 { step(of[0], of[1], last) } else { of[0] };
                level = level.chunks(2).map(pair).collect();
            }
            level[0]
        };
        match self.algorithm {
            None | Some(Algorithm::AllPairs | Algorithm::TwoShot) => {
                let first = all[0];
                let fold = |sum, (rank, &x): (usize, &T)| step(sum, x, rank + 1 == n);
                Some(all.iter().enumerate().skip(1).fold(first, fold))
            }
            Some(Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling) => {
                let beyond = 2 * (n - (1 << n.ilog2()));
                let pairs = all[..beyond].chunks(2).map(|of| step(of[0], of[1], false));
                Some(tree(pairs.chain(all[beyond..].iter().copied()).collect()))
            }
            Some(Algorithm::Binomial) => Some(tree(all.to_vec())),
            _ => None,
        }
    }

    /// The error of a result, if it has one.
    fn fault<T: Float>(self, all: &[T], got: T) -> Option<String> {
        let wide: Vec<f64> = all.iter().map(|x| x.wide()).collect();
        let is = |want: T, why: &str| {
            let same = bytemuck::bytes_of(&want) == bytemuck::bytes_of(&got);
            let nan = want.wide().is_nan() && got.wide().is_nan();
            (!same && !nan).then(|| format!("{:e} is not {:e}, {why}", got.wide(), want.wide()))
        };
        if let Some(want) = self.expression(all) {
            return is(want, "what the order gives");
        }
        if wide.iter().any(|x| x.is_nan()) {
            return is(T::of(f64::NAN), "as one of them");
        }
        let least = wide.iter().copied().min_by(f64::total_cmp).unwrap();
        let most = wide.iter().copied().max_by(f64::total_cmp).unwrap();
        match self.op {
            ReduceOp::Min => return is(T::of(least), "the least"),
            ReduceOp::Max => return is(T::of(most), "the largest"),
            ReduceOp::Prod => return self.product(&wide, got),
            _ => {}
        }
        let infinite = wide.iter().any(|x| x.is_infinite());
        if infinite && !T::OVERFLOWS {
            return None; // An infinity becomes the largest number on its way.
        }
        if least == f64::NEG_INFINITY && most == f64::INFINITY {
            return is(T::of(f64::NAN), "both infinities");
        }
        if wide.iter().all(|&x| x == 0.0) {
            let negative = wide.iter().all(|x| x.is_sign_negative());
            return is(T::of(if negative { -0.0 } else { 0.0 }), "a sum of zeros");
        }
        let magnitude = wide.iter().map(|x| x.abs() / 4.0).sum::<f64>();
        if magnitude < T::LARGEST / 8.0 {
            return self.bound(&wide, got);
        }
        let sign = if least >= 0.0 { 1.0 } else { -1.0 };
        let one_sign = least >= 0.0 || most <= 0.0;
        if one_sign && self.op == ReduceOp::Sum && magnitude > T::LARGEST {
            return is(T::of(sign * f64::INFINITY), "an overflow");
        }
        None
    }

    /// Checks the bound: each rounding is off by at most half a unit of the rounded number.
    fn bound<T: Float>(self, wide: &[f64], got: T) -> Option<String> {
        let n = wide.len();
        let (sum, lost) = wide.iter().fold((0.0, 0.0), |(sum, lost), &x| {
            // The rounding error of an addition is a number of the same type.
            let next: f64 = sum + x;
            let back = next - sum;
            (next, lost + ((sum - (next - back)) + (x - back)))
        });
        let magnitude: f64 = wide.iter().map(|x| x.abs()).sum();
        let average = self.op == ReduceOp::Avg;
        let (scale, more) = if average { (1.0 / n as f64, 1) } else { (1.0, 0) };
        let roundings = self.roundings(n) + more;
        let grown = (roundings as f64 * unit::<T>().ln_1p()).exp_m1();
        // Sums of subnormals are exact; quotients are not.
        let below = if average { T::LEAST } else { 0.0 };
        let bound = magnitude * scale * grown * (1.0 + 1e-9) + below;
        let off = ((got.wide() - sum * scale) - lost * scale).abs();
        (off > bound).then(|| format!("off by {off:e}, more than {bound:e}"))
    }

    fn product<T: Float>(self, wide: &[f64], got: T) -> Option<String> {
        let n = wide.len();
        let magnitudes: Vec<f64> = wide.iter().map(|x| x.abs()).collect();
        let any = |what: fn(f64) -> bool| magnitudes.iter().any(|&x| what(x));
        if any(f64::is_infinite) && any(|x| x == 0.0) && T::OVERFLOWS {
            return (!got.wide().is_nan()).then(|| "zero times infinity".into());
        }
        // Every partial product is in range if those of all large and of all small numbers are.
        let extreme = |of: fn(f64) -> bool| -> f64 {
            magnitudes.iter().copied().filter(|&x| of(x)).product()
        };
        let (large, small) = (extreme(|x| x > 1.0), extreme(|x| x < 1.0));
        if large >= T::LARGEST / 4.0 || small <= 2.0 * T::LEAST / unit::<T>() {
            return None;
        }
        let product: f64 = wide.iter().product();
        let grown = ((n + 1) as f64 * unit::<T>().ln_1p()).exp_m1();
        let bound = product.abs() * (grown + n as f64 * f64::EPSILON);
        let off = (got.wide() - product).abs();
        (off > bound).then(|| format!("{:e} is not {product:e}", got.wide()))
    }
}

/// Makes every call in one world.
fn trial<T: Float>(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let n = random.random_range(2..10);
    let columns: Vec<Vec<T>> = (0..n * BLOCK).map(|_| column(&mut random, n)).collect();
    let cases = cases(n);
    let ranks = on_ranks(n, |comm| {
        let me = comm.rank();
        let mine: Vec<T> = columns.iter().map(|column| column[me]).collect();
        cases.iter().map(|&case| call(comm, case, &mine)).collect::<Vec<_>>()
    });
    for (at, case) in cases.iter().enumerate() {
        let context = format!("{} {case:?} n={n} seed={seed}", T::DTYPE);
        let of = |rank: usize| ranks[rank][at].clone();
        // Results, and the number of ranks whose contributions each contains.
        let got: Vec<(Vec<T>, usize)> = match case.collective {
            Collective::AllReduce => {
                let bits = |rank: usize| ranks[rank][at].iter().map(|it| it.wide().to_bits());
                let nan = |bits: u64| f64::from_bits(bits).is_nan();
                let same = |(a, b)| a == b || (nan(a) && nan(b));
                let like = |rank| bits(rank).zip(bits(0)).all(same);
                assert!((1..n).all(like), "ranks differ: {context}");
                vec![(of(0), n)]
            }
            Collective::Scan => (0..n).map(|rank| (of(rank), rank + 1)).collect(),
            Collective::Exscan => (1..n).map(|rank| (of(rank), rank)).collect(),
            _ => vec![((0..n).flat_map(of).collect(), n)],
        };
        for (got, upto) in got {
            assert_eq!(got.len(), columns.len());
            for (i, (got, all)) in got.into_iter().zip(&columns).enumerate() {
                if let Some(fault) = case.fault(&all[..upto], got) {
                    let all: Vec<f64> = all[..upto].iter().map(|x| x.wide()).collect();
                    panic!("{context}, element {i}: {fault}; of {all:?}");
                }
            }
        }
    }
}

macro_rules! searches {
    ($($name:ident: $float:ty;)*) => {$(
        #[test]
        fn $name() {
            (0..SEEDS).for_each(trial::<$float>);
        }
    )*};
}

searches! {
    double: f64;
    float: f32;
    half: f16;
    bfloat16: bf16;
    f8e4m3: F8E4M3;
    f8e5m2: F8E5M2;
}
