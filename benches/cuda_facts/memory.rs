//! Memory of the device, of the host where the device reaches it, and of other processes. May
//! touch: the driver, mappings. Unsafe: calls the driver, maps, and refers to words of mappings.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys::{self, CUdeviceptr, CUipcMemHandle, CUpointer_attribute, CUstream};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use super::driver::{Answer, ask, calls, check, has_symbol, queries};

const BUFFER_ID: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
const SYNC_MEMOPS: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
static SYNC_ON: u32 = 1;
/// Flags of pinned and registered memory: portable and mapped.
const MAPPED: u32 = 1 | 2;

queries! {
    allocate(bytes: usize) -> at: CUdeviceptr = cuMemAlloc_v2(&raw mut at, bytes);
    allocate_async(bytes: usize, stream: CUstream) -> at: CUdeviceptr =
        cuMemAllocAsync(&raw mut at, bytes, stream);
    allocate_host(bytes: usize) -> start: *mut c_void =
        cuMemHostAlloc(&raw mut start, bytes, MAPPED);
    device_address(start: *mut c_void) -> at: CUdeviceptr =
        cuMemHostGetDevicePointer_v2(&raw mut at, start, 0);
    /// Free bytes, and all bytes, of the device.
    free_and_total() -> found: [usize; 2] =
        cuMemGetInfo_v2(&raw mut found[0], &raw mut found[1]);
    /// The number by which the driver distinguishes allocations that had the same address.
    buffer_id(at: CUdeviceptr) -> id: u64 =
        cuPointerGetAttribute((&raw mut id).cast(), BUFFER_ID, at);
    first_float(at: CUdeviceptr) -> value: f32 = cuMemcpyDtoH_v2((&raw mut value).cast(), at, 4);
    handle(at: CUdeviceptr) -> handle: CUipcMemHandle = cuIpcGetMemHandle(&raw mut handle, at);
    open_handle(handle: CUipcMemHandle) -> at: CUdeviceptr =
        cuIpcOpenMemHandle_v2(&raw mut at, handle, 1);
}

calls! {
    free(at: CUdeviceptr) = cuMemFree_v2(at);
    free_async(at: CUdeviceptr, stream: CUstream) = cuMemFreeAsync(at, stream);
    fill(at: CUdeviceptr, word: u32, words: usize) = cuMemsetD32_v2(at, word, words);
    fill_async(at: CUdeviceptr, bytes: usize, stream: CUstream) =
        cuMemsetD8Async(at, 0, bytes, stream);
    copy(from: CUdeviceptr, to: CUdeviceptr, bytes: usize, stream: CUstream) =
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    /// Makes synchronous copies of this memory always wait for their end.
    synchronous(at: CUdeviceptr) =
        cuPointerSetAttribute((&raw const SYNC_ON).cast(), SYNC_MEMOPS, at);
    close(at: CUdeviceptr) = cuIpcCloseMemHandle(at);
}

/// Memory of the device, with every byte 0.
pub(crate) fn zeroed(bytes: usize) -> Answer<CUdeviceptr> {
    let at = allocate(bytes)?;
    ask!(cuMemsetD8_v2(at, 0, bytes))?;
    Ok(at)
}

/// A table of words in the device's memory.
pub(crate) fn table(words: &[u64]) -> Answer<CUdeviceptr> {
    let at = allocate(size_of_val(words))?;
    ask!(cuMemcpyHtoD_v2(at, words.as_ptr().cast(), size_of_val(words)))?;
    Ok(at)
}

/// Copies in the order of the stream. The driver has read pageable memory when this returns.
pub(crate) fn upload(to: CUdeviceptr, from: &[u8], stream: CUstream) -> Answer {
    ask!(cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream))
}

pub(crate) fn download(to: &mut [u8], from: CUdeviceptr) -> Answer {
    ask!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()))
}

/// Memory of the host, which stays until the process ends, or is unpinned.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    start: *mut c_void,
    bytes: usize,
}

impl Host {
    /// Memory that the driver knows nothing of.
    pub(crate) fn pageable(bytes: usize) -> Self {
        let start = Vec::leak(vec![1_u8; bytes]).as_mut_ptr().cast();
        Self { start, bytes }
    }

    /// Memory that the driver allocates, mapped for the device, with every byte 0.
    pub(crate) fn pinned(bytes: usize) -> Answer<Self> {
        let host = Self { start: allocate_host(bytes)?, bytes };
        host.fill(0);
        Ok(host)
    }

    pub(crate) fn unpin(self) -> Answer {
        ask!(cuMemFreeHost(self.start))
    }

    /// The file's pages, which other processes may map too.
    pub(crate) fn map(file: &File, bytes: usize) -> Answer<Self> {
        let length = NonZeroUsize::new(bytes).ok_or("nothing to map")?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { mmap(None, length, both, MapFlags::MAP_SHARED, file, 0) };
        let start = start.map_err(|error| format!("mmap: {error}"))?.as_ptr();
        Ok(Self { start, bytes })
    }

    /// Pages of a new memory file, and the file.
    pub(crate) fn shared(bytes: usize) -> Answer<(Self, File)> {
        let made = memfd_create("cuda_facts", MFdFlags::MFD_CLOEXEC);
        let file = File::from(made.map_err(|error| format!("memfd_create: {error}"))?);
        file.set_len(bytes as u64).map_err(|error| format!("ftruncate: {error}"))?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Writes to every page, so that the kernel has allocated it.
    pub(crate) fn fill(self, byte: u8) {
        // SAFETY: the memory is as long, and no device uses it yet.
        unsafe { self.start.cast::<u8>().write_bytes(byte, self.bytes) };
    }

    /// Writes bytes to the memory's start; no device may use it meanwhile.
    pub(crate) fn store(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "{} bytes into {}", bytes.len(), self.bytes);
        // SAFETY: the memory is as long, and the caller vouches for devices.
        unsafe { self.start.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn register(self) -> Answer {
        ask!(cuMemHostRegister_v2(self.start, self.bytes, MAPPED))
    }

    pub(crate) fn unregister(self) -> Answer {
        ask!(cuMemHostUnregister(self.start))
    }

    /// The memory's address on the device.
    pub(crate) fn device(self) -> Answer<CUdeviceptr> {
        device_address(self.start)
    }

    /// True if host and device use the same address.
    pub(crate) fn has_one_address(self) -> Answer<bool> {
        Ok(self.device()? == self.start.addr() as CUdeviceptr)
    }

    pub(crate) fn word(self, index: usize) -> Answer<&'static AtomicU32> {
        if 4 * (index + 1) > self.bytes {
            return Err(format!("no word {index} in {} bytes", self.bytes));
        }
        // SAFETY: the word is inside.
        let word = unsafe { self.start.cast::<AtomicU32>().add(index) };
        // SAFETY: the memory stays, and all use the word as an atomic.
        Ok(unsafe { &*word })
    }

    /// Copies `bytes` from offset `at` to the device.
    pub(crate) fn up(self, at: usize, to: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
        ask!(cuMemcpyHtoDAsync_v2(to, self.start.wrapping_byte_add(at), bytes, stream))
    }

    /// Copies `bytes` from the device to offset `at`.
    pub(crate) fn down(
        self,
        at: usize,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Answer {
        ask!(cuMemcpyDtoHAsync_v2(self.start.wrapping_byte_add(at), from, bytes, stream))
    }

    /// Copies to the device on the default stream, and waits for the copy.
    pub(crate) fn up_now(self, to: CUdeviceptr, bytes: usize) -> Answer {
        ask!(cuMemcpyHtoD_v2(to, self.start, bytes))
    }
}

/// The handle by which another process opens this memory, as hexadecimal text.
pub(crate) fn export(at: CUdeviceptr) -> Answer<String> {
    Ok(handle(at)?.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
}

/// Opens another process's memory by the text of its handle.
pub(crate) fn import(text: &str) -> Answer<CUdeviceptr> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    for (i, byte) in handle.reserved.iter_mut().enumerate() {
        let digits = text.get(2 * i..2 * i + 2).ok_or("a handle that is too short")?;
        *byte = u8::from_str_radix(digits, 16).map_err(|error| error.to_string())? as _;
    }
    open_handle(handle)
}
