//! The PTX on a device of the driver that is present: the results are those of the library's
//! kernels for the host, and no other memory is written. In CI the driver is the stand-in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::Element;

use super::super::cuda_facts::bench::cuda_facts::{driver, memory};
use super::super::standin::DEVICES;
use super::fold::{Case, Layout};
use super::host::{Call, Grid, Machine};
use super::moves::{self, DESCRIPTOR};
use super::names::KernelReduction;
use harness::guarded::{parts, random_bytes};
use harness::skip;

/// Bytes of the tables, the scalar and the flags of a call, in pinned and in device memory.
const TABLES: usize = 8192;
/// Offsets in them: outputs, an unaligned scalar, the word that stops a kernel, and the word by
/// which a kernel says that it runs.
const OUTS: usize = 1024;
const SCALAR: usize = 2049;
const STOP: usize = 2080;
const RUNS: usize = 2084;

/// A stream with memory for calls, one at a time.
struct Device {
    stream: CUstream,
    kernels: HashMap<String, CUfunction>,
    /// As long as the longest call so far.
    memory: (CUdeviceptr, usize),
    pinned: memory::Host,
    /// Device addresses of the tables: in pinned memory, and in the device's.
    tables: [CUdeviceptr; 2],
    calls: usize,
}

impl Device {
    fn new() -> Self {
        driver::open().unwrap();
        let pinned = memory::Host::pinned(TABLES).unwrap();
        let tables = [pinned.device().unwrap(), memory::allocate(TABLES).unwrap()];
        let (stream, kernels) = (driver::stream().unwrap(), HashMap::new());
        Self { stream, kernels, memory: (0, 0), pinned, tables, calls: 0 }
    }

    /// Memory of at least so many bytes, whatever is in it.
    fn reserve(&mut self, bytes: usize) -> CUdeviceptr {
        if self.memory.1 < bytes {
            self.free();
            let len = bytes.next_power_of_two();
            self.memory = (memory::allocate(len).unwrap(), len);
        }
        self.memory.0
    }

    fn free(&self) {
        if self.memory.1 > 0 {
            memory::free(self.memory.0).unwrap();
        }
    }

    fn upload(&self, to: CUdeviceptr, from: &[u8]) {
        memory::upload(to, from, self.stream).unwrap();
    }

    /// Stores the tables, the scalar and the flags of a call: alternately in pinned memory and in
    /// the device's. Answers their address.
    fn store(&mut self, call: &Call<'_>, start: CUdeviceptr) -> CUdeviceptr {
        let mut bytes = vec![0; TABLES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        for (table, places) in [(0, call.sources), (OUTS, call.outs)] {
            for (i, &place) in places.iter().enumerate() {
                put(table + 8 * i, &(start + place as u64).to_ne_bytes());
            }
        }
        put(SCALAR, &call.scalar.unwrap_or_default());
        put(STOP, &u32::from(call.stop.unwrap_or(0)).to_ne_bytes());
        self.calls += 1;
        let which = self.calls % 2;
        match which {
            0 => self.pinned.store(&bytes),
            _ => self.upload(self.tables[1], &bytes),
        }
        self.tables[which]
    }

    /// Launches a kernel, and waits for it.
    fn launch(&mut self, name: &str, grid: Grid, params: &mut [u64]) {
        let load = || driver::kernel(name).unwrap();
        let kernel = *self.kernels.entry(name.to_owned()).or_insert_with(load);
        let grid = [grid.threads, grid.blocks, grid.rows].map(|n| n as u32);
        let done = driver::launch(kernel, self.stream, grid, params);
        let done = done.and_then(|()| driver::synchronize(self.stream));
        done.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

impl Machine for Device {
    fn call(&mut self, call: &Call<'_>, memory: &mut [u8]) {
        let start = self.reserve(memory.len());
        let stop = |tables: CUdeviceptr| call.stop.map_or(0, |_| tables + STOP as u64);
        let runs = |tables: CUdeviceptr| call.stop.map_or(0, |_| tables + RUNS as u64);
        if call.kernel == "rr_move" {
            // As on the host: the list is in the memory, and has the lengths.
            let n = call.sources.len() / 2;
            for (item, pair) in memory.chunks_mut(DESCRIPTOR).zip(call.sources.chunks(2)) {
                for (word, place) in item.chunks_mut(8).zip(pair) {
                    word.copy_from_slice(&(start + *place as u64).to_ne_bytes());
                }
            }
            self.upload(start, memory);
            let tables = self.store(&Call { sources: &[], outs: &[], ..call.clone() }, start);
            self.launch(call.kernel, call.grid, &mut [start, n as u64, stop(tables), runs(tables)]);
        } else {
            self.upload(start, memory);
            let tables = self.store(call, start);
            let scalar = call.scalar.map_or(0, |_| tables + SCALAR as u64);
            let [sources, outs] = [call.sources.len(), call.outs.len()].map(|n| n as u64);
            let [at_sources, at_outs] = call.at.map(|at| at as u64);
            let (count, last, outs_at) = (call.count as u64, call.last as u64, OUTS as u64);
            let places = [tables, sources, tables + outs_at, outs, at_sources, at_outs];
            let mut params =
                [&places[..], &[count, last, scalar, stop(tables), runs(tables)]].concat();
            self.launch(call.kernel, call.grid, &mut params);
        }
        memory::download(memory, start).unwrap();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.free();
        memory::free(self.tables[1]).unwrap();
        self.pinned.unpin().unwrap();
    }
}

/// The most threads of a block.
const BLOCK: usize = 512;

/// The sizes of calls, by the driver.
#[derive(Clone, Copy)]
struct Scale {
    threads: usize,
    blocks: usize,
    /// Bytes and numbers of sources of the longest calls, whose blocks are as large as possible.
    long: &'static [(usize, usize)],
}

/// For the stand-in, where every instruction takes its time.
const STANDIN: Scale = Scale { threads: 32, blocks: 2, long: &[(33 << 10, 2)] };
const REAL: Scale = Scale { threads: BLOCK, blocks: 264, long: &[(3 << 20, 2), (1 << 20, 5)] };

/// Every reduction that is defined for a type.
fn check_type<T: Element>(device: &mut Device, scale: Scale) {
    let (dtype, size) = (T::DTYPE, size_of::<T>());
    let mut random = SmallRng::seed_from_u64(700 + dtype as u64);
    let number = parts(dtype)[0].size();
    let pool = random_bytes((64 << 10) / size, dtype, &mut random);
    // Four vectors for each thread; kernels with fewer of them have more tiles in it.
    let tile = scale.threads * 64 / size;
    let short = [0, 1, 7, tile - 1, tile, tile + 1, 5 * tile + 3];
    for case in Case::all::<T>(&mut random) {
        let few = (1..=4).flat_map(|n| short.map(|count| (count, n, scale.threads)));
        let many = [(7, 9), (tile + 1, 9), (7, 66)].map(|(count, n)| (count, n, scale.threads));
        let long = scale.long.iter().map(|&(bytes, n)| (bytes / size + 5, n, BLOCK));
        for (count, n, threads) in few.chain(many).chain(long) {
            let n = if case.wanted == KernelReduction::PreMulStep { 2 } else { n };
            let layout = Layout::random(n, count * size, number, &mut random);
            let mut memory = Vec::with_capacity(layout.bytes);
            while memory.len() < layout.bytes {
                let from = random.random_range(0..pool.len() / 2 / size) * size;
                memory.extend(&pool[from..]);
            }
            memory.truncate(layout.bytes);
            let last = [0, n, n + 1000, (1 << 31) - 1][random.random_range(0..4)];
            let blocks = random.random_range(1..=scale.blocks);
            let grid = Grid { threads, blocks, rows: 1 };
            case.check(device, &layout, (count, last, grid), &memory);
        }
    }
}

macro_rules! checks {
    ($($name:ident: $type:ty),* $(,)?) => {
        &[
            |device, scale| moves::check(device, 60, &[scale.threads]),
            $(check_type::<$type>),*
        ]
    };
}

/// The work that threads share.
const CHECKS: &[fn(&mut Device, Scale)] = harness::for_each_type!([checks]);

/// Skips, with a reason, if there is no device.
pub(crate) fn check_all() {
    let present = driver::is_driver_present();
    let device = if present { driver::open().ok() } else { None };
    let Some(device) = device else {
        assert_eq!(std::env::var_os(DEVICES), None, "no stand-in");
        return skip("cuda_kernels::body::on_this_machine", "no driver, or no device");
    };
    let is_standin = driver::name(device).unwrap().contains("Stand-in");
    let scale = if is_standin { STANDIN } else { REAL };
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(8);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut device = Device::new();
                while let Some(check) = CHECKS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(&mut device, scale);
                }
            });
        }
    });
}
