//! Memory: the device's, the host's that it reaches, and that of other processes.
//! May touch: the driver, mappings. Unsafe: calls the driver, maps, and looks at words of mappings.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys::{self, CUdeviceptr, CUipcMemHandle, CUstream};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use super::driver::{Answer, ask, check, has};

pub(crate) fn memory(bytes: usize) -> Answer<CUdeviceptr> {
    let mut at = 0;
    ask!(cuMemAlloc_v2(&raw mut at, bytes))?;
    Ok(at)
}

/// Memory of the device, with every byte 0.
pub(crate) fn zeroed(bytes: usize) -> Answer<CUdeviceptr> {
    let at = memory(bytes)?;
    ask!(cuMemsetD8_v2(at, 0, bytes))?;
    Ok(at)
}

pub(crate) fn fill(at: CUdeviceptr, word: u32, words: usize) -> Answer {
    ask!(cuMemsetD32_v2(at, word, words))
}

pub(crate) fn fill_async(at: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    ask!(cuMemsetD8Async(at, 0, bytes, stream))
}

pub(crate) fn free(at: CUdeviceptr) -> Answer {
    ask!(cuMemFree_v2(at))
}

pub(crate) fn of_pool(bytes: usize, stream: CUstream) -> Answer<CUdeviceptr> {
    let mut at = 0;
    ask!(cuMemAllocAsync(&raw mut at, bytes, stream))?;
    Ok(at)
}

pub(crate) fn to_pool(at: CUdeviceptr, stream: CUstream) -> Answer {
    ask!(cuMemFreeAsync(at, stream))
}

/// Bytes that are free, and all.
pub(crate) fn left() -> Answer<[usize; 2]> {
    let [mut free, mut all] = [0; 2];
    ask!(cuMemGetInfo_v2(&raw mut free, &raw mut all))?;
    Ok([free, all])
}

/// The number by which the driver tells allocations apart that had the same address.
pub(crate) fn number(at: CUdeviceptr) -> Answer<u64> {
    use sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as ID;
    let mut id = 0_u64;
    ask!(cuPointerGetAttribute((&raw mut id).cast(), ID, at))?;
    Ok(id)
}

/// Makes synchronous copies of it always wait.
pub(crate) fn synchronous(at: CUdeviceptr) -> Answer {
    use sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as SYNC;
    let on = 1_u32;
    ask!(cuPointerSetAttribute((&raw const on).cast(), SYNC, at))
}

/// A table of words in the device's memory.
pub(crate) fn table(words: &[u64]) -> Answer<CUdeviceptr> {
    let at = memory(size_of_val(words))?;
    ask!(cuMemcpyHtoD_v2(at, words.as_ptr().cast(), size_of_val(words)))?;
    Ok(at)
}

/// The first element of a buffer.
pub(crate) fn first(at: CUdeviceptr) -> Answer<f32> {
    let mut value = 0_f32;
    ask!(cuMemcpyDtoH_v2((&raw mut value).cast(), at, 4))?;
    Ok(value)
}

pub(crate) fn copy(from: CUdeviceptr, to: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    ask!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
}

/// Memory of the host, which stays as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    start: *mut c_void,
    bytes: usize,
}

impl Host {
    /// Any memory, as programs have it.
    pub(crate) fn pageable(bytes: usize) -> Self {
        let start = Vec::leak(vec![1_u8; bytes]).as_mut_ptr().cast();
        Self { start, bytes }
    }

    /// Memory that the driver makes, mapped for the device.
    pub(crate) fn pinned(bytes: usize) -> Answer<Self> {
        let mut start = null_mut();
        // Portable and mapped.
        ask!(cuMemHostAlloc(&raw mut start, bytes, 1 | 2))?;
        let host = Self { start, bytes };
        // SAFETY: it was just allocated, and is as long.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(host)
    }

    pub(crate) fn unpin(self) -> Answer {
        ask!(cuMemFreeHost(self.start))
    }

    /// The file's pages, which others may map too.
    pub(crate) fn map(file: &File, bytes: usize) -> Answer<Self> {
        let length = NonZeroUsize::new(bytes).ok_or("nothing to map")?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { mmap(None, length, both, MapFlags::MAP_SHARED, file, 0) };
        let start = start.map_err(|error| format!("mmap: {error}"))?.as_ptr();
        Ok(Self { start, bytes })
    }

    /// Pages of a file that nobody else has, and the file.
    pub(crate) fn shared(bytes: usize) -> Answer<(Self, File)> {
        let made = memfd_create("cuda_facts", MFdFlags::MFD_CLOEXEC);
        let file = File::from(made.map_err(|error| format!("memfd_create: {error}"))?);
        file.set_len(bytes as u64).map_err(|error| format!("ftruncate: {error}"))?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Writes to every page, so that it is there.
    pub(crate) fn touch(self) {
        // SAFETY: all of it is ours, and no device uses it yet.
        unsafe { self.start.cast::<u8>().write_bytes(1, self.bytes) };
    }

    /// For the device as well.
    pub(crate) fn register(self) -> Answer {
        // Portable and mapped.
        ask!(cuMemHostRegister_v2(self.start, self.bytes, 1 | 2))
    }

    pub(crate) fn unregister(self) -> Answer {
        ask!(cuMemHostUnregister(self.start))
    }

    /// Where the device sees it.
    pub(crate) fn device(self) -> Answer<CUdeviceptr> {
        let mut at = 0;
        ask!(cuMemHostGetDevicePointer_v2(&raw mut at, self.start, 0))?;
        Ok(at)
    }

    /// Does the device see it where the host does?
    pub(crate) fn alike(self) -> Answer<bool> {
        Ok(self.device()? == self.start.addr() as CUdeviceptr)
    }

    /// One of its words.
    pub(crate) fn word(self, index: usize) -> Answer<&'static AtomicU32> {
        if 4 * (index + 1) > self.bytes {
            return Err("a word that is not there".into());
        }
        // SAFETY: it is inside.
        let word = unsafe { self.start.cast::<AtomicU32>().add(index) };
        // SAFETY: it stays as long as the process, and all look at it as an atomic.
        Ok(unsafe { &*word })
    }

    /// Copies of its bytes from `at` on, in a stream.
    pub(crate) fn up(self, at: usize, to: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
        let from = self.start.wrapping_byte_add(at);
        ask!(cuMemcpyHtoDAsync_v2(to, from, bytes, stream))
    }

    pub(crate) fn down(
        self,
        at: usize,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Answer {
        let to = self.start.wrapping_byte_add(at);
        ask!(cuMemcpyDtoHAsync_v2(to, from, bytes, stream))
    }

    /// The same, waited for as the default stream does.
    pub(crate) fn up_now(self, to: CUdeviceptr, bytes: usize) -> Answer {
        ask!(cuMemcpyHtoD_v2(to, self.start, bytes))
    }
}

/// What another process needs to open this memory, as text.
pub(crate) fn export(at: CUdeviceptr) -> Answer<String> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ask!(cuIpcGetMemHandle(&raw mut handle, at))?;
    Ok(handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
}

/// Another process's memory, from its text.
pub(crate) fn import(text: &str) -> Answer<CUdeviceptr> {
    let (mut handle, mut at) = (CUipcMemHandle { reserved: [0; 64] }, 0);
    for (i, byte) in handle.reserved.iter_mut().enumerate() {
        let digits = text.get(2 * i..2 * i + 2).ok_or("a handle that is too short")?;
        *byte = u8::from_str_radix(digits, 16).map_err(|error| error.to_string())? as _;
    }
    ask!(cuIpcOpenMemHandle_v2(&raw mut at, handle, 1))?;
    Ok(at)
}

pub(crate) fn close(at: CUdeviceptr) -> Answer {
    ask!(cuIpcCloseMemHandle(at))
}
