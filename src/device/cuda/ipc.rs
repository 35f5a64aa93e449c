//! Device memory that other processes can open. May touch: error. Unsafe: calls of the driver.
//! Law: what was opened is closed before its owner frees it; who can't be sure leaves it.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr, CUipcMemHandle, CUresult, CUstream};

use super::context::Current;
use super::driver::{Driver, check};
use crate::error::Result;

/// Words of a handle on its way to another process.
pub(crate) const WORDS: usize = 8;

/// Memory of a device, of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    driver: Driver,
    context: Arc<CudaContext>,
    start: CUdeviceptr,
}

impl Memory {
    /// So many bytes, at least one. The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let mut start = 0;
        // SAFETY: asks for memory, and says where to put its address.
        let made = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes.max(1)) };
        check(&format!("allocating {bytes} bytes on the device"), made)?;
        Ok(Self { driver, context: Arc::clone(context), start })
    }

    /// Clears so many bytes of it, in the order of the stream, and waits for that.
    pub(crate) fn clear(&self, bytes: usize, stream: CUstream) -> Result<()> {
        // SAFETY: the memory is as long, as its owner knows.
        let begun = unsafe { sys::cuMemsetD8Async(self.start, 0, bytes, stream) };
        check("clearing device memory", begun)?;
        // SAFETY: the stream is of the current context.
        check("clearing device memory", unsafe { sys::cuStreamSynchronize(stream) })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

/// What another process opens memory by that this one has allocated: a handle of the whole
/// allocation, and how far into it `start` is. The context is current.
pub(crate) fn handle(start: CUdeviceptr) -> Result<([u64; WORDS], u64)> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: it stores two numbers where it is told; what is no memory is an error of the call.
    let found = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, start) };
    check("finding out what device memory a buffer is in", found)?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the driver stores the handle where it is told.
    let told = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, base) };
    check("exporting device memory to other processes (memory of a pool can't be)", told)?;
    let word = |at: usize| {
        let bytes = handle.reserved[at * 8..at * 8 + 8].iter().rev();
        bytes.fold(0, |word, &byte| word << 8 | u64::from(byte.cast_unsigned()))
    };
    Ok((std::array::from_fn(word), start - base))
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Ok(_current) = Current::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: it is ours and freed once; the driver waits for work that uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.start) };
        }
    }
}

const OPENING: &str = "opening another process's device memory";

/// Opens what a handle is of: where it begins here, and what the driver says.
fn open(handle: [u64; WORDS]) -> (CUdeviceptr, CUresult) {
    let mut of = CUipcMemHandle { reserved: [0; 64] };
    let bytes = handle.iter().flat_map(|word| word.to_le_bytes());
    for (to, byte) in of.reserved.iter_mut().zip(bytes) {
        *to = byte.cast_signed();
    }
    let mut start = 0;
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: what is no handle is an error of the call.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut start, of, flags) };
    (start, opened)
}

/// Another process's memory, opened here.
#[derive(Debug)]
pub(crate) struct Opened {
    driver: Driver,
    context: Arc<CudaContext>,
    handle: [u64; WORDS],
    start: CUdeviceptr,
}

impl Opened {
    /// The context is current.
    pub(crate) fn new(
        driver: Driver,
        context: &Arc<CudaContext>,
        handle: [u64; WORDS],
    ) -> Result<Self> {
        let (start, opened) = open(handle);
        check(OPENING, opened)?;
        Ok(Self { driver, context: Arc::clone(context), handle, start })
    }

    /// Does this rank's device reach what a handle is of? The context is current; the memory's
    /// device need not be visible to this process.
    ///
    /// # Errors
    /// If the driver does not open it for another reason.
    pub(crate) fn reaches(handle: [u64; WORDS]) -> Result<bool> {
        match open(handle) {
            (_, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) => Ok(false),
            (start, opened) => {
                check(OPENING, opened)?;
                // SAFETY: it was opened just now, and nobody uses it.
                let closed = unsafe { sys::cuIpcCloseMemHandle(start) };
                check("closing another process's device memory", closed).map(|()| true)
            }
        }
    }

    /// Is it what this handle is of?
    pub(crate) fn is_of(&self, handle: [u64; WORDS]) -> bool {
        self.handle == handle
    }

    /// Where it begins here.
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Ok(_current) = Current::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: it was opened here, and is closed once.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.start) };
        }
    }
}
