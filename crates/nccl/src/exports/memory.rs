//! Memory: allocation, registration and windows.

use core::ffi::{c_int, c_void};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::export;
use crate::abi::{Comm, Window, code};
use crate::device;
use crate::failure::{Failure, Outcome, give};
use crate::handle::Handle;

/// The alignment of allocations in bytes, as of windows (`NCCL_WIN_REQUIRED_ALIGNMENT`).
const ALIGNMENT: usize = 4096;

/// The host memory that callers have allocated: its layout, by address.
static ALLOCATED: LazyLock<Mutex<HashMap<usize, Layout>>> = LazyLock::new(Mutex::default);

fn allocated() -> MutexGuard<'static, HashMap<usize, Layout>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a buffer of a communicator, and makes its handle.
fn keep(handle: &Handle, buffer: *mut c_void, size: usize) -> Outcome<usize> {
    /// Handles are never used again. NULL is none.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    handle.ready()?;
    if buffer.is_null() || size == 0 {
        return Err(Failure::argument("buff is NULL or size is 0"));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    handle.objects().buffers.insert(number, (buffer as usize, size));
    Ok(number)
}

fn forget(handle: &Handle, number: usize, argument: &str) -> Outcome {
    let known = handle.objects().buffers.remove(&number);
    let unknown =
        || Failure::argument(format_args!("{argument} was never given, or was given back before"));
    known.map(|_| code::SUCCESS).ok_or_else(unknown)
}

export! {
    /// See `nccl.h`. Memory of the current device, or of the host where none is current.
    fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        // SAFETY: the caller passes a place for an address.
        unsafe { give(ptr, "ptr", std::ptr::null_mut()) }?;
        let exhausted =
            || Failure::new(code::SYSTEM_ERROR, format_args!("no memory of {size} bytes"));
        let start = match device::allocate(size.max(1))? {
            Some(start) => start,
            None => {
                let layout = Layout::from_size_align(size.max(1), ALIGNMENT);
                let layout = layout.map_err(|_| exhausted())?;
                // SAFETY: the size is not 0.
                let start = unsafe { alloc_zeroed(layout) } as usize;
                if start == 0 {
                    return Err(exhausted());
                }
                allocated().insert(start, layout);
                start
            }
        };
        // SAFETY: as above.
        unsafe { give(ptr, "ptr", start as *mut c_void) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclMemFree(ptr: *mut c_void) {
        if ptr.is_null() {
            return Ok(code::SUCCESS);
        }
        let layout = allocated().remove(&(ptr as usize));
        if let Some(layout) = layout {
            // SAFETY: `ncclMemAlloc` has allocated it with this layout, and nobody freed it.
            unsafe { dealloc(ptr.cast(), layout) };
            return Ok(code::SUCCESS);
        }
        match device::free(ptr as usize)? {
            true => Ok(code::SUCCESS),
            false => Err(Failure::argument("ptr is no memory of ncclMemAlloc")),
        }
    }

    /// See `nccl.h`. Registration is a hint, of one rank alone; it is kept and has no effect.
    fn ncclCommRegister(comm: Comm, buff: *mut c_void, size: usize, handle: *mut *mut c_void) {
        // SAFETY: the caller passes a communicator.
        let number = keep(unsafe { Handle::of(comm) }?, buff, size)?;
        // SAFETY: the caller passes a place for a handle.
        unsafe { give(handle, "handle", number as *mut c_void) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommDeregister(comm: Comm, handle: *mut c_void) {
        // SAFETY: the caller passes a communicator.
        forget(unsafe { Handle::of(comm) }?, handle as usize, "handle")
    }

    /// See `nccl.h`. As registration; signals into windows are not offered.
    fn ncclCommWindowRegister(
        comm: Comm,
        buff: *mut c_void,
        size: usize,
        win: *mut Window,
        _winFlags: c_int,
    ) {
        // SAFETY: the caller passes a communicator.
        let number = keep(unsafe { Handle::of(comm) }?, buff, size)?;
        // SAFETY: the caller passes a place for a window.
        unsafe { give(win, "win", number as Window) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommWindowDeregister(comm: Comm, win: Window) {
        // SAFETY: the caller passes a communicator.
        forget(unsafe { Handle::of(comm) }?, win as usize, "win")
    }

    /// See `nccl.h`.
    fn ncclWinGetUserPtr(comm: Comm, win: Window, outUserPtr: *mut *mut c_void) {
        // SAFETY: the caller passes a communicator.
        let handle = unsafe { Handle::of(comm) }?;
        let known = handle.objects().buffers.get(&(win as usize)).copied();
        let (start, _size) =
            known.ok_or_else(|| Failure::argument("win is no window of this communicator"))?;
        // SAFETY: the caller passes a place for an address.
        unsafe { give(outUserPtr, "outUserPtr", start as *mut c_void) }.map(|()| code::SUCCESS)
    }
}
