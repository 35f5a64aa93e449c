//! The PTX on a device, by the driver that is there: the bits of the library's kernels for the
//! host, and nothing else is written. In CI that driver is a stand-in.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUresult};
use cudarc::driver::{CudaContext, CudaStream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::{Complex, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, bf16, f16};

use super::super::standin::on_standin;
use super::fold::{ALIGNED, Case, Launch, outs_of, places};
use super::host::{Call, Grid, Machine};
use super::moves::{self, DESCRIPTOR};
use super::names::Wanted;
use harness::guarded::{parts, random_bytes};
use harness::skip;

const PTX: &str = include_str!("../../../kernels/ringreduce.ptx");

/// Bytes of pinned memory and of device memory for what a call is given.
const GIVEN: usize = 8192;
/// Where in them outputs begin, a scalar that is not aligned, the word that stops, and the one that
/// says that the kernel works.
const OUTS: usize = 1024;
const SCALAR: usize = 2049;
const STOP: usize = 2080;
const WORKS: usize = 2084;

fn done(answer: CUresult, what: &str) {
    assert_eq!(answer, CUresult::CUDA_SUCCESS, "{what}");
}

/// A stream with memory for calls, one at a time.
struct Device {
    stream: Arc<CudaStream>,
    kernels: HashMap<String, CUfunction>,
    /// As long as the longest call so far.
    memory: (CUdeviceptr, usize),
    pinned: *mut u8,
    /// Where the device sees what it is given: in pinned memory, and in its own.
    given: [CUdeviceptr; 2],
    calls: usize,
}

impl Device {
    fn new() -> Self {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let (mut pinned, mut given) = (null_mut(), [0; 2]);
        let mapped = sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: asks for memory, and says where to put its address.
        done(unsafe { sys::cuMemHostAlloc(&raw mut pinned, GIVEN, mapped) }, "pinned memory");
        // SAFETY: it was just allocated as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut given[0], pinned, 0) };
        done(seen, "pinned memory's address");
        // SAFETY: as the first.
        done(unsafe { sys::cuMemAlloc_v2(&raw mut given[1], GIVEN) }, "device memory");
        let (kernels, pinned) = (HashMap::new(), pinned.cast());
        Self { stream, kernels, memory: (0, 0), pinned, given, calls: 0 }
    }

    /// Nobody unloads it.
    fn kernel(&mut self, name: &str) -> CUfunction {
        if let Some(&found) = self.kernels.get(name) {
            return found;
        }
        let mut parts = PTX.split(".visible .entry ");
        let head = parts.next().unwrap();
        let text = parts.find(|part| part.split('(').next() == Some(name)).unwrap();
        let text = CString::new(format!("{head}.visible .entry {text}")).unwrap();
        let entry = CString::new(name).unwrap();
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the text ends with a zero.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        done(loaded, name);
        // SAFETY: the module was just loaded, and the name ends with a zero.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, entry.as_ptr()) };
        done(found, name);
        self.kernels.insert(name.to_owned(), function);
        function
    }

    /// So much memory, whatever is in it.
    fn reserve(&mut self, bytes: usize) -> CUdeviceptr {
        if self.memory.1 < bytes {
            self.free();
            let len = bytes.next_power_of_two();
            // SAFETY: asks for memory, and says where to put its address.
            done(unsafe { sys::cuMemAlloc_v2(&raw mut self.memory.0, len) }, "device memory");
            self.memory.1 = len;
        }
        self.memory.0
    }

    fn free(&mut self) {
        if self.memory.1 > 0 {
            // SAFETY: it is ours, and all that used it was waited for.
            done(unsafe { sys::cuMemFree_v2(self.memory.0) }, "freeing");
        }
    }

    /// In the order of the stream: another one's copies may still be under way when they return.
    fn upload(&self, to: CUdeviceptr, from: &[u8]) {
        let (bytes, stream) = (from.as_ptr().cast(), self.stream.cu_stream());
        // SAFETY: there is room for them, and pageable memory has been read at the return.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes, from.len(), stream) };
        done(copied, "copying to the device");
    }

    /// What the kernel reads: tables, scalar and word, in pinned memory and in the device's by
    /// turns.
    fn give(&mut self, call: &Call<'_>, start: CUdeviceptr) -> CUdeviceptr {
        let mut given = vec![0; GIVEN];
        let mut put = |at: usize, bytes: &[u8]| given[at..at + bytes.len()].copy_from_slice(bytes);
        for (table, places) in [(0, call.sources), (OUTS, call.outs)] {
            for (i, &place) in places.iter().enumerate() {
                put(table + 8 * i, &(start + place as u64).to_ne_bytes());
            }
        }
        put(SCALAR, &call.scalar.unwrap_or_default());
        put(STOP, &u32::from(call.stop.unwrap_or(0)).to_ne_bytes());
        self.calls += 1;
        let which = self.calls % 2;
        if which == 0 {
            // SAFETY: it is as long, and no kernel reads it now.
            unsafe { self.pinned.copy_from_nonoverlapping(given.as_ptr(), GIVEN) };
        } else {
            self.upload(self.given[1], &given);
        }
        self.given[which]
    }

    /// Launches, and waits. The lower half of a word is a 32-bit parameter.
    fn launch(&mut self, name: &str, grid: Grid, params: &mut [u64]) {
        let function = self.kernel(name);
        let mut each: Vec<*mut c_void> =
            params.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let [threads, blocks, rows] = [grid.threads, grid.blocks, grid.rows].map(|n| n as u32);
        let (stream, each) = (self.stream.cu_stream(), each.as_mut_ptr());
        // SAFETY: the parameters are the kernel's, and what they point to is there.
        let launched = unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                rows,
                1,
                threads,
                1,
                1,
                0,
                stream,
                each,
                null_mut(),
            )
        };
        done(launched, name);
        self.stream.synchronize().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

impl Machine for Device {
    fn call(&mut self, call: &Call<'_>, memory: &mut [u8]) {
        let start = self.reserve(memory.len());
        let stop = |given: CUdeviceptr| call.stop.map_or(0, |_| given + STOP as u64);
        let works = |given: CUdeviceptr| call.stop.map_or(0, |_| given + WORKS as u64);
        if call.kernel == "rr_move" {
            // As on the host: the list is in the memory, and says how many bytes.
            let n = call.sources.len() / 2;
            for (item, pair) in memory.chunks_mut(DESCRIPTOR).zip(call.sources.chunks(2)) {
                for (word, place) in item.chunks_mut(8).zip(pair) {
                    word.copy_from_slice(&(start + *place as u64).to_ne_bytes());
                }
            }
            self.upload(start, memory);
            let given = self.give(&Call { sources: &[], outs: &[], ..call.clone() }, start);
            self.launch(call.kernel, call.grid, &mut [start, n as u64, stop(given), works(given)]);
        } else {
            self.upload(start, memory);
            let given = self.give(call, start);
            let scalar = call.scalar.map_or(0, |_| given + SCALAR as u64);
            let [sources, outs] = [call.sources.len(), call.outs.len()].map(|n| n as u64);
            let [at_sources, at_outs] = call.at.map(|at| at as u64);
            let (count, last, outs_at) = (call.count as u64, call.last as u64, OUTS as u64);
            let tables = [given, sources, given + outs_at, outs, at_sources, at_outs];
            let mut params =
                [&tables[..], &[count, last, scalar, stop(given), works(given)]].concat();
            self.launch(call.kernel, call.grid, &mut params);
        }
        // SAFETY: the memory is as long, and the kernel is over.
        let copied =
            unsafe { sys::cuMemcpyDtoH_v2(memory.as_mut_ptr().cast(), start, memory.len()) };
        done(copied, "copying from the device");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.free();
        // SAFETY: it is ours, and all that used it was waited for.
        done(unsafe { sys::cuMemFree_v2(self.given[1]) }, "freeing");
        // SAFETY: likewise.
        done(unsafe { sys::cuMemFreeHost(self.pinned.cast()) }, "freeing");
    }
}

/// The most threads of a block.
const BLOCK: usize = 512;

/// How long calls are, by what the driver is.
#[derive(Clone, Copy)]
struct Scale {
    threads: usize,
    blocks: usize,
    /// Bytes of the longest ones, from so many sources, by blocks as large as they may be.
    long: &'static [(usize, usize)],
}

/// Where every instruction takes its time.
const STANDIN: Scale = Scale { threads: 32, blocks: 2, long: &[(33 << 10, 2)] };
const REAL: Scale = Scale { threads: BLOCK, blocks: 264, long: &[(3 << 20, 2), (1 << 20, 5)] };

/// Everything that is defined for a type.
fn check_type<T: Element>(device: &mut Device, scale: Scale) {
    let (dtype, size) = (T::DTYPE, size_of::<T>());
    let mut random = SmallRng::seed_from_u64(700 + dtype as u64);
    let number = parts(dtype)[0].size();
    let pool = random_bytes((64 << 10) / size, dtype, &mut random);
    // Of four vectors for each thread; kernels with fewer have more tiles in it.
    let tile = scale.threads * 64 / size;
    let short = [0, 1, 7, tile - 1, tile, tile + 1, 5 * tile + 3];
    for case in Case::all::<T>(&mut random) {
        let few = (1..=4).flat_map(|n| short.map(|count| (count, n, scale.threads)));
        let many = [(7, 9), (tile + 1, 9), (7, 66)].map(|(count, n)| (count, n, scale.threads));
        let long = scale.long.iter().map(|&(bytes, n)| (bytes / size + 5, n, BLOCK));
        for (count, n, threads) in few.chain(many).chain(long) {
            let n = if case.wanted == Wanted::PreMulStep { 2 } else { n };
            let aligned = ALIGNED[random.random_range(0..ALIGNED.len())];
            let all = places(n + 2, count * size, aligned, number, &mut random);
            let (sources, apart) = all.split_at(n);
            let outs = outs_of(sources, apart, &mut random);
            let at = 16 * random.random_range(0..3);
            let elsewhere = outs.iter().all(|out| apart.contains(out)) && random.random();
            let at = [at, if elsewhere { random.random_range(0..=32) } else { at }];
            let len = all.last().unwrap() + 32 + count * size + 64;
            let mut memory = Vec::with_capacity(len);
            while memory.len() < len {
                let from = random.random_range(0..pool.len() / 2 / size) * size;
                memory.extend(&pool[from..]);
            }
            memory.truncate(len);
            let last = [0, n, n + 1000, (1 << 31) - 1][random.random_range(0..4)];
            let stop = [None, Some(0), Some(0), Some(1)][random.random_range(0..4)];
            let blocks = random.random_range(1..=scale.blocks);
            let grid = Grid { threads, blocks, rows: 1 };
            let launch = Launch { sources, outs: &outs, at, count, last, stop, grid };
            case.check(device, &launch, &memory);
        }
    }
}

/// What threads take by turns.
const TYPES: [fn(&mut Device, Scale); 21] = [
    |device, scale| moves::check(device, 60, &[scale.threads]),
    check_type::<i8>,
    check_type::<u8>,
    check_type::<i16>,
    check_type::<u16>,
    check_type::<i32>,
    check_type::<u32>,
    check_type::<i64>,
    check_type::<u64>,
    check_type::<f16>,
    check_type::<bf16>,
    check_type::<f32>,
    check_type::<f64>,
    check_type::<F8E4M3>,
    check_type::<F8E5M2>,
    check_type::<Complex<f32>>,
    check_type::<Complex<f64>>,
    check_type::<LocF32>,
    check_type::<LocF64>,
    check_type::<LocI32>,
    check_type::<LocI64>,
];

/// Says why if there is no device.
pub(crate) fn check_all() {
    // SAFETY: loads the library of the system's driver and runs what that runs when it is loaded.
    let found = unsafe { sys::is_culib_present() };
    let context = found.then(|| CudaContext::new(0)).and_then(Result::ok);
    let Some(context) = context else {
        assert_eq!(std::env::var_os(STANDIN_IS_THERE.0), None, "no stand-in");
        return skip("cuda_kernels::body::on_this_machine", "no driver, or no device");
    };
    let scale = if context.name().unwrap().contains("Stand-in") { STANDIN } else { REAL };
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(8);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut device = Device::new();
                while let Some(check) = TYPES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(&mut device, scale);
                }
            });
        }
    });
}

/// A setting that says so.
const STANDIN_IS_THERE: (&str, &str) = ("STANDIN_CUDA_DEVICES", "1");

#[test]
fn all_kernels_on_the_stand_in() {
    on_standin("cuda_kernels::body::on_this_machine", &[STANDIN_IS_THERE]);
}
