//! How fast the CUDA kernels are on this machine's first device: folds of several types by the
//! number of sources, outputs and blocks, beside the driver's own copy and `rr_move`.
//! `cargo bench --bench cuda [-- --bytes N] [--quick] [--json FILE]`: N bytes of each source, or
//! 64 MiB; `--quick` is for a device that is stood in for, and is no measurement.
//! GB/s count every byte that is read and every byte that is written.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails by panicking")]
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUfunction, CUresult};
use cudarc::driver::{CudaContext, CudaStream};

const PTX: &str = include_str!("../kernels/ringreduce.ptx");
const THREADS: u32 = 512;
const BLOCKS: [u32; 4] = [66, 132, 264, 528];
/// The most sources, and what lies behind them for an output of its own.
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

fn done(answer: CUresult, what: &str) {
    assert_eq!(answer, CUresult::CUDA_SUCCESS, "{what}");
}

struct Options {
    bytes: usize,
    /// Launches between two events, and how many such pairs.
    launches: u32,
    samples: usize,
    blocks: &'static [u32],
    json: Option<String>,
}

impl Options {
    fn read() -> Result<Self, String> {
        let mut options =
            Self { bytes: 64 << 20, launches: 4, samples: 11, blocks: &BLOCKS, json: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                // What cargo says.
                "--bench" => {}
                "--quick" => {
                    options = Self { bytes: 16 << 10, launches: 1, samples: 1, ..options };
                    options.blocks = &BLOCKS[..1];
                }
                "--bytes" | "--json" => {
                    let value = words.next().ok_or(format!("{word} of what?"))?;
                    if word == "--json" {
                        options.json = Some(value);
                        continue;
                    }
                    let bytes = value.parse::<usize>().ok();
                    let fits = bytes.filter(|&bytes| bytes > 0 && bytes.is_multiple_of(256));
                    options.bytes = fits.ok_or("--bytes takes a multiple of 256")?;
                }
                _ => return Err(format!("unknown option {word}: --bytes N, --quick, --json FILE")),
            }
        }
        Ok(options)
    }
}

/// The first device, with one allocation for all sources and an output.
struct Device {
    stream: Arc<CudaStream>,
    memory: CUdeviceptr,
    /// Tables: where the device sees them, in its memory and in the host's.
    tables: [CUdeviceptr; 2],
    pinned: *mut u64,
    events: [CUevent; 2],
}

impl Device {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Self {
        let (mut memory, mut pinned) = (0, null_mut());
        let (mut tables, mut events) = ([0; 2], [null_mut(); 2]);
        let all = (SOURCES + 1) * bytes;
        // SAFETY: asks for memory, and says where to put its address; so do the next ones.
        done(unsafe { sys::cuMemAlloc_v2(&raw mut memory, all) }, "memory for the buffers");
        // SAFETY: it is as long.
        done(unsafe { sys::cuMemsetD8_v2(memory, 1, all) }, "filling it");
        // SAFETY: as above.
        done(unsafe { sys::cuMemAlloc_v2(&raw mut tables[0], 4096) }, "memory for tables");
        // SAFETY: as above.
        let made = unsafe { sys::cuMemHostAlloc(&raw mut pinned, 4096, 2) };
        done(made, "pinned memory");
        // SAFETY: it was just allocated as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut tables[1], pinned, 0) };
        done(seen, "pinned memory");
        for event in &mut events {
            // SAFETY: stores an event where it is told.
            done(unsafe { sys::cuEventCreate(event, 0) }, "an event");
        }
        let (stream, pinned) = (context.new_stream().unwrap(), pinned.cast());
        Self { stream, memory, tables, pinned, events }
    }

    /// Both tables get these words.
    fn write(&self, words: &[u64]) {
        self.stream.synchronize().unwrap();
        // SAFETY: a page is long enough, and the stream does nothing.
        unsafe { self.pinned.copy_from_nonoverlapping(words.as_ptr(), words.len()) };
        let (from, bytes) = (words.as_ptr().cast(), size_of_val(words));
        let (to, stream) = (self.tables[0], self.stream.cu_stream());
        // SAFETY: likewise; pageable memory has been read at the return.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) };
        done(copied, "writing tables");
    }

    /// The seconds that one of these takes: the median.
    fn time(&self, options: &Options, mut work: impl FnMut()) -> f64 {
        let stream = self.stream.cu_stream();
        let mark = |event| {
            // SAFETY: both are there.
            done(unsafe { sys::cuEventRecord(event, stream) }, "an event");
        };
        let mut sample = || {
            mark(self.events[0]);
            (0..options.launches).for_each(|_| work());
            mark(self.events[1]);
            self.stream.synchronize().unwrap();
            let (mut ms, [from, to]) = (0.0, self.events);
            // SAFETY: both have been recorded, and are over.
            done(unsafe { sys::cuEventElapsedTime(&raw mut ms, from, to) }, "a time");
            f64::from(ms) / 1e3 / f64::from(options.launches)
        };
        sample();
        let mut samples: Vec<f64> = (0..options.samples).map(|_| sample()).collect();
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2].max(1e-9)
    }

    fn launch(&self, function: CUfunction, blocks: u32, params: &mut [u64]) {
        let mut each: Vec<*mut c_void> =
            params.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let (stream, each) = (self.stream.cu_stream(), each.as_mut_ptr());
        // SAFETY: the parameters are the kernel's, and the memory that they name is there.
        let launched = unsafe {
            sys::cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, each, null_mut())
        };
        done(launched, "a launch");
    }

    fn copy(&self, from: CUdeviceptr, to: CUdeviceptr, bytes: usize) {
        // SAFETY: both are parts of the memory.
        let begun = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.cu_stream()) };
        done(begun, "a copy");
    }
}

/// The kernel, and the seconds that loading it took. Nobody unloads it.
fn load(name: &str) -> (CUfunction, f64) {
    let mut parts = PTX.split(".visible .entry ");
    let head = parts.next().unwrap();
    let text = parts.find(|part| part.split('(').next() == Some(name)).unwrap();
    let text = CString::new(format!("{head}.visible .entry {text}")).unwrap();
    let entry = CString::new(name).unwrap();
    let (mut module, mut function) = (null_mut(), null_mut());
    let began = Instant::now();
    // SAFETY: the text ends with a zero.
    done(unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }, name);
    // SAFETY: the module was just loaded, and the name ends with a zero.
    let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, entry.as_ptr()) };
    done(found, name);
    (function, began.elapsed().as_secs_f64())
}

/// A line of the table.
struct Line {
    what: String,
    sources: usize,
    outs: usize,
    blocks: u32,
    seconds: f64,
    /// Bytes per second, and that by the driver's copy of as much.
    rate: f64,
    of_copy: f64,
}

struct Bench {
    options: Options,
    device: Device,
    /// Bytes, and how fast the driver copies so many.
    copies: Vec<(usize, f64)>,
    lines: Vec<Line>,
}

impl Bench {
    fn add(&mut self, what: &str, sources: usize, outs: usize, blocks: u32, seconds: f64) {
        let moved = (sources + outs) * self.options.bytes;
        let rate = moved as f64 / seconds;
        let fair = self.copies.iter().rev().find(|(bytes, _)| 2 * bytes <= moved);
        let copy = fair.or(self.copies.first()).map_or(rate, |copy| copy.1);
        let (what, of_copy) = (what.to_owned(), rate / copy);
        self.lines.push(Line { what, sources, outs, blocks, seconds, rate, of_copy });
    }

    fn copies(&mut self) {
        let bytes = self.options.bytes;
        for n in [1, 2, 4] {
            let (from, to) = (self.device.memory, self.device.memory + (4 * bytes) as u64);
            let seconds = self.device.time(&self.options, || self.device.copy(from, to, n * bytes));
            self.copies.push((n * bytes, (2 * n * bytes) as f64 / seconds));
            self.add("cuMemcpyDtoDAsync", n, n, 0, seconds);
        }
    }

    fn moves(&mut self) {
        let (function, loading) = load("rr_move");
        println!("rr_move: loaded in {:.0} ms", loading * 1e3);
        let bytes = self.options.bytes;
        for n in [1, 4] {
            let memory = self.device.memory;
            self.device.write(&[memory, memory + (4 * bytes) as u64, (n * bytes) as u64]);
            for &blocks in self.options.blocks {
                let mut params = [self.device.tables[0], 1, 0, 0];
                let work = || self.device.launch(function, blocks, &mut params);
                let seconds = self.device.time(&self.options, work);
                self.add("rr_move", n, n, blocks, seconds);
            }
        }
    }

    /// To one output apart, and to all sources in place, as an all-reduce does.
    fn folds(&mut self) {
        let bytes = self.options.bytes;
        for (kernel, size) in FOLDS {
            let (function, loading) = load(&format!("rr_fold_{kernel}"));
            println!("{kernel}: loaded in {:.0} ms", loading * 1e3);
            for n in [1, 2, 4, 8] {
                let memory = self.device.memory;
                let place = |i: usize| memory + (i * bytes) as u64;
                let sources: Vec<u64> = (0..n).map(place).collect();
                for outs in [vec![place(SOURCES)], sources.clone()] {
                    self.device.write(&[&sources[..], &outs].concat());
                    for &blocks in self.options.blocks {
                        let seconds = self.fold(function, blocks, 0, [n, outs.len()], bytes / size);
                        self.add(kernel, n, outs.len(), blocks, seconds);
                    }
                    if n == 1 {
                        // In place it is another call, but as many bytes.
                        break;
                    }
                }
            }
        }
    }

    fn fold(&self, by: CUfunction, blocks: u32, table: usize, n: [usize; 2], count: usize) -> f64 {
        let given = self.device.tables[table];
        let [sources, outs] = n.map(|n| n as u64);
        let mut params =
            [given, sources, given + 8 * sources, outs, 0, 0, count as u64, 0, 0, 0, 0];
        self.device.time(&self.options, || self.device.launch(by, blocks, &mut params))
    }

    /// What a launch takes that has next to nothing to do, by where its tables are.
    fn small(&mut self) {
        let (function, _) = load("rr_fold_f32_sum");
        let memory = self.device.memory;
        self.device.write(&[memory, memory + 4096, memory, memory + 4096]);
        self.options.launches *= 25;
        for (table, place) in ["device", "host"].into_iter().enumerate() {
            let seconds = self.fold(function, 1, table, [2, 2], 1024);
            println!("4 KiB of 2 sources, tables in the {place}'s memory: {:.2} us", seconds * 1e6);
        }
        self.options.launches /= 25;
    }

    fn table(&self) {
        println!("{:<18} sources outs blocks        us     GB/s  of copy", "kernel");
        for Line { what, sources, outs, blocks, seconds, rate, of_copy } in &self.lines {
            let (us, rate, of_copy) = (seconds * 1e6, rate / 1e9, of_copy * 100.0);
            print!("{what:<18} {sources:>7} {outs:>4} {blocks:>6} ");
            println!("{us:>9.1} {rate:>8.1} {of_copy:>7.1}%");
        }
    }

    fn json(&self, device: &str) -> String {
        let mut text =
            format!("{{\"device\": \"{device}\", \"bytes\": {}, \"lines\": [", self.options.bytes);
        for (i, line) in self.lines.iter().enumerate() {
            let Line { what, sources, outs, blocks, seconds, rate, of_copy } = line;
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}\n{{\"kernel\": \"{what}\", \"sources\": {sources}, \"outs\": {outs}, \
                 \"blocks\": {blocks}, \"seconds\": {seconds:e}, \"bytes_per_second\": {rate:e}, \
                 \"of_copy\": {of_copy:.4}}}"
            );
        }
        text + "\n]}\n"
    }
}

fn main() {
    let options = match Options::read() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("cuda: {why}");
            std::process::exit(2);
        }
    };
    // SAFETY: loads the library of the system's driver and runs what that runs when it is loaded.
    let found = unsafe { sys::is_culib_present() };
    let context = found.then(|| CudaContext::new(0)).and_then(Result::ok);
    let Some(context) = context else {
        println!("SKIP benches/cuda: no driver, or no device");
        return;
    };
    let device = Device::new(&context, options.bytes);
    let name = context.name().unwrap();
    println!("{name}, {} bytes of each source, {THREADS} threads", options.bytes);
    let mut bench = Bench { options, device, copies: Vec::new(), lines: Vec::new() };
    context.synchronize().unwrap();
    bench.small();
    bench.copies();
    bench.moves();
    bench.folds();
    bench.table();
    if let Some(file) = &bench.options.json {
        std::fs::write(file, bench.json(&name)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}
