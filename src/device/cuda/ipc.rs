//! Device memory between processes: allocations, the IPC handles by which they are exported, and
//! mappings of other processes' allocations.
//! Law: a mapping is closed before the owner frees the memory; memory that may still be mapped is
//! leaked.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUipcMemHandle, CUresult, CUstream};

use super::context::CurrentContext;
use super::driver::{Driver, check};
use crate::error::Result;

/// 64-bit words of a handle, as it is sent to another process.
pub(crate) const HANDLE_WORDS: usize = 8;

/// Device memory that this process has allocated.
#[derive(Debug)]
pub(crate) struct DeviceAllocation {
    driver: Driver,
    context: Arc<CudaContext>,
    start: CUdeviceptr,
}

impl DeviceAllocation {
    /// Allocates so many bytes, at least one. The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let mut start = 0;
        // SAFETY: the driver allocates, and stores the address where it is told.
        let made = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes.max(1)) };
        check(&format!("allocating {bytes} bytes on the device"), made)?;
        Ok(Self { driver, context: Arc::clone(context), start })
    }

    /// Clears the first `bytes`, in the order of the stream, and waits for that.
    pub(crate) fn clear(&self, bytes: usize, stream: CUstream) -> Result<()> {
        // SAFETY: the memory is at least as long, as its owner knows.
        let begun = unsafe { sys::cuMemsetD8Async(self.start, 0, bytes, stream) };
        check("clearing device memory", begun)?;
        // SAFETY: the stream is of the current context.
        check("clearing device memory", unsafe { sys::cuStreamSynchronize(stream) })
    }

    pub(crate) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

/// The handle by which another process opens the allocation around `start`, and the byte offset of
/// `start` in it. The context is current.
pub(crate) fn export_handle(start: CUdeviceptr) -> Result<([u64; HANDLE_WORDS], u64)> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: the driver stores two numbers where it is told; an address outside any allocation
    // is an error of the call.
    let found = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, start) };
    check("finding out what device memory a buffer is in", found)?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the driver stores the handle where it is told.
    let exported = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, base) };
    check("exporting device memory to other processes (memory of a pool can't be)", exported)?;
    // A char of C is signed on some CPUs.
    let byte = |at: usize| handle.reserved[at].to_ne_bytes()[0];
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| byte(8 * at + i)));
    Ok((std::array::from_fn(word), start - base))
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: the memory is this one's own and freed once; the driver waits for work that
            // uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.start) };
        }
    }
}

/// The name of another process's driver's answer to opening memory, by its number.
pub(crate) fn opening_answer_name(answer: u64) -> String {
    use CUresult::{
        CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_TOO_MANY_PEERS,
    };
    let known = [
        CUDA_ERROR_ALREADY_MAPPED,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        CUDA_ERROR_TOO_MANY_PEERS,
    ];
    let found = known.into_iter().find(|&it| it as u64 == answer);
    found.map_or_else(|| format!("CUDA error {answer}"), |it| format!("{it:?}"))
}

const OPENING: &str = "opening another process's device memory";

/// Opens a handle: the address in this process, and the driver's answer.
fn open_handle(handle: [u64; HANDLE_WORDS]) -> (CUdeviceptr, CUresult) {
    let mut of = CUipcMemHandle { reserved: [0; 64] };
    let bytes = handle.iter().flat_map(|word| word.to_le_bytes());
    for (to, byte) in of.reserved.iter_mut().zip(bytes) {
        *to = c_char::from_ne_bytes([byte]);
    }
    let mut start = 0;
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: words that are no handle are an error of the call.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut start, of, flags) };
    (start, opened)
}

/// The mapping of another process's allocation.
#[derive(Debug)]
pub(crate) struct PeerMapping {
    driver: Driver,
    context: Arc<CudaContext>,
    handle: [u64; HANDLE_WORDS],
    start: CUdeviceptr,
}

impl PeerMapping {
    /// Opens a handle, or gives the number of the driver's answer.
    pub(super) fn new(
        driver: Driver,
        context: &Arc<CudaContext>,
        handle: [u64; HANDLE_WORDS],
    ) -> Result<Self, u64> {
        let lost_context = |_| CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as u64;
        let _current = CurrentContext::new(driver, context.cu_ctx()).map_err(lost_context)?;
        let (start, opened) = open_handle(handle);
        match opened {
            CUresult::CUDA_SUCCESS => {
                Ok(Self { driver, context: Arc::clone(context), handle, start })
            }
            answer => Err(answer as u64),
        }
    }

    /// What `read` finds at the address of a handle's memory; none if this rank's device can't
    /// access it. The context is current; this process need not see the device of the memory.
    ///
    /// # Errors
    /// If the driver does not open it for another reason, or `read` fails.
    pub(crate) fn open_and_read<T>(
        handle: [u64; HANDLE_WORDS],
        read: impl FnOnce(CUdeviceptr) -> Result<T>,
    ) -> Result<Option<T>> {
        match open_handle(handle) {
            (_, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) => Ok(None),
            (start, opened) => {
                check(OPENING, opened)?;
                let found = read(start);
                // SAFETY: the mapping was opened above, and nothing uses it any more.
                let closed = unsafe { sys::cuIpcCloseMemHandle(start) };
                check("closing another process's device memory", closed)?;
                found.map(Some)
            }
        }
    }

    pub(super) fn is_of(&self, handle: [u64; HANDLE_WORDS]) -> bool {
        self.handle == handle
    }

    pub(super) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

impl Drop for PeerMapping {
    fn drop(&mut self) {
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: the mapping was opened here, and is closed once.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.start) };
        }
    }
}
