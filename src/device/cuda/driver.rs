//! The driver: is it there, has it all that is called here, and what its answers mean.
//! May touch: error. Unsafe: looks for symbols and asks for names.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUresult};

use crate::error::{Error, Result};

/// What is called here, and some of it may be missing in an old driver.
const NEEDED: [&str; 49] = [
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
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// What is called here where the driver has all of it: graphs say when they are no more.
const OF_GRAPHS: [&str; 4] = [
    "cuGraphRetainUserObject",
    "cuStreamGetCaptureInfo_v2",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
];

/// Do graphs say when they are no more? Drivers from CUDA 11.3 on make them.
pub(super) fn knows_graphs() -> bool {
    static KNOWS: OnceLock<bool> = OnceLock::new();
    *KNOWS.get_or_init(|| OF_GRAPHS.iter().all(|name| has(name)))
}

/// Has the driver, which is there, this call?
fn has(name: &str) -> bool {
    // SAFETY: it is there, and stays.
    let library = unsafe { sys::culib() };
    // SAFETY: it is only looked for, not called.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
}

/// Proof that the driver is there, and whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver(());

/// Looks for the driver, once.
///
/// # Errors
/// If there is none, it is too old, or it finds no device.
pub(crate) fn driver() -> Result<Driver> {
    static FOUND: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let found = FOUND.get_or_init(find);
    found.clone().map_err(|reason| Error::Device { doing: "looking for CUDA".into(), reason })
}

fn find() -> std::result::Result<Driver, String> {
    // SAFETY: loads the library of the system's driver and runs what that runs when it is loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "there is no driver, libcuda.so.1; install NVIDIA's, or use host buffers".into()
        );
    }
    for name in NEEDED {
        if !has(name) {
            return Err(format!("the driver has no {name}; it is too old: install a newer one"));
        }
    }
    // SAFETY: the first call of all, with the only flags there are.
    check("", unsafe { sys::cuInit(0) }).map_err(|error| match error {
        Error::Device { reason, .. } => reason,
        other => other.to_string(),
    })?;
    Ok(Driver(()))
}

/// The driver's answer as ours.
///
/// # Errors
/// If it is none that it did what it was told.
pub(crate) fn check(doing: &str, answer: CUresult) -> Result<()> {
    if answer == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(refusal(doing, answer)) }
}

/// What the driver answered to a call of the user's own.
impl From<DriverError> for Error {
    fn from(DriverError(answer): DriverError) -> Self {
        refusal("a call of the CUDA driver", answer)
    }
}

fn refusal(doing: &str, answer: CUresult) -> Error {
    let name = name(answer);
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

fn name(answer: CUresult) -> String {
    let mut name = null();
    // SAFETY: it stores a pointer to a constant of its own, or null.
    let known = unsafe { sys::cuGetErrorName(answer, &raw mut name) };
    if known != CUresult::CUDA_SUCCESS || name.is_null() {
        return format!("CUDA error {}", answer as u32);
    }
    // SAFETY: it ends with a zero and stays.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
