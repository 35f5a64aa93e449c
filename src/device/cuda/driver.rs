//! The CUDA driver: loading the library, the check that it has every symbol that is called, and the
//! translation of its answers into errors.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUresult};

use crate::error::{Error, Result};

/// The symbols that every call on a device needs; an old driver may lack some.
const NEEDED: [&str; 51] = [
    "cuCtxEnablePeerAccess",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemPoolSetAccess",
    "cuMemcpyAsync",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuPointerGetAttributes",
    "cuStreamBatchMemOp_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// The symbols for destructors of graphs. A driver from before CUDA 11.3 lacks them and still
/// serves.
const GRAPH_CALLBACK_CALLS: [&str; 4] = [
    "cuGraphRetainUserObject",
    "cuStreamGetCaptureInfo_v2",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
];

/// True if the driver calls a destructor when a graph is destroyed.
pub(super) fn has_graph_callbacks() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| GRAPH_CALLBACK_CALLS.iter().all(|name| has_symbol(name)))
}

/// True if the driver, which is loaded, has this symbol.
fn has_symbol(name: &str) -> bool {
    // SAFETY: the library is loaded and stays so.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is only looked up, not called.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
}

/// Proof that the driver is loaded and complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver(());

/// Loads the driver, once per process.
///
/// # Errors
/// If there is no driver, it is too old, or it finds no device.
pub(crate) fn driver() -> Result<Driver> {
    static FOUND: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let found = FOUND.get_or_init(load);
    found.clone().map_err(|reason| Error::Device { doing: "looking for CUDA".into(), reason })
}

fn load() -> std::result::Result<Driver, String> {
    // SAFETY: loads the system's driver and runs the constructors of that library.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "there is no driver, libcuda.so.1; install NVIDIA's, or use host buffers".into()
        );
    }
    for name in NEEDED {
        if !has_symbol(name) {
            return Err(format!("the driver has no {name}; it is too old: install a newer one"));
        }
    }
    // SAFETY: the first call of the driver, with the only flags that exist.
    check("", unsafe { sys::cuInit(0) }).map_err(|error| match error {
        Error::Device { reason, .. } => reason,
        other => other.to_string(),
    })?;
    Ok(Driver(()))
}

/// Turns an answer of the driver into a result; `doing` says what was tried.
///
/// # Errors
/// If the answer is not success.
pub(crate) fn check(doing: &str, answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(device_error(doing, answer)) }
}

/// The answer to a call that the user made through cudarc.
impl From<DriverError> for Error {
    fn from(DriverError(answer): DriverError) -> Self {
        device_error("a call of the CUDA driver", answer)
    }
}

fn device_error(doing: &str, answer: CUresult) -> Error {
    let name = error_name(answer);
    let advice = match answer {
        CUresult::CUDA_ERROR_NO_DEVICE => "; there is a driver, but no device that it may use",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "; the device or the pinned host memory is full",
        CUresult::CUDA_ERROR_INVALID_VALUE => "; is the pointer freed, or of the host?",
        CUresult::CUDA_ERROR_INVALID_CONTEXT => "; its context was destroyed",
        CUresult::CUDA_ERROR_INVALID_HANDLE => "; is it of another context, or destroyed?",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
            "; a kernel before this call broke the context: look there"
        }
        _ => "",
    };
    Error::Device { doing: doing.into(), reason: format!("{name}{advice}") }
}

fn error_name(answer: CUresult) -> String {
    let mut name = null();
    // SAFETY: the driver stores a pointer to a constant of its own, or null.
    let found = unsafe { sys::cuGetErrorName(answer, &raw mut name) };
    if found != CUresult::CUDA_SUCCESS || name.is_null() {
        return format!("CUDA error {}", answer as u32);
    }
    // SAFETY: the name ends with a zero and stays.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
