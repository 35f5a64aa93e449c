//! Folds of every type and reduction, with many sources, lengths, alignments and layouts.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel, Level};
use ringreduce::memory::{Dst, Src};
use ringreduce::{DataType, Element, ReduceOp, Reduction};

use super::host::{Call, Grid, Host, Machine};
use super::names::{KernelChoice, KernelReduction, KernelScalar, kernel_for};
use harness::guarded::{Guarded, parts, random_bytes};
use harness::share;

/// A reduction, by its kernel and by the host.
pub(crate) struct Case {
    pub(crate) dtype: DataType,
    pub(crate) serves: KernelChoice,
    pub(crate) wanted: KernelReduction,
    by: Reduction,
    scalar: Option<[u8; 16]>,
}

impl Case {
    /// Every reduction that is defined for a type, with random factors.
    pub(crate) fn all<T: Element>(random: &mut SmallRng) -> Vec<Self> {
        let dtype = T::DTYPE;
        let factor = random_bytes(1, dtype, random);
        let scaled = Reduction::premul_sum::<T>(bytemuck::pod_read_unaligned(&factor));
        let plain =
            ReduceOp::ALL.into_iter().map(|op| (KernelReduction::Plain(op), Reduction::from(op)));
        let all = plain
            .chain([(KernelReduction::PreMulSum, scaled), (KernelReduction::PreMulStep, scaled)]);
        let padded = |bytes: &[u8]| {
            let mut all = [0; 16];
            all[..bytes.len()].copy_from_slice(bytes);
            all
        };
        let case = |(wanted, by)| {
            let serves = kernel_for(dtype, wanted)?;
            let scalar = match serves.scalar {
                KernelScalar::Nothing => None,
                KernelScalar::Factor => Some(padded(&factor)),
                KernelScalar::One(bits) => Some(padded(&bits.to_le_bytes())),
            };
            Some(Self { dtype, serves, wanted, by, scalar })
        };
        all.filter_map(case).collect()
    }

    /// The host's result; `last` is the kernel's argument.
    fn expected(&self, last: usize, sources: &[&[u8]]) -> Vec<u8> {
        let kernel = Kernel::select_for(Level::Scalar, self.dtype, self.by, last.max(1)).unwrap();
        let mut out = vec![0; sources[0].len()];
        let views: Vec<Src<'_>> = sources.iter().map(|&source| Src::from(source)).collect();
        if self.wanted == KernelReduction::PreMulStep {
            let turn = FoldStep { is_last: last > 0, order: Order::IncomingFirst, is_own: true };
            kernel.reduce(turn, Dst::from(&mut out[..]), None, views[1], views[0]);
        } else {
            kernel.fold(last > 0, &mut [Dst::from(&mut out[..])], &views);
        }
        out
    }

    /// Makes the call, and compares all memory.
    pub(crate) fn check(
        &self,
        by: &mut impl Machine,
        layout: &Layout,
        (count, last, grid): (usize, usize, Grid),
        memory: &[u8],
    ) {
        let size = self.dtype.size();
        let &Layout { ref sources, ref outs, at, stop, .. } = layout;
        let range = |place: usize| -> Range<usize> { place..place + count * size };
        let given: Vec<&[u8]> =
            sources.iter().map(|&place| &memory[range(place + at[0])]).collect();
        let expected = self.expected(last, &given);
        let call = Call {
            kernel: &self.serves.kernel,
            sources,
            outs,
            at,
            count: count * self.serves.elements,
            last,
            scalar: self.scalar,
            stop,
            grid,
        };
        let mut made = memory.to_vec();
        by.call(&call, &mut made);
        let context = format!("{:?} of {} by {call:?}", self.wanted, self.dtype);
        let mut all = memory.to_vec();
        let written = if stop == Some(1) { &[][..] } else { &outs[..] };
        for place in written.iter().map(|place| range(place + at[1])) {
            let out = &made[place.clone()];
            Guarded::new(out, 0).assert_is(&expected, self.dtype, &context);
            // The bits of a NaN are unspecified.
            all[place].copy_from_slice(out);
        }
        let stray = made.iter().zip(&all).position(|(made, all)| made != all);
        assert_eq!(stray, None, "{context}: written outside the outputs");
    }
}

/// The distances of places from multiples of 16.
#[derive(Clone, Copy)]
enum Aligned {
    All,
    /// One distance, of whole numbers.
    Equal,
    /// A distance of whole numbers for each.
    Numbers,
    /// A distance of bytes for each.
    Bytes,
    /// One distance for all but one.
    ButOne,
}

const ALIGNED: [Aligned; 5] =
    [Aligned::All, Aligned::Equal, Aligned::Numbers, Aligned::Bytes, Aligned::ButOne];

/// Places of `n` buffers of `len` bytes, with gaps between them.
fn places(
    n: usize,
    len: usize,
    aligned: Aligned,
    number: usize,
    random: &mut SmallRng,
) -> Vec<usize> {
    let stride = (len + 127) / 64 * 64;
    let equal = random.random_range(0..16 / number) * number;
    let odd = random.random_range(0..n);
    let shift = |i: usize, random: &mut SmallRng| match aligned {
        Aligned::All => 0,
        Aligned::Equal => equal,
        Aligned::Numbers => random.random_range(0..16 / number) * number,
        Aligned::Bytes => random.random_range(0..16),
        Aligned::ButOne => {
            if i == odd {
                (equal + number) % 16
            } else {
                equal
            }
        }
    };
    (0..n).map(|i| 64 + i * stride + shift(i, random)).collect()
}

/// Outputs apart from the sources, or sources that are outputs too.
fn outs_of(sources: &[usize], apart: &[usize], random: &mut SmallRng) -> Vec<usize> {
    match random.random_range(0..5) {
        0 => apart[..1].to_vec(),
        1 => apart.to_vec(),
        2 => sources[..1].to_vec(),
        3 => vec![*sources.last().unwrap(), apart[0]],
        _ => sources.to_vec(),
    }
}

/// Places, offsets and flags of a call.
pub(crate) struct Layout {
    pub(crate) sources: Vec<usize>,
    pub(crate) outs: Vec<usize>,
    pub(crate) at: [usize; 2],
    pub(crate) stop: Option<u8>,
    /// The length of the memory.
    pub(crate) bytes: usize,
}

impl Layout {
    /// For `n` sources of `len` bytes, whose numbers have `number` bytes.
    pub(crate) fn random(n: usize, len: usize, number: usize, random: &mut SmallRng) -> Self {
        let aligned = ALIGNED[random.random_range(0..ALIGNED.len())];
        let all = places(n + 2, len, aligned, number, random);
        let (sources, apart) = all.split_at(n);
        let outs = outs_of(sources, apart, random);
        let at = 16 * random.random_range(0..3);
        let elsewhere = outs.iter().all(|out| apart.contains(out)) && random.random();
        let at = [at, if elsewhere { random.random_range(0..=32) } else { at }];
        let stop = [None, Some(0), Some(0), Some(1)][random.random_range(0..4)];
        let bytes = all.last().unwrap() + 32 + len + 64;
        Self { sources: sources.to_vec(), outs, at, stop, bytes }
    }
}

fn check_type<T: Element>() {
    let (dtype, size) = (T::DTYPE, size_of::<T>());
    let Some(mut host) = Host::start(&format!("cuda_kernels::fold::{dtype}")) else { return };
    let mut random = SmallRng::seed_from_u64(300 + dtype as u64);
    let number = parts(dtype)[0].size();
    for case in Case::all::<T>(&mut random) {
        // More sources than a block keeps in shared memory.
        let many = [0, 7, 33].map(|count| (66, count));
        let few = (1..=9).flat_map(|n| (0..).zip(COUNTS).map(move |(at, count)| (at, n, count)));
        // A share has each number of sources with every third length, and each length.
        let few = few.filter(|(at, n, _)| share::has(at + *n as u64 + dtype as u64, 5));
        for (n, count) in few.map(|(_, n, count)| (n, count)).chain(many) {
            let n = if case.wanted == KernelReduction::PreMulStep { 2 } else { n };
            let layout = Layout::random(n, count * size, number, &mut random);
            let memory = random_bytes(layout.bytes.div_ceil(size), dtype, &mut random);
            let last = [0, n, n + 1000, 65_537, (1 << 31) - 1, 1 << 31][random.random_range(0..6)];
            let threads = [1, 2, 8, 32][random.random_range(0..4)];
            let grid = Grid { threads, blocks: random.random_range(1..4), rows: 1 };
            case.check(&mut host, &layout, (count, last, grid), &memory);
        }
    }
}

/// No element, one, less than a vector, less than a tile, some tiles and a tail.
const COUNTS: [usize; 9] = [0, 1, 3, 7, 16, 33, 127, 500, 1031];

harness::each_type!(as_on_the_host: check_type);
