//! The functions by which any thread asks and stops a communicator.
//! Unsafe: functions that C calls.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use crate::failure::entry;
use crate::handle::rr_comm;
use crate::types::rr_status;

/// The first failure of a communicator, of any call: also of a started one, or of one on a stream.
/// Never waits, and is for any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_check(comm: *const rr_comm) -> rr_status {
    entry("rr_check", || {
        // SAFETY: the caller passes a communicator.
        match unsafe { rr_comm::of(comm) }?.monitor()?.error() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    })
}

/// Ends the call of this rank, or else its next one, with RR_ABORTED, and tells the other ranks.
/// Never waits, and is for any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_abort(comm: *const rr_comm) -> rr_status {
    entry("rr_abort", || {
        // SAFETY: the caller passes a communicator.
        unsafe { rr_comm::of(comm) }?.monitor()?.abort();
        Ok(())
    })
}
