//! The driver's calls. An error names the call; a call that the driver does not export is an error
//! too. May touch: the driver. Unsafe: calls it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{from_mut, null, null_mut};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult,
    CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
};

pub(crate) type Answer<T = ()> = Result<T, String>;

const PTX: &str = include_str!("../../kernels/ringreduce.ptx");
/// Threads of each block that is launched here.
pub(crate) const THREADS: u32 = 512;
/// Flag of a stream that does not synchronize with the legacy stream.
const NON_BLOCKING: u32 = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
const MAX_THREADS: sys::CUfunction_attribute =
    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
const THREAD_LOCAL: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// `ask!(cuInit(0))`: makes the call, if the driver exports it.
macro_rules! ask {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        static EXPORTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if *EXPORTED.get_or_init(|| has_symbol(stringify!($name))) {
            // SAFETY: the driver exports it, and pointers are to what the caller holds.
            let answer = unsafe { sys::$name($($arg),*) };
            check(stringify!($name), answer)
        } else {
            Err(concat!(stringify!($name), ": the driver has none").to_owned())
        }
    }};
}
pub(super) use ask;

/// Functions of one call each, which stores no result.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*)
        = $call:ident($($given:expr),*);)*) => {
        $($(#[$doc])*
        pub(crate) fn $name($($arg: $type),*) -> Answer {
            ask!($call($($given),*))
        })*
    };
}
pub(super) use calls;

/// Functions of one call each, which answer what the call stores.
macro_rules! queries {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $found:ident: $result:ty
        = $call:ident($($given:expr),*);)*) => {
        $($(#[$doc])*
        pub(crate) fn $name($($arg: $type),*) -> Answer<$result> {
            // SAFETY: a number, a pointer or an array of bytes, each of which may be zero.
            let mut $found: $result = unsafe { std::mem::zeroed() };
            ask!($call($($given),*))?;
            Ok($found)
        })*
    };
}
pub(super) use queries;

pub(crate) fn is_driver_present() -> bool {
    // SAFETY: loads the library of the system's driver and runs its initializers.
    unsafe { sys::is_culib_present() }
}

pub(crate) fn has_symbol(name: &str) -> bool {
    // SAFETY: callers have checked that the library is present.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is looked up, not called.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
}

pub(crate) fn check(call: &str, answer: CUresult) -> Answer {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{call}: {answer:?}")) }
}

queries! {
    version() -> version: c_int = cuDriverGetVersion(&raw mut version);
    device(ordinal: c_int) -> device: c_int = cuDeviceGet(&raw mut device, ordinal);
    name_bytes(device: c_int) -> name: [u8; 256] =
        cuDeviceGetName(name.as_mut_ptr().cast(), 256, device);
    uuid_bytes(device: c_int) -> uuid: sys::CUuuid = cuDeviceGetUuid_v2(&raw mut uuid, device);
    attribute(device: c_int, which: sys::CUdevice_attribute) -> value: c_int =
        cuDeviceGetAttribute(&raw mut value, which, device);
    primary_context(device: c_int) -> context: CUcontext =
        cuDevicePrimaryCtxRetain(&raw mut context, device);
    context_flags() -> flags: u32 = cuCtxGetFlags(&raw mut flags);
    /// The least and the greatest priority of streams.
    priorities() -> range: [c_int; 2] =
        cuCtxGetStreamPriorityRange(&raw mut range[0], &raw mut range[1]);
    stream() -> stream: CUstream = cuStreamCreate(&raw mut stream, NON_BLOCKING);
    event_with(flags: u32) -> event: CUevent = cuEventCreate(&raw mut event, flags);
    milliseconds(from: CUevent, to: CUevent) -> found: f32 =
        cuEventElapsedTime(&raw mut found, from, to);
    load_module(text: &CStr) -> module: CUmodule =
        cuModuleLoadData(&raw mut module, text.as_ptr().cast());
    function_by(module: CUmodule, name: &CStr) -> function: CUfunction =
        cuModuleGetFunction(&raw mut function, module, name.as_ptr());
    /// Asks about a kernel, for which a lazy driver may have to load it.
    max_threads(kernel: CUfunction) -> threads: c_int =
        cuFuncGetAttribute(&raw mut threads, MAX_THREADS, kernel);
    end_capture(stream: CUstream) -> graph: CUgraph = cuStreamEndCapture(stream, &raw mut graph);
    node_count(graph: CUgraph) -> nodes: usize =
        cuGraphGetNodes(graph, null::<sys::CUgraphNode>().cast_mut(), &raw mut nodes);
    instantiate(graph: CUgraph) -> exec: CUgraphExec =
        cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
}

calls! {
    initialize() = cuInit(0);
    make_current(context: CUcontext) = cuCtxSetCurrent(context);
    synchronize_context() = cuCtxSynchronize();
    destroy_stream(stream: CUstream) = cuStreamDestroy_v2(stream);
    synchronize(stream: CUstream) = cuStreamSynchronize(stream);
    destroy_event(event: CUevent) = cuEventDestroy_v2(event);
    record(event: CUevent, stream: CUstream) = cuEventRecord(event, stream);
    wait_for_event(stream: CUstream, event: CUevent) = cuStreamWaitEvent(stream, event, 0);
    /// The stream waits until the word at `at` is `value` or greater.
    wait(stream: CUstream, at: CUdeviceptr, value: u32) =
        cuStreamWaitValue32_v2(stream, at, value, 0);
    write(stream: CUstream, at: CUdeviceptr, value: u32) =
        cuStreamWriteValue32_v2(stream, at, value, 0);
    write_64(stream: CUstream, at: CUdeviceptr, value: u64) =
        cuStreamWriteValue64_v2(stream, at, value, 0);
    unload_module(module: CUmodule) = cuModuleUnload(module);
    /// Loads a kernel that a lazy driver has not loaded yet.
    load(kernel: CUfunction) = cuFuncLoad(kernel);
    begin_capture(stream: CUstream) = cuStreamBeginCapture_v2(stream, THREAD_LOCAL);
    replay(exec: CUgraphExec, stream: CUstream) = cuGraphLaunch(exec, stream);
}

/// The first device, which is enough to know that there is one.
pub(crate) fn first_device() -> Answer<c_int> {
    initialize()?;
    device(0)
}

/// The first device, with its primary context current.
pub(crate) fn open() -> Answer<c_int> {
    let device = first_device()?;
    make_current(primary_context(device)?)?;
    Ok(device)
}

pub(crate) fn name(device: c_int) -> Answer<String> {
    let name = name_bytes(device)?;
    Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
}

pub(crate) fn uuid(device: c_int) -> Answer<String> {
    let uuid = uuid_bytes(device)?;
    Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
}

/// True if the stream has run all its work.
pub(crate) fn is_idle(stream: CUstream) -> Answer<bool> {
    match ask!(cuStreamQuery(stream)) {
        Err(why) if why.contains("NOT_READY") => Ok(false),
        answer => answer.map(|()| true),
    }
}

/// Waits until the stream is idle; an error after `limit`, for a stream may wait for ever.
pub(crate) fn wait_until_idle(stream: CUstream, limit: Duration) -> Answer {
    let end = Instant::now() + limit;
    while !is_idle(stream)? {
        if Instant::now() > end {
            return Err(format!("not over in {limit:?}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

pub(crate) fn event(timing: bool) -> Answer<CUevent> {
    event_with(if timing { 0 } else { 2 })
}

/// Seconds between two events that have passed.
pub(crate) fn between(from: CUevent, to: CUevent) -> Answer<f64> {
    Ok(f64::from(milliseconds(from, to)?) / 1e3)
}

/// Waits and writes of 32-bit values that a stream is given in one call.
#[derive(Default)]
pub(crate) struct Batch(Vec<CUstreamBatchMemOpParams>);

impl Batch {
    pub(crate) fn wait(self, at: CUdeviceptr, value: u32) -> Self {
        self.push(CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32, at, value)
    }

    pub(crate) fn write(self, at: CUdeviceptr, value: u32) -> Self {
        self.push(CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32, at, value)
    }

    /// The words of the C struct, on a host whose low bytes come first.
    fn push(mut self, operation: CUstreamBatchMemOpType, at: CUdeviceptr, value: u32) -> Self {
        self.0
            .push(CUstreamBatchMemOpParams { pad: [operation as u64, at, value.into(), 0, 0, 0] });
        self
    }

    pub(crate) fn put(&mut self, stream: CUstream) -> Answer {
        let (count, list) = (self.0.len() as u32, self.0.as_mut_ptr());
        ask!(cuStreamBatchMemOp_v2(stream, count, list, 0))
    }
}

/// One of the library's kernels as a module of its own: the head of the PTX, and the entry.
pub(crate) fn module(kernel: &str) -> Answer<CUmodule> {
    let mut parts = PTX.split(".visible .entry ");
    let head = parts.next().unwrap_or_default();
    let text = parts.find(|part| part.split('(').next() == Some(kernel));
    let text = format!("{head}.visible .entry {}", text.ok_or(format!("no kernel {kernel}"))?);
    load_module(&CString::new(text).map_err(|error| error.to_string())?)
}

pub(crate) fn function(module: CUmodule, kernel: &str) -> Answer<CUfunction> {
    function_by(module, &CString::new(kernel).map_err(|error| error.to_string())?)
}

/// A kernel, loaded for as long as the process runs.
pub(crate) fn kernel(name: &str) -> Answer<CUfunction> {
    function(module(name)?, name)
}

/// Launches a kernel whose parameters are these words, or the lower halves of them.
pub(crate) fn launch(
    kernel: CUfunction,
    stream: CUstream,
    [threads, blocks, rows]: [u32; 3],
    words: &mut [u64],
) -> Answer {
    let mut each: Vec<*mut c_void> = words.iter_mut().map(|word| from_mut(word).cast()).collect();
    let (each, none) = (each.as_mut_ptr(), null_mut());
    ask!(cuLaunchKernel(kernel, blocks, rows, 1, threads, 1, 1, 0, stream, each, none))
}

/// Folds `sources` buffers into `outs` buffers; the table has the addresses of both, in this order.
pub(crate) fn fold(
    kernel: CUfunction,
    stream: CUstream,
    blocks: u32,
    table: CUdeviceptr,
    [sources, outs]: [u64; 2],
    count: u64,
) -> Answer {
    let mut words = [table, sources, table + 8 * sources, outs, 0, 0, count, 0, 0, 0, 0];
    launch(kernel, stream, [THREADS, blocks, 1], &mut words)
}

/// Runs `rr_move` on a list of one move.
pub(crate) fn one_move(
    kernel: CUfunction,
    stream: CUstream,
    blocks: u32,
    list: CUdeviceptr,
) -> Answer {
    launch(kernel, stream, [THREADS, blocks, 1], &mut [list, 1, 0, 0])
}
