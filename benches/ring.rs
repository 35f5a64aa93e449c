//! The cost of interpreting steps: `Communicator::all_reduce` compared with a ring written by hand
//! over links of the same kind, with the same kernels and slots, in turns in one run.
//!
//! `cargo bench --bench ring -- [RANKS]` prints microseconds per call (the median of 41 turns of
//! each) and their ratio.
#![allow(clippy::expect_used, reason = "a bench ends with its first error")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ringreduce::element::Order;
use ringreduce::kernel::{self, FoldStep, Kernel};
use ringreduce::memory::{Dst, Src};
use ringreduce::partition::SlotShape;
use ringreduce::transport::{Frame, Rx, Tx, loopback};
use ringreduce::{Communicator, DataType, ReduceOp};

const SLOTS: SlotShape = SlotShape { bytes: 64 << 10, capacity: 16 };
const TURNS: usize = 41;

/// The ring without schedules: 2n-1 loops over slices.
struct ByHand {
    rank: usize,
    size: usize,
    tx: Box<dyn Tx>,
    rx: Box<dyn Rx>,
    kernel: Kernel<'static>,
    yields: bool,
}

impl ByHand {
    fn wait(&self) {
        if self.yields { std::thread::yield_now() } else { std::hint::spin_loop() }
    }

    fn filled(&mut self, frame: &Frame) {
        while !self.rx.ready(frame).expect("a link between threads") {
            self.wait();
        }
    }

    fn empty(&mut self) {
        while !self.tx.ready().expect("a link between threads") {
            self.wait();
        }
    }

    fn all_reduce(&mut self, buf: &mut [f32]) {
        let n = self.size;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(buf);
        let total = bytes.len();
        let chunk = total.div_ceil(n).next_multiple_of(64);
        let piece = SLOTS.bytes * SLOTS.capacity / 2;
        for round in 0..chunk.min(total).div_ceil(piece) {
            for hop in 0..2 * n - 1 {
                let at = (self.rank + 2 * n - 1 - hop) % n;
                let start = (chunk * at + piece * round).min(total);
                let end = (start + piece).min((chunk * (at + 1)).min(total));
                let mut from = start;
                while from < end {
                    let to = (from + SLOTS.bytes).min(end);
                    self.slice(hop, &mut bytes[from..to]);
                    from = to;
                }
            }
        }
    }

    fn slice(&mut self, hop: usize, mine: &mut [u8]) {
        let n = self.size;
        let len = mine.len();
        let frame = Frame { len: len as u32, sequence: 0, fingerprint: 0 };
        if hop > 0 {
            self.filled(&frame);
        }
        if hop < 2 * n - 2 {
            self.empty();
        }
        if hop == 0 {
            kernel::copy(self.tx.reserve(len).expect("memory for slots"), None, Src::from(&*mine));
            self.tx.commit(&frame).expect("a link between threads");
        } else if hop < n {
            let local = Src::from(&*mine);
            // SAFETY: the destination is the memory of `mine`, borrowed for this call, and may
            // coincide with the source beside it.
            let store = unsafe { Dst::new(local.ptr().cast_mut(), len) };
            let also = (hop == n - 1).then_some(store);
            let turn =
                FoldStep { is_last: hop == n - 1, order: Order::IncomingFirst, is_own: true };
            self.kernel.reduce(
                turn,
                self.tx.reserve(len).expect("memory for slots"),
                also,
                local,
                self.rx.peek(len),
            );
            self.tx.commit(&frame).expect("a link between threads");
            self.rx.release();
        } else if hop < 2 * n - 2 {
            kernel::copy(
                self.tx.reserve(len).expect("memory for slots"),
                Some(Dst::from(mine)),
                self.rx.peek(len),
            );
            self.tx.commit(&frame).expect("a link between threads");
            self.rx.release();
        } else {
            kernel::copy(Dst::from(mine), None, self.rx.peek(len));
            self.rx.release();
        }
    }
}

fn by_hand(size: usize) -> Vec<ByHand> {
    let (mut txs, mut rxs): (Vec<_>, Vec<_>) =
        (0..size).map(|_| loopback::pair(SLOTS).expect("memory for a link")).unzip();
    rxs.rotate_right(1);
    let kernel = Kernel::select(DataType::F32, ReduceOp::Sum, size).expect("sums of floats");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let links = txs.drain(..).zip(rxs).enumerate();
    links
        .map(|(rank, (tx, rx))| ByHand { rank, size, tx, rx, kernel, yields: size > cpus })
        .collect()
}

fn time(barrier: &Barrier, calls: usize, mut call: impl FnMut()) -> Duration {
    barrier.wait();
    let began = Instant::now();
    (0..calls).for_each(|_| call());
    began.elapsed()
}

fn median(mut times: Vec<Duration>, calls: usize) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6 / calls as f64
}

fn rank(mut comm: Communicator, mut hand: ByHand, barrier: &Barrier) {
    let sizes = (0..11).map(|k| (64 << 10) << k);
    for bytes in sizes {
        let mut buf = vec![0_f32; bytes / 4];
        let calls = ((4 << 20) / bytes).clamp(1, 64);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            times[0].push(time(barrier, calls, || {
                comm.all_reduce(&mut buf, ReduceOp::Sum).expect("an all-reduce of threads");
            }));
            times[1].push(time(barrier, calls, || hand.all_reduce(&mut buf)));
        }
        if comm.rank() == 0 {
            let [steps, by_hand] = times.map(|times| median(times, calls));
            println!("{bytes:>12} {steps:>12.1} {by_hand:>12.1} {:>8.3}", steps / by_hand);
        }
    }
}

fn main() {
    let size = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(2);
    println!("# {size} ranks as threads, all_reduce of float, sum, in place");
    println!("{:>12} {:>12} {:>12} {:>8}", "bytes", "steps (us)", "by hand (us)", "ratio");
    let barrier = Barrier::new(size);
    let comms = Communicator::local(size).expect("ranks as threads");
    std::thread::scope(|scope| {
        for (comm, hand) in comms.into_iter().zip(by_hand(size)) {
            let barrier = &barrier;
            scope.spawn(move || rank(comm, hand, barrier));
        }
    });
}
