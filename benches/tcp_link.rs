//! The speed of a TCP link over loopback, by slot size, capacity and number of sockets: slots in
//! one direction, in both directions (as in a ring of two), and one slot back and forth.
//! `cargo bench --bench tcp_link [-- SPINS]` sets the polls of a link before the thread sleeps.
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ringreduce::partition::SlotShape;
use ringreduce::transport::{Frame, Rx, Tx, tcp};

const LIMIT: Duration = Duration::from_millis(100);
const BYTES: usize = 64 << 20;

fn link(shape: SlotShape, sockets: usize, settings: &tcp::Settings) -> (tcp::Tx, tcp::Rx) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let pair = |_| {
        let to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let from = listener.accept().unwrap().0;
        tcp::tune(&to, settings).unwrap();
        tcp::tune(&from, settings).unwrap();
        (to, from)
    };
    let (to, from) = (0..sockets).map(pair).unzip();
    (tcp::Tx::new(to, shape).unwrap(), tcp::Rx::new(from, shape).unwrap())
}

/// One end of a measurement: its links, and the polls before it sleeps.
struct End {
    tx: Option<tcp::Tx>,
    rx: Option<tcp::Rx>,
    spins: u32,
}

impl End {
    fn send(&mut self, frame: &Frame, fill: u8) {
        let Some(tx) = &mut self.tx else { return };
        let mut spins = 0;
        while !tx.ready().unwrap() {
            spins += 1;
            if spins > self.spins {
                tx.park(LIMIT, &[]);
            }
        }
        let mut slot = tx.reserve(frame.len as usize);
        // SAFETY: the view is valid for its length and exclusively lent.
        unsafe { slot.ptr().write_bytes(fill, slot.len()) };
        tx.commit(frame).unwrap();
    }

    fn receive(&mut self, frame: &Frame) -> u8 {
        let Some(rx) = &mut self.rx else { return 0 };
        let mut spins = 0;
        while !rx.ready(frame).unwrap() {
            let outgoing = self.tx.as_mut().and_then(|tx| {
                tx.flush().unwrap();
                tx.outgoing()
            });
            spins += 1;
            if spins > self.spins {
                rx.park(LIMIT, outgoing.as_slice());
            }
        }
        let slot = rx.peek(frame.len as usize);
        // SAFETY: the view is valid for its length, and lent until the release below.
        let bytes = unsafe { std::slice::from_raw_parts(slot.ptr(), slot.len()) };
        let sum = bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
        rx.release();
        sum
    }

    /// Sends and receives `slots` slots; at most `ahead` more are sent than were received.
    fn walk(&mut self, slots: usize, ahead: usize, frame: &Frame) {
        for slot in 0..slots + ahead {
            if slot < slots {
                self.send(frame, slot as u8);
            }
            if slot >= ahead {
                std::hint::black_box(self.receive(frame));
            }
        }
        while self.tx.as_mut().is_some_and(|tx| !tx.flush().unwrap()) {
            self.tx.as_mut().unwrap().park(LIMIT, &[]);
        }
    }
}

/// The CPU seconds of this process, which a loaded machine distorts less than elapsed time.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = stat.rsplit(')').next().unwrap().split(' ').skip(12).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// The seconds of two ends, the best of three runs.
fn time(mut one: End, mut other: End, slots: usize, ahead: usize, frame: Frame, turn: bool) -> f64 {
    let far = thread::spawn(move || {
        for _ in 0..3 {
            for _ in 0..if turn { slots } else { 0 } {
                other.receive(&frame);
                other.send(&frame, 1);
            }
            other.walk(if turn { 0 } else { slots }, ahead, &frame);
        }
        other
    });
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        for _ in 0..if turn { slots } else { 0 } {
            one.send(&frame, 1);
            one.receive(&frame);
        }
        one.walk(if turn { 0 } else { slots }, ahead, &frame);
        best = best.min(start.elapsed().as_secs_f64());
    }
    drop(far.join().unwrap());
    best
}

fn main() {
    let spins = std::env::args().filter_map(|a| a.parse().ok()).next_back().unwrap_or(1000);
    let env = |name: &str| std::env::var(name).ok();
    let settings = tcp::Settings {
        congestion: env("CONGESTION"),
        buffer: env("BUFFER").and_then(|bytes| bytes.parse().ok()),
    };
    let end = |tx, rx| End { tx, rx, spins };
    println!("{spins} looks before sleeping, {settings:?}");
    println!(
        "slot KiB  capacity  sockets  one way GB/s  both ways GB/s  per CPU GB/s  there and back us"
    );
    for (bytes, capacity) in
        [(64, 16), (128, 4), (128, 8), (128, 16), (256, 4), (256, 8), (512, 4), (1024, 4)]
    {
        for sockets in [1, 2] {
            let shape = SlotShape { bytes: bytes << 10, capacity };
            let frame = Frame { len: shape.bytes as u32, sequence: 0, fingerprint: 0 };
            let slots = BYTES / shape.bytes;
            let moved = BYTES as f64 / 1e9;
            let (tx, rx) = link(shape, sockets, &settings);
            let one_way =
                time(end(Some(tx), None), end(None, Some(rx)), slots, capacity / 2, frame, false);
            let pair = || {
                let (there, back) =
                    (link(shape, sockets, &settings), link(shape, sockets, &settings));
                (end(Some(there.0), Some(back.1)), end(Some(back.0), Some(there.1)))
            };
            let (one, other) = pair();
            let before = cpu();
            let both = time(one, other, slots, capacity / 2, frame, false);
            let per_cpu = 6.0 * moved / (cpu() - before);
            let (one, other) = pair();
            let small = Frame { len: 8, ..frame };
            let turn = time(one, other, 2000, 0, small, true) / 2000.0 * 1e6;
            println!(
                "{bytes:8} {capacity:8} {sockets:7}  {:12.2}  {:14.2}  {per_cpu:12.2}  {turn:14.1}",
                moved / one_way,
                2.0 * moved / both,
            );
        }
    }
}
