//! The host kernels compared with this machine's limit for `a += b`: a plain loop over as many
//! bytes of f32 with the widest vectors. Competitors take turns; medians are printed.
//! `--all` measures every type and operation instead of the sums of floats.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel, copy};
use ringreduce::memory::{Buffer, Dst, Src};
use ringreduce::schedule::Space;
use ringreduce::{BlockFormat, DataType, ReduceOp};

const SIZES: [usize; 5] = [8, 16 << 10, 256 << 10, 1 << 20, 64 << 20];
const LINE: usize = 64;
const TURNS: usize = 41;
/// Bytes of one turn: long enough for the clock, short enough to be fair to all.
const TURN_BYTES: usize = 4 << 20;

#[inline(always)]
fn plain(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn plain_avx512(a: &mut [f32], b: &[f32]) {
    plain(a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn plain_avx2(a: &mut [f32], b: &[f32]) {
    plain(a, b);
}

/// The plain loop with the widest vectors of this machine.
fn limit(a: &mut [f32], b: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vl") {
        // SAFETY: the CPU has this instruction set.
        return unsafe { plain_avx512(a, b) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has this instruction set.
        return unsafe { plain_avx2(a, b) };
    }
    plain(a, b);
}

/// Bytes that begin a cache line.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(len: usize) -> Self {
        // The byte is part of an ordinary number in every type.
        let bytes = vec![0x3c; len + LINE];
        let start = bytes.as_ptr().align_offset(LINE);
        Self(bytes, start)
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + len]
    }
}

/// The memory that all competitors share, so that none has better addresses.
struct Memory {
    local: Aligned,
    incoming: Aligned,
    also: Aligned,
    len: usize,
}

/// The median seconds of each competitor.
fn race<const N: usize>(len: usize, competitors: [&dyn Fn(&mut Memory); N]) -> [f64; N] {
    let [local, incoming, also] = [(); 3].map(|()| Aligned::new(len));
    let mut memory = Memory { local, incoming, also, len };
    let repeats = (TURN_BYTES / len).clamp(1, 10_000);
    let mut seconds = [const { Vec::new() }; N];
    for _ in 0..TURNS {
        for (run, seconds) in competitors.iter().zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..repeats {
                run(black_box(&mut memory));
            }
            seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
        }
    }
    seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[TURNS / 2]
    })
}

fn reduce(kernel: &Kernel<'_>, memory: &mut Memory, both: bool) {
    let all = 0..memory.len;
    let incoming = Src::from(&*memory.incoming.get(memory.len));
    let also = Buffer::in_place(memory.also.get(memory.len));
    let local = Buffer::in_place(memory.local.get(memory.len));
    let second = both.then(|| also.dst(Space::Output, all.clone()));
    let turn = FoldStep { is_last: true, order: Order::IncomingFirst, is_own: true };
    let (out, mine) = (local.dst(Space::Output, all.clone()), local.src(Space::Output, all));
    kernel.reduce(turn, out, second, mine, incoming);
}

fn measure(len: usize, name: &str, op: ReduceOp, kernel: Option<Kernel<'_>>) {
    let Some(kernel) = kernel else { return };
    let [limit, ours, both] = race(
        len,
        [
            &|memory| {
                let a = bytemuck::cast_slice_mut(memory.local.get(memory.len));
                limit(a, bytemuck::cast_slice(memory.incoming.get(memory.len)));
            },
            &|memory| reduce(&kernel, memory, false),
            &|memory| reduce(&kernel, memory, true),
        ],
    );
    let speed = |seconds: f64| len as f64 / seconds / 1e9;
    println!(
        "{len:>10} {name:>12} {op:>5} {:>9.2} {:>9.2} {:>6.3} {:>9.2} {:>9.1}",
        speed(ours),
        speed(limit),
        limit / ours,
        speed(both),
        ours * 1e9
    );
}

fn measure_copies(len: usize) {
    let seconds = race(
        len,
        [
            &|memory| {
                let from = Src::from(&*memory.incoming.get(memory.len));
                copy(memory.local.get(memory.len).into(), None, from);
            },
            &|memory| {
                let from = Src::from(&*memory.incoming.get(memory.len));
                let also = Some(memory.also.get(memory.len).into());
                copy(memory.local.get(memory.len).into(), also, from);
            },
            &|memory| {
                let from = Src::from(&*memory.incoming.get(memory.len));
                let out: Dst<'_> = memory.local.get(memory.len).into();
                copy(out.streaming(true), None, from);
            },
        ],
    );
    let [one, two, streaming] = seconds.map(|seconds| len as f64 / seconds / 1e9);
    println!("{len:>10} {one:>9.2} {two:>9.2} {streaming:>9.2}");
}

/// The fold of as many sources as fit the length into as many outputs, which are the sources: GB/s
/// of all bytes read and written, beside that of plain copies of as many bytes.
fn measure_folds(len: usize, dtype: DataType, ranks: usize) {
    let Some(kernel) = Kernel::select(dtype, ReduceOp::Sum, ranks) else { return };
    let part = len / ranks / LINE * LINE;
    let fold = |memory: &mut Memory, streaming: bool| {
        let buffer = Buffer::in_place(memory.local.get(memory.len));
        let parts = (0..ranks).map(|rank| rank * part..(rank + 1) * part);
        let sources: Vec<Src<'_>> =
            parts.clone().map(|part| buffer.src(Space::Output, part)).collect();
        let mut outs: Vec<Dst<'_>> =
            parts.map(|part| buffer.dst(Space::Output, part).streaming(streaming)).collect();
        kernel.fold(true, &mut outs, &sources);
    };
    let [copied, near, past] = race(
        len,
        [
            &|memory| {
                let from = Src::from(&*memory.incoming.get(memory.len));
                copy(memory.local.get(memory.len).into(), None, from);
            },
            &|memory| fold(memory, false),
            &|memory| fold(memory, true),
        ],
    );
    let speed = |seconds: f64| 2.0 * len as f64 / seconds / 1e9;
    println!(
        "{len:>10} {dtype:>9} {ranks:>5} {:>9.2} {:>9.2} {:>9.2}",
        speed(near),
        speed(past),
        speed(copied)
    );
}

fn main() {
    let all = std::env::args().any(|argument| argument == "--all");
    println!("GB/s of one buffer; `both` also stores to a second output; ns is one call of ours");
    println!(
        "{:>10} {:>12} {:>5} {:>9} {:>9} {:>6} {:>9} {:>9}",
        "bytes", "type", "op", "ours", "limit", "ratio", "both", "ns"
    );
    for len in SIZES {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                let float = matches!(dtype, DataType::F32 | DataType::F16 | DataType::BF16);
                if all || (float && op == ReduceOp::Sum) {
                    measure(len, dtype.name(), op, Kernel::select(dtype, op, 4));
                }
            }
        }
        // The bytes are those of blocks, which have 28 % of the bytes of their numbers.
        let blocks = len / BlockFormat::BYTES * BlockFormat::BYTES;
        for format in BlockFormat::ALL.into_iter().filter(|_| blocks > 0) {
            let kernel = Kernel::for_blocks(format, ReduceOp::Sum, 4);
            measure(blocks, format.name(), ReduceOp::Sum, kernel);
        }
    }
    println!("\n{:>10} {:>9} {:>9} {:>9}", "bytes", "copy", "both", "streaming");
    SIZES.into_iter().for_each(measure_copies);
    println!(
        "\n{:>10} {:>9} {:>5} {:>9} {:>9} {:>9}",
        "bytes", "type", "ranks", "fold", "past", "copy"
    );
    for len in &SIZES[1..] {
        for dtype in [DataType::F32, DataType::BF16, DataType::F16, DataType::F8E4M3] {
            for ranks in [2, 4, 8] {
                measure_folds(*len, dtype, ranks);
            }
        }
    }
}
