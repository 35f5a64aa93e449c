//! Registered memory.
//! Unsafe: functions that C calls.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::c_void;

use crate::failure::{Failure, entry, give};
use crate::handle::rr_comm;
use crate::types::rr_status;

/// Allocates memory that the other ranks of this host can map too, all zero. Collectives whose
/// buffers all ranks have in such memory copy nothing. Each rank allocates what it likes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_alloc(
    comm: *mut rr_comm,
    bytes: usize,
    memory: *mut *mut c_void,
) -> rr_status {
    entry("rr_alloc", || {
        // SAFETY: the caller passes a place for an address.
        unsafe { give(memory, "memory", std::ptr::null_mut()) }?;
        // SAFETY: the caller passes a communicator.
        unsafe { rr_comm::of(comm) }?.with(|state| {
            let mut made = state.comm.alloc::<u8>(bytes.max(1))?;
            let start = made.as_mut_ptr();
            state.memory.insert(start as usize, made);
            // SAFETY: as above.
            unsafe { give(memory, "memory", start.cast()) }
        })
    })
}

/// Frees memory of rr_alloc, which no call uses any more. NULL is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_free(comm: *mut rr_comm, memory: *mut c_void) -> rr_status {
    entry("rr_free", || {
        if memory.is_null() {
            return Ok(());
        }
        // SAFETY: the caller passes a communicator.
        unsafe { rr_comm::of(comm) }?.with(|state| {
            let unknown =
                || Failure::argument("memory was not allocated by rr_alloc, or was freed");
            state.memory.remove(&(memory as usize)).map(drop).ok_or_else(unknown)
        })
    })
}
