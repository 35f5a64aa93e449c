//! CUDA devices.
//! Unsafe: functions that C calls.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::c_int;

use ringreduce::Communicator;

use crate::failure::{Failure, Outcome, entry};
use crate::handle::rr_comm;
use crate::types::rr_status;

/// Gives the communicator the CUDA device with this number, or none if it is negative. All ranks
/// call this together, with and without devices. Then collectives take buffers of the device, which
/// rr_enqueue puts on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_use_device(comm: *mut rr_comm, device: c_int) -> rr_status {
    entry("rr_use_device", || {
        // SAFETY: the caller passes a communicator.
        unsafe { rr_comm::of(comm) }?.with(|state| {
            state.has_device = attach(&mut state.comm, usize::try_from(device).ok())?;
            Ok(())
        })
    })
}

fn attach(comm: &mut Communicator, device: Option<usize>) -> Outcome<bool> {
    let Some(device) = device else {
        comm.use_no_device()?;
        return Ok(false);
    };
    match context(device) {
        Ok(context) => {
            comm.use_device(&context)?;
            Ok(true)
        }
        Err(why) => {
            // The other ranks wait for what this one has.
            comm.use_no_device()?;
            Err(Failure::argument(format_args!("device {device} can't be used: {why}")))
        }
    }
}

fn context(device: usize) -> Result<std::sync::Arc<cudarc::driver::CudaContext>, String> {
    if !foreign::device::is_present() {
        return Err("CUDA's driver finds no device".into());
    }
    cudarc::driver::CudaContext::new(device).map_err(|error| error.to_string())
}
