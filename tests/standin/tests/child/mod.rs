//! Functions that the tests run in child processes.
#![allow(unsafe_code)]

pub(crate) mod calls;
pub(crate) mod graphs;
pub(crate) mod settings;
pub(crate) mod sharing;

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUstream};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};

/// A kernel that adds two lists of f32.
fn sample() -> String {
    let lines = "ld.global.f32 %f1, [%rd2]; ld.global.f32 %f2, [%rd3];
                 add.f32 %f3, %f1, %f2; st.global.f32 [%rd1], %f3;";
    include_str!("../elementwise.ptx").replace("SIZE", "4").replace("LINES", lines)
}

/// The name of that kernel.
const KERNEL: &str = "elementwise";

/// Makes a call of the driver, and compares the answer: success, or the error that is named.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        $crate::child::call!($name($($arg),*), CUDA_SUCCESS)
    };
    ($name:ident($($arg:expr),* $(,)?), $answer:ident) => {{
        // SAFETY: pointers are to memory that lives until the call, or its copy, has ended.
        let answer = unsafe { cudarc::driver::sys::$name($($arg),*) };
        assert_eq!(answer, cudarc::driver::sys::CUresult::$answer, stringify!($name));
    }};
}
pub(crate) use call;

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).unwrap()
}

fn streams(context: &Arc<CudaContext>) -> [Arc<CudaStream>; 2] {
    [context.new_stream().unwrap(), context.new_stream().unwrap()]
}

/// Memory that other processes may open, zeroed.
fn allocate(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    call!(cuMemAlloc_v2(&raw mut at, bytes));
    call!(cuMemsetD8_v2(at, 0, bytes));
    at
}

/// The stream waits until the word at `at` is at least `value`.
fn wait(stream: CUstream, at: CUdeviceptr, value: u32) {
    call!(cuStreamWaitValue32_v2(stream, at, value, 0));
}

fn write(stream: CUstream, at: CUdeviceptr, value: u32) {
    call!(cuStreamWriteValue32_v2(stream, at, value, 0));
}

/// The kernel `name` of a module that stays loaded.
fn function(text: &str, name: &str) -> Result<CUfunction, DriverError> {
    let text = CString::new(text).unwrap();
    // SAFETY: the text ends with a zero.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module lives as long as the process.
    unsafe { result::module::get_function(module, CString::new(name).unwrap()) }
}

/// The kernel that `add` launches. A capture does not allow loading it.
fn adder() -> CUfunction {
    function(&sample(), KERNEL).unwrap()
}

/// Adds lists by the addresses of the sum and of both, and a count, over a grid that is larger than
/// a block.
fn add(
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

/// The address of a slice, for calls that cudarc does not make.
fn address<T>(slice: &CudaSlice<T>) -> CUdeviceptr {
    slice.device_ptr(slice.stream()).0
}

/// A counter of the stand-in.
fn count(name: &str) -> u64 {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded and stays so.
    let library = unsafe { sys::culib() };
    // SAFETY: the function has this type.
    let count = unsafe { library.get::<Count>(b"standinCount") }.unwrap();
    // SAFETY: the name ends with a zero.
    unsafe { count(name.as_ptr()) }
}

/// Pinned words, all 0, which stay as long as the process.
fn pinned(count: usize) -> *mut u32 {
    let mut words = std::ptr::null_mut();
    call!(cuMemHostAlloc(&raw mut words, 4 * count, sys::CU_MEMHOSTALLOC_DEVICEMAP));
    let words = words.cast::<u32>();
    // SAFETY: the allocation is as long.
    unsafe { words.write_bytes(0, count) };
    words
}
