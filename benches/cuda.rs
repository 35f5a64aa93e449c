//! How fast the CUDA kernels are on this machine's first device: folds of several types by the
//! number of sources, outputs and blocks, beside the driver's own copy and `rr_move`.
//! `cargo bench --bench cuda [-- --bytes N] [--quick]`: N bytes of each source, or 64 MiB;
//! `--quick` is for the stand-in, and is no measurement. Each line is printed once it is measured.
//! GB/s count every byte that is read and every byte that is written.
#![allow(dead_code, reason = "cuda_facts, whose modules these are, uses all of them")]

#[path = "cuda_facts/driver.rs"]
mod driver;
#[path = "cuda_facts/memory.rs"]
mod memory;

use std::process::ExitCode;
use std::time::Instant;

use cudarc::driver::sys::{CUdeviceptr, CUevent, CUfunction, CUstream};
use driver::{Answer, THREADS};
use memory::Host;

const BLOCKS: [u32; 4] = [66, 132, 264, 528];
/// The most sources; an output of its own lies behind them.
const SOURCES: usize = 8;

/// Kernels, and bytes of their elements.
const FOLDS: [(&str, usize); 10] = [
    ("f32_sum", 4),
    ("f64_sum", 8),
    ("f16_sum", 2),
    ("bf16_sum", 2),
    ("e4m3_sum", 1),
    ("e5m2_sum", 1),
    ("f32_max", 4),
    ("u8_sum", 1),
    ("u32_sum", 4),
    ("i32_max", 4),
];

struct Options {
    bytes: usize,
    /// Launches between two events, and the number of such pairs.
    launches: u32,
    samples: usize,
    blocks: &'static [u32],
}

impl Options {
    fn read() -> Answer<Self> {
        let mut options = Self { bytes: 64 << 20, launches: 4, samples: 11, blocks: &BLOCKS };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                // Cargo adds this word.
                "--bench" => {}
                "--quick" => {
                    let blocks = &BLOCKS[..1];
                    options = Self { bytes: 16 << 10, launches: 1, samples: 1, blocks };
                }
                "--bytes" => {
                    let value = words.next().ok_or("--bytes of what?")?;
                    let bytes = value.parse::<usize>().ok();
                    let fits = bytes.filter(|&bytes| bytes > 0 && bytes.is_multiple_of(256));
                    options.bytes = fits.ok_or("--bytes takes a multiple of 256")?;
                }
                _ => return Err(format!("unknown option {word}: --bytes N, --quick")),
            }
        }
        Ok(options)
    }
}

/// The first device, with one allocation for all sources and an output.
struct Device {
    stream: CUstream,
    memory: CUdeviceptr,
    /// Addresses of two copies of the tables: in the device's memory, and in pinned memory.
    tables: [CUdeviceptr; 2],
    pinned: Host,
    events: [CUevent; 2],
}

impl Device {
    fn new(bytes: usize) -> Answer<Self> {
        let (all, pinned) = ((SOURCES + 1) * bytes, Host::pinned(4096)?);
        let memory = memory::allocate(all)?;
        memory::fill(memory, 0x0101_0101, all / 4)?;
        let tables = [memory::allocate(4096)?, pinned.device()?];
        let events = [driver::event(true)?, driver::event(true)?];
        Ok(Self { stream: driver::stream()?, memory, tables, pinned, events })
    }

    /// Both tables get these words.
    fn write(&self, words: &[u64]) -> Answer {
        driver::synchronize(self.stream)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.pinned.store(&bytes);
        memory::upload(self.tables[0], &bytes, self.stream)
    }

    /// The median of the seconds that one call of `work` takes.
    fn time(&self, options: &Options, mut work: impl FnMut() -> Answer) -> Answer<f64> {
        let [from, to] = self.events;
        let mut sample = || {
            driver::record(from, self.stream)?;
            for _ in 0..options.launches {
                work()?;
            }
            driver::record(to, self.stream)?;
            driver::synchronize(self.stream)?;
            Ok(driver::between(from, to)? / f64::from(options.launches))
        };
        sample()?;
        let samples: Answer<Vec<f64>> = (0..options.samples).map(|_| sample()).collect();
        let mut samples = samples?;
        samples.sort_by(f64::total_cmp);
        Ok(samples[samples.len() / 2].max(1e-9))
    }
}

/// A kernel; prints how long loading it took.
fn load(name: &str) -> Answer<CUfunction> {
    let began = Instant::now();
    let kernel = driver::kernel(name)?;
    println!("{name}: loaded in {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    Ok(kernel)
}

struct Bench {
    options: Options,
    device: Device,
    /// Bytes of a copy by the driver, and bytes per second.
    copies: Vec<(usize, f64)>,
}

impl Bench {
    /// Prints a line of the table, with the share of the rate of the driver's copy.
    fn print(&self, what: &str, [sources, outs]: [usize; 2], blocks: u32, seconds: f64) {
        let moved = (sources + outs) * self.options.bytes;
        let rate = moved as f64 / seconds;
        let fair = self.copies.iter().rev().find(|(bytes, _)| 2 * bytes <= moved);
        let copy = fair.or(self.copies.first()).map_or(rate, |copy| copy.1);
        let (us, rate, of_copy) = (seconds * 1e6, rate / 1e9, rate / copy * 100.0);
        print!("{what:<18} {sources:>7} {outs:>4} {blocks:>6} ");
        println!("{us:>9.1} {rate:>8.1} {of_copy:>7.1}%");
    }

    fn copies(&mut self) -> Answer {
        let bytes = self.options.bytes;
        for n in [1, 2, 4] {
            let (from, stream) = (self.device.memory, self.device.stream);
            let copy = || memory::copy(from, from + (4 * bytes) as u64, n * bytes, stream);
            let seconds = self.device.time(&self.options, copy)?;
            self.copies.push((n * bytes, (2 * n * bytes) as f64 / seconds));
            self.print("cuMemcpyDtoDAsync", [n, n], 0, seconds);
        }
        Ok(())
    }

    fn moves(&self) -> Answer {
        let (kernel, bytes) = (load("rr_move")?, self.options.bytes);
        for n in [1, 4] {
            let (memory, stream) = (self.device.memory, self.device.stream);
            self.device.write(&[memory, memory + (4 * bytes) as u64, (n * bytes) as u64])?;
            for &blocks in self.options.blocks {
                let list = self.device.tables[0];
                let work = || driver::one_move(kernel, stream, blocks, list);
                let seconds = self.device.time(&self.options, work)?;
                self.print("rr_move", [n, n], blocks, seconds);
            }
        }
        Ok(())
    }

    /// Into one output apart, and into all sources in place, as an all-reduce does.
    fn folds(&self) -> Answer {
        let bytes = self.options.bytes;
        for (name, size) in FOLDS {
            let kernel = load(&format!("rr_fold_{name}"))?;
            for n in [1, 2, 4, 8] {
                let memory = self.device.memory;
                let place = |i: usize| memory + (i * bytes) as u64;
                let sources: Vec<u64> = (0..n).map(place).collect();
                let apart = vec![place(SOURCES)];
                // One source in place is another call, but as many bytes.
                for outs in if n == 1 { vec![apart] } else { vec![apart, sources.clone()] } {
                    self.device.write(&[&sources[..], &outs].concat())?;
                    for &blocks in self.options.blocks {
                        let n = [n, outs.len()];
                        let seconds = self.fold(kernel, blocks, 0, n, bytes / size)?;
                        self.print(name, n, blocks, seconds);
                    }
                }
            }
        }
        Ok(())
    }

    fn fold(
        &self,
        kernel: CUfunction,
        blocks: u32,
        table: usize,
        n: [usize; 2],
        count: usize,
    ) -> Answer<f64> {
        let (stream, table) = (self.device.stream, self.device.tables[table]);
        let n = n.map(|n| n as u64);
        let work = || driver::fold(kernel, stream, blocks, table, n, count as u64);
        self.device.time(&self.options, work)
    }

    /// The time of a launch that has next to nothing to do, by where its tables are.
    fn small(&mut self) -> Answer {
        let (kernel, memory) = (load("rr_fold_f32_sum")?, self.device.memory);
        self.device.write(&[memory, memory + 4096, memory, memory + 4096])?;
        self.options.launches *= 25;
        for (table, place) in ["device", "host"].into_iter().enumerate() {
            let seconds = self.fold(kernel, 1, table, [2, 2], 1024)?;
            println!("4 KiB of 2 sources, tables in the {place}'s memory: {:.2} us", seconds * 1e6);
        }
        self.options.launches /= 25;
        Ok(())
    }
}

fn run(options: Options) -> Answer {
    let first = if driver::is_driver_present() { driver::open().ok() } else { None };
    let Some(device) = first else {
        println!("SKIP cuda: no driver, or no device");
        return Ok(());
    };
    let name = driver::name(device)?;
    println!("{name}, {} bytes of each source, {THREADS} threads", options.bytes);
    let device = Device::new(options.bytes)?;
    let mut bench = Bench { options, device, copies: Vec::new() };
    driver::synchronize_context()?;
    bench.small()?;
    println!("{:<18} sources outs blocks        us     GB/s  of copy", "kernel");
    bench.copies()?;
    bench.moves()?;
    bench.folds()
}

fn main() -> ExitCode {
    let (status, why) = match Options::read().map(run) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(why)) => (1, why),
        Err(why) => (2, why),
    };
    eprintln!("cuda: {why}");
    ExitCode::from(status)
}
