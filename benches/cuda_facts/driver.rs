//! The driver's calls, each with its name in its error; one that this driver lacks is an error too.
//! May touch: the driver. Unsafe: calls it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{from_mut, null, null_mut};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream,
    CUstreamBatchMemOpParams,
};

pub(crate) type Answer<T = ()> = Result<T, String>;

const PTX: &str = include_str!("../../kernels/ringreduce.ptx");
const THREADS: u32 = 512;

/// `ask!(cuInit(0))`: makes the call, if the driver has it.
macro_rules! ask {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        static THERE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if *THERE.get_or_init(|| has(stringify!($name))) {
            // SAFETY: it is there, and pointers given are to what the function around this holds.
            let answer = unsafe { sys::$name($($arg),*) };
            check(stringify!($name), answer)
        } else {
            Err(concat!(stringify!($name), ": the driver has none").to_owned())
        }
    }};
}
pub(super) use ask;

/// Is there a driver at all?
pub(crate) fn there() -> bool {
    // SAFETY: loads the library of the system's driver and runs what that runs when it is loaded.
    unsafe { sys::is_culib_present() }
}

/// Has the driver this symbol?
pub(crate) fn has(name: &str) -> bool {
    // SAFETY: whoever gets here has seen that the library is there.
    let library = unsafe { sys::culib() };
    // SAFETY: it is only looked for, not called.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
}

pub(crate) fn check(call: &str, answer: CUresult) -> Answer {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{call}: {answer:?}")) }
}

/// The first device, and its primary context, which is the current one then.
pub(crate) fn open() -> Answer<c_int> {
    let (mut device, mut context) = (0, null_mut());
    ask!(cuInit(0))?;
    ask!(cuDeviceGet(&raw mut device, 0))?;
    ask!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
    ask!(cuCtxSetCurrent(context))?;
    Ok(device)
}

/// As much as it takes to know that there is a device.
pub(crate) fn first() -> Answer<c_int> {
    let mut device = 0;
    ask!(cuInit(0))?;
    ask!(cuDeviceGet(&raw mut device, 0))?;
    Ok(device)
}

pub(crate) fn version() -> Answer<c_int> {
    let mut version = 0;
    ask!(cuDriverGetVersion(&raw mut version))?;
    Ok(version)
}

pub(crate) fn name(device: c_int) -> Answer<String> {
    let mut name = [0_u8; 256];
    ask!(cuDeviceGetName(name.as_mut_ptr().cast(), 256, device))?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

pub(crate) fn uuid(device: c_int) -> Answer<String> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    ask!(cuDeviceGetUuid_v2(&raw mut uuid, device))?;
    Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
}

pub(crate) fn attribute(device: c_int, which: sys::CUdevice_attribute) -> Answer<c_int> {
    let mut value = 0;
    ask!(cuDeviceGetAttribute(&raw mut value, which, device))?;
    Ok(value)
}

/// The least and the greatest priority of streams.
pub(crate) fn priorities() -> Answer<[c_int; 2]> {
    let [mut least, mut greatest] = [0; 2];
    ask!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
    Ok([least, greatest])
}

pub(crate) fn context_flags() -> Answer<u32> {
    let mut flags = 0;
    ask!(cuCtxGetFlags(&raw mut flags))?;
    Ok(flags)
}

/// Waits for all that the context does.
pub(crate) fn finish() -> Answer {
    ask!(cuCtxSynchronize())
}

pub(crate) fn stream() -> Answer<CUstream> {
    let mut stream = null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    ask!(cuStreamCreate(&raw mut stream, flags))?;
    Ok(stream)
}

pub(crate) fn end_stream(stream: CUstream) -> Answer {
    ask!(cuStreamDestroy_v2(stream))
}

pub(crate) fn drain(stream: CUstream) -> Answer {
    ask!(cuStreamSynchronize(stream))
}

/// Has the stream done all it was told?
pub(crate) fn idle(stream: CUstream) -> Answer<bool> {
    if !has("cuStreamQuery") {
        return Err("cuStreamQuery: the driver has none".into());
    }
    // SAFETY: it is there, and so is the stream.
    match unsafe { sys::cuStreamQuery(stream) } {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        answer => check("cuStreamQuery", answer).map(|()| true),
    }
}

/// Waits until it has, but not for ever: a stream may wait for a flag that nobody writes.
pub(crate) fn settle(stream: CUstream, limit: Duration) -> Answer {
    let end = Instant::now() + limit;
    while !idle(stream)? {
        if Instant::now() > end {
            return Err(format!("not over in {limit:?}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

pub(crate) fn event(timing: bool) -> Answer<CUevent> {
    let (mut event, flags) = (null_mut(), if timing { 0 } else { 2 });
    ask!(cuEventCreate(&raw mut event, flags))?;
    Ok(event)
}

pub(crate) fn end_event(event: CUevent) -> Answer {
    ask!(cuEventDestroy_v2(event))
}

pub(crate) fn record(event: CUevent, stream: CUstream) -> Answer {
    ask!(cuEventRecord(event, stream))
}

pub(crate) fn wait_event(stream: CUstream, event: CUevent) -> Answer {
    ask!(cuStreamWaitEvent(stream, event, 0))
}

/// Seconds between two events that are over.
pub(crate) fn between(from: CUevent, to: CUevent) -> Answer<f64> {
    let mut ms = 0.0;
    ask!(cuEventElapsedTime(&raw mut ms, from, to))?;
    Ok(f64::from(ms) / 1e3)
}

/// The stream waits until a word has this value, or a later one.
pub(crate) fn wait(stream: CUstream, at: CUdeviceptr, value: u32) -> Answer {
    ask!(cuStreamWaitValue32_v2(stream, at, value, 0))
}

pub(crate) fn write(stream: CUstream, at: CUdeviceptr, value: u32) -> Answer {
    ask!(cuStreamWriteValue32_v2(stream, at, value, 0))
}

pub(crate) fn write_long(stream: CUstream, at: CUdeviceptr, value: u64) -> Answer {
    ask!(cuStreamWriteValue64_v2(stream, at, value, 0))
}

/// Waits and writes, to be put on a stream in one call.
#[derive(Default)]
pub(crate) struct Batch(Vec<CUstreamBatchMemOpParams>);

impl Batch {
    pub(crate) fn wait(mut self, address: CUdeviceptr, value: u32) -> Self {
        type Value =
            sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1;
        let mut op = CUstreamBatchMemOpParams { pad: [0; 6] };
        op.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
            operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address,
            __bindgen_anon_1: Value { value },
            flags: 0,
            alias: 0,
        };
        self.0.push(op);
        self
    }

    pub(crate) fn write(mut self, address: CUdeviceptr, value: u32) -> Self {
        type Value =
            sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1;
        let mut op = CUstreamBatchMemOpParams { pad: [0; 6] };
        op.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address,
            __bindgen_anon_1: Value { value },
            flags: 0,
            alias: 0,
        };
        self.0.push(op);
        self
    }

    pub(crate) fn put(&mut self, stream: CUstream) -> Answer {
        let (count, list) = (self.0.len() as u32, self.0.as_mut_ptr());
        ask!(cuStreamBatchMemOp_v2(stream, count, list, 0))
    }
}

/// One kernel of ours as a module of its own: the head of the PTX, and the entry.
pub(crate) fn module(kernel: &str) -> Answer<CUmodule> {
    let mut parts = PTX.split(".visible .entry ");
    let head = parts.next().unwrap_or_default();
    let text = parts.find(|part| part.split('(').next() == Some(kernel));
    let text = format!("{head}.visible .entry {}", text.ok_or(format!("no kernel {kernel}"))?);
    let (text, mut module) = (CString::new(text).map_err(|e| e.to_string())?, null_mut());
    ask!(cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
    Ok(module)
}

pub(crate) fn end_module(module: CUmodule) -> Answer {
    ask!(cuModuleUnload(module))
}

pub(crate) fn function(module: CUmodule, kernel: &str) -> Answer<CUfunction> {
    let (name, mut function) = (CString::new(kernel).map_err(|e| e.to_string())?, null_mut());
    ask!(cuModuleGetFunction(&raw mut function, module, name.as_ptr()))?;
    Ok(function)
}

/// A kernel, which nobody unloads.
pub(crate) fn kernel(name: &str) -> Answer<CUfunction> {
    function(module(name)?, name)
}

/// Loads what a lazy driver has not loaded yet.
pub(crate) fn load(function: CUfunction) -> Answer {
    ask!(cuFuncLoad(function))
}

/// Asks something about it, for which a lazy driver may have to load it.
pub(crate) fn ask_about(function: CUfunction) -> Answer {
    use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as MOST;
    let mut threads = 0;
    ask!(cuFuncGetAttribute(&raw mut threads, MOST, function))
}

fn launch(function: CUfunction, stream: CUstream, blocks: u32, words: &mut [u64]) -> Answer {
    let mut each: Vec<*mut c_void> = words.iter_mut().map(|word| from_mut(word).cast()).collect();
    let (each, none) = (each.as_mut_ptr(), null_mut());
    ask!(cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, each, none))
}

/// A fold of so many sources, whose table is followed by that of as many outputs.
pub(crate) fn fold(
    function: CUfunction,
    stream: CUstream,
    table: CUdeviceptr,
    [sources, outs]: [u64; 2],
    count: u64,
) -> Answer {
    let mut words = [table, sources, table + 8 * sources, outs, 0, 0, count, 0, 0, 0, 0];
    launch(function, stream, 1, &mut words)
}

/// What is in a list of one move.
pub(crate) fn one_move(function: CUfunction, stream: CUstream, list: CUdeviceptr) -> Answer {
    launch(function, stream, 132, &mut [list, 1, 0, 0])
}

pub(crate) fn capture(stream: CUstream) -> Answer {
    use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as LOCAL;
    ask!(cuStreamBeginCapture_v2(stream, LOCAL))
}

pub(crate) fn end_capture(stream: CUstream) -> Answer<CUgraph> {
    let mut graph = null_mut();
    ask!(cuStreamEndCapture(stream, &raw mut graph))?;
    Ok(graph)
}

pub(crate) fn nodes(graph: CUgraph) -> Answer<usize> {
    let mut nodes = 0;
    ask!(cuGraphGetNodes(graph, null::<sys::CUgraphNode>().cast_mut(), &raw mut nodes))?;
    Ok(nodes)
}

pub(crate) fn instantiate(graph: CUgraph) -> Answer<CUgraphExec> {
    let mut exec = null_mut();
    ask!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
    Ok(exec)
}

pub(crate) fn replay(exec: CUgraphExec, stream: CUstream) -> Answer {
    ask!(cuGraphLaunch(exec, stream))
}
