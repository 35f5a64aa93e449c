//! Reductions of many operands: every level equals the scalar one, outputs may be sources, and
//! where nothing is rounded on the way a fold equals reductions of two, one after the other.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel, Level};
use ringreduce::memory::{Buffer, Dst, Src};
use ringreduce::schedule::Space;
use ringreduce::{DataType, Element, Reduction};

use harness::guarded::{Guarded, LINE, random_bytes, reductions};

fn scalar_fold(
    dtype: DataType,
    by: Reduction,
    world: usize,
    last: bool,
    sources: &[Vec<u8>],
) -> Vec<u8> {
    let mut out = vec![0; sources[0].len()];
    let views: Vec<Src<'_>> = sources.iter().map(|source| Src::from(&source[..])).collect();
    let kernel = Kernel::select_for(Level::Scalar, dtype, by, world).unwrap();
    kernel.fold(last, &mut [Dst::from(&mut out[..])], &views);
    out
}

/// The outputs: one apart, or also the first or the last source; past the cache or not.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Apart,
    First,
    Last,
    Both,
    Streaming,
    StreamingAndFirst,
}

const LAYOUTS: [Layout; 6] = [
    Layout::Apart,
    Layout::First,
    Layout::Last,
    Layout::Both,
    Layout::Streaming,
    Layout::StreamingAndFirst,
];

fn check_layout(
    kernel: Kernel<'_>,
    layout: Layout,
    last: bool,
    sources: &[Vec<u8>],
    expected: &[u8],
    (dtype, context, random): (DataType, &str, &mut SmallRng),
) {
    let len = expected.len();
    let mut inputs: Vec<Guarded> =
        sources.iter().map(|s| Guarded::new(s, random.random_range(0..=LINE))).collect();
    let mut out = Guarded::new(&vec![0; len], random.random_range(0..=LINE));
    let tail = inputs.len() - 1;
    let written: &[usize] = match layout {
        Layout::Apart | Layout::Streaming => &[],
        Layout::First | Layout::StreamingAndFirst => &[0],
        Layout::Last => &[tail],
        Layout::Both => &[tail, 0],
    };
    {
        let buffers: Vec<Buffer<'_>> = inputs.iter_mut().map(Guarded::buffer).collect();
        let to = out.buffer();
        let streaming = matches!(layout, Layout::Streaming | Layout::StreamingAndFirst);
        let mut outs = vec![to.dst(Space::Output, 0..len).streaming(streaming)];
        outs.extend(written.iter().map(|&at| buffers[at].dst(Space::Output, 0..len)));
        let views: Vec<Src<'_>> =
            buffers.iter().map(|buffer| buffer.src(Space::Output, 0..len)).collect();
        kernel.fold(last, &mut outs, &views);
    }
    out.assert_is(expected, dtype, context);
    for (at, (input, source)) in inputs.iter().zip(sources).enumerate() {
        let content = if written.contains(&at) { expected } else { &source[..] };
        input.assert_is(content, dtype, context);
    }
}

fn check_type<T: Element>() {
    let dtype = T::DTYPE;
    let mut random = SmallRng::seed_from_u64(100 + dtype as u64);
    for by in reductions::<T>(&mut random) {
        for count in (0..=20).chain([63, 64, 65, 127, 1000, 4099]) {
            let ranks = [1, 2, 3, 5, 8][random.random_range(0..5)];
            let world = ranks + [0, 3, 1000][random.random_range(0..3)];
            let last = random.random();
            let sources: Vec<_> =
                (0..ranks).map(|_| random_bytes(count, dtype, &mut random)).collect();
            let expected = scalar_fold(dtype, by, world, last, &sources);
            for level in Level::available() {
                let kernel = Kernel::select_for(level, dtype, by, world).unwrap();
                for layout in LAYOUTS {
                    let context =
                        format!("{level:?} {dtype} {by} {layout:?}, {ranks} x {count}, {last}");
                    let context = (dtype, &context[..], &mut random);
                    check_layout(kernel, layout, last, &sources, &expected, context);
                }
            }
        }
    }
}

/// The fold by reductions of two: each result is the left operand of the next one.
fn by_pairs(dtype: DataType, by: Reduction, world: usize, sources: &[Vec<u8>]) -> Vec<u8> {
    let kernel = Kernel::select_for(Level::Scalar, dtype, by, world).unwrap();
    let mut left = sources[0].clone();
    kernel.contribute(Dst::from(&mut left[..]), None, Src::from(&sources[0][..]));
    for (at, source) in sources.iter().enumerate().skip(1) {
        let turn = FoldStep {
            is_last: at + 1 == sources.len(),
            order: Order::IncomingFirst,
            is_own: true,
        };
        let mut out = vec![0; left.len()];
        let (local, incoming) = (Src::from(&source[..]), Src::from(&left[..]));
        kernel.reduce(turn, Dst::from(&mut out[..]), None, local, incoming);
        left = out;
    }
    left
}

fn check_pairs<T: Element>() {
    let mut random = SmallRng::seed_from_u64(200 + T::DTYPE as u64);
    for by in reductions::<T>(&mut random) {
        for ranks in [2, 3, 7] {
            let sources: Vec<_> =
                (0..ranks).map(|_| random_bytes(1000, T::DTYPE, &mut random)).collect();
            let folded = Guarded::new(&scalar_fold(T::DTYPE, by, ranks, true, &sources), 0);
            let context = format!("{} {by} of {ranks}", T::DTYPE);
            folded.assert_is(&by_pairs(T::DTYPE, by, ranks, &sources), T::DTYPE, &context);
        }
    }
}

harness::each_type!(fold_equals_scalar: check_type);

// Types without a wider intermediate type, for which a fold saves no roundings.
harness::each_type! { fold_equals_pairs: check_pairs;
    i8: i8, u64: u64, f32: f32, f64: f64,
    c64: ringreduce::Complex<f32>, c128: ringreduce::Complex<f64>,
    loc_f32: ringreduce::LocF32, loc_i64: ringreduce::LocI64,
}

#[test]
fn sources_that_do_not_fit_are_refused() {
    let refused = |outs: &[usize], sources: &[usize]| {
        let mut outs: Vec<Vec<u8>> = outs.iter().map(|&len| vec![0; len]).collect();
        let sources: Vec<Vec<u8>> = sources.iter().map(|&len| vec![0; len]).collect();
        std::panic::catch_unwind(move || {
            let mut outs: Vec<_> = outs.iter_mut().map(|out| Dst::from(&mut out[..])).collect();
            let sources: Vec<_> = sources.iter().map(|s| Src::from(&s[..])).collect();
            let kernel = Kernel::select(DataType::F32, ringreduce::ReduceOp::Sum, 2).unwrap();
            kernel.fold(false, &mut outs, &sources);
        })
        .is_err()
    };
    assert!(!refused(&[8, 8], &[8, 8, 8]));
    assert!(refused(&[8, 4], &[8, 8]));
    assert!(refused(&[8], &[8, 4]));
    assert!(refused(&[], &[8, 8]));
    assert!(refused(&[8], &[]));
    assert!(refused(&[6], &[6, 6]), "a part of an element");
}
