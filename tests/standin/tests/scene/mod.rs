//! What child processes do with the driver.

mod basic;
mod graph;
mod limits;
mod share;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUresult as R};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};

/// Compiled with clang-16 from plain loops over each type.
const SAMPLE: &str = include_str!("../samples/sample.ptx");

pub(crate) fn run(scene: &str) {
    match scene {
        "launch" => basic::launch(),
        "events" => basic::events(),
        "pointers" => basic::pointers(),
        "poison" => basic::poison(),
        "staging" => basic::staging(),
        "legacy" => basic::legacy(),
        "touch" => basic::touch(),
        "leak" => drop((context(), allocate(100))),
        "order" => basic::order(),
        "no_device" => basic::no_device(),
        "memory" => basic::memory(),
        "second" => basic::second(),
        "planted" => basic::planted(),
        "devices" => basic::devices(),
        "apart" => basic::apart(),
        "missing" => basic::missing(),
        "visible" => limits::visible(),
        "without" => limits::without(),
        "bounded" => limits::bounded(),
        "weak" => limits::weak(),
        "graph" => graph::replay(),
        "capture" => graph::forbidden(),
        "ipc" => share::parent(),
        "ipc_child" => share::child(),
        other => panic!("no scene {other}"),
    }
}

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).unwrap()
}

fn streams(context: &Arc<CudaContext>) -> [Arc<CudaStream>; 2] {
    [context.new_stream().unwrap(), context.new_stream().unwrap()]
}

/// Memory that other processes may open, zeroed.
fn allocate(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    // SAFETY: a place for the address; then memory of that length.
    unsafe {
        assert_eq!(sys::cuMemAlloc_v2(&raw mut at, bytes), R::CUDA_SUCCESS);
        assert_eq!(sys::cuMemsetD8_v2(at, 0, bytes), R::CUDA_SUCCESS);
    }
    at
}

/// The kernel `name` of a module; nobody unloads it.
fn function(text: &str, name: &str) -> Result<CUfunction, DriverError> {
    let text = CString::new(text).unwrap();
    // SAFETY: a text that ends with a zero, and a module that lives as long as the process.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast())?;
        result::module::get_function(module, CString::new(name).unwrap())
    }
}

/// The kernel that `add` launches; loading it is not allowed in a capture.
fn adder() -> CUfunction {
    function(SAMPLE, "add_f32").unwrap()
}

/// `add_f32` of three addresses and a count, over a grid that is larger than a block.
fn add(adder: CUfunction, stream: &CudaStream, at: [CUdeviceptr; 3], count: u64) {
    try_add(adder, stream, at, count).unwrap();
}

fn try_add(
    adder: CUfunction,
    stream: &CudaStream,
    at: [CUdeviceptr; 3],
    count: u64,
) -> Result<(), DriverError> {
    let words = [at[0], at[1], at[2], count];
    let address = |word| std::ptr::from_ref::<u64>(word).cast_mut().cast::<c_void>();
    let mut params = words.each_ref().map(address);
    let stream = stream.cu_stream();
    // SAFETY: the kernel's parameters are these words.
    unsafe { result::launch_kernel(adder, (3, 1, 1), (100, 1, 1), 0, stream, &mut params) }
}

/// Where a slice is, for calls that cudarc does not see.
fn address<T>(slice: &CudaSlice<T>) -> CUdeviceptr {
    slice.device_ptr(slice.stream()).0
}
