//! Communicators: how they are asked and ended.

use core::ffi::{c_char, c_int};

use super::{export, export_plain};
use crate::abi::{Comm, MAGIC, NcclEncryptionConfig, VERSION, code};
use crate::failure::{self, Failure, give};
use crate::handle::Handle;

export! {
    /// See `nccl.h`.
    fn ncclGetVersion(version: *mut c_int) {
        // SAFETY: the caller passes a place for the number.
        unsafe { give(version, "version", VERSION) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`. Waits for the calls that were started.
    fn ncclCommFinalize(comm: Comm) {
        // SAFETY: the caller passes a communicator.
        let handle = unsafe { Handle::of(comm) }?;
        handle.ready()?;
        Ok(handle.wait().unwrap_or(code::SUCCESS))
    }

    /// See `nccl.h`. A second time is an error.
    fn ncclCommDestroy(comm: Comm) {
        if comm.is_null() {
            return Ok(code::SUCCESS);
        }
        // SAFETY: the caller passes a communicator.
        let handle = unsafe { Handle::of(comm) }?;
        handle.wait();
        handle.destroy().map(|()| code::SUCCESS)
    }

    /// See `nccl.h`. Any thread may call this while another one waits in a call.
    fn ncclCommAbort(comm: Comm) {
        if comm.is_null() {
            return Ok(code::SUCCESS);
        }
        // SAFETY: the caller passes a communicator.
        unsafe { Handle::of(comm) }?.abort().map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommRevoke(comm: Comm, revokeFlags: c_int) {
        // SAFETY: the caller passes a communicator.
        let handle = unsafe { Handle::of(comm) }?;
        if revokeFlags != 0 {
            return Err(Failure::argument(format_args!("revokeFlags is {revokeFlags}; it is 0")));
        }
        handle.ready()?;
        handle.stop_calls();
        let mut guard = handle.rank()?;
        guard.get()?.comm.revoke()?;
        Ok(code::SUCCESS)
    }

    /// See `nccl.h`. Never waits.
    fn ncclCommGetAsyncError(comm: Comm, asyncError: *mut c_int) {
        // SAFETY: the caller passes a communicator.
        let state = unsafe { Handle::of(comm) }?.async_code();
        // SAFETY: the caller passes a place for a code.
        unsafe { give(asyncError, "asyncError", state) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommCount(comm: Comm, count: *mut c_int) {
        // SAFETY: the caller passes a communicator.
        let size = unsafe { Handle::of(comm) }?.ready()?.size;
        // SAFETY: the caller passes a place for a number.
        unsafe { give(count, "count", size as c_int) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`. The number is -1 for a communicator without a device.
    fn ncclCommCuDevice(comm: Comm, device: *mut c_int) {
        // SAFETY: the caller passes a communicator.
        let number = unsafe { Handle::of(comm) }?.ready()?.device.unwrap_or(-1);
        // SAFETY: the caller passes a place for a number.
        unsafe { give(device, "device", number) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommUserRank(comm: Comm, rank: *mut c_int) {
        // SAFETY: the caller passes a communicator.
        let number = unsafe { Handle::of(comm) }?.ready()?.rank;
        // SAFETY: the caller passes a place for a number.
        unsafe { give(rank, "rank", number as c_int) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`. There is nothing to release, so only calls are refused until
    /// `ncclCommResume`.
    fn ncclCommSuspend(comm: Comm, flags: c_int) {
        if flags != 1 {
            return Err(Failure::argument(format_args!("flags is {flags}; NCCL_SUSPEND_MEM is 1")));
        }
        // SAFETY: the caller passes a communicator.
        unsafe { Handle::of(comm) }?.set_suspended(true).map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommResume(comm: Comm) {
        // SAFETY: the caller passes a communicator.
        unsafe { Handle::of(comm) }?.set_suspended(false).map(|()| code::SUCCESS)
    }

    /// See `nccl.h`. The library allocates no device memory that it could suspend.
    fn ncclCommMemStats(comm: Comm, stat: c_int, value: *mut u64) {
        // SAFETY: the caller passes a communicator.
        unsafe { Handle::of(comm) }?.ready()?;
        if !(0..=3).contains(&stat) {
            return Err(Failure::argument(format_args!("stat is {stat}; 0 to 3")));
        }
        // SAFETY: the caller passes a place for a number.
        unsafe { give(value, "value", 0) }.map(|()| code::SUCCESS)
    }

    /// Refuses keys: encryption is asked for by `RINGREDUCE_ENCRYPT`, with the job's own keys.
    fn ncclSetEncryption(config: *const NcclEncryptionConfig) {
        // SAFETY: the caller passes null or a configuration.
        match unsafe { config.as_ref() } {
            None => Err(Failure::argument("config is NULL")),
            Some(config) if config.magic != MAGIC => {
                Err(Failure::argument("config was not made by its initializer"))
            }
            Some(config) if config.mode == 0 => Ok(code::SUCCESS),
            Some(_) => Err(Failure::usage(
                "keys of the caller's are not taken; RINGREDUCE_ENCRYPT=1 encrypts with keys that \
                 the ranks agree on",
            )),
        }
    }
}

export_plain! {
    /// See `nccl.h`.
    fn ncclGetErrorString(result: c_int) -> *const c_char {
        let text = match result {
            code::SUCCESS => c"no error",
            code::UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
            code::SYSTEM_ERROR => c"unhandled system error",
            code::INTERNAL_ERROR => c"internal error",
            code::INVALID_ARGUMENT => c"invalid argument",
            code::INVALID_USAGE => c"invalid usage",
            code::REMOTE_ERROR => c"remote process exited or there was a network error",
            code::IN_PROGRESS => c"operation in progress",
            code::TIMEOUT => c"a rank did not come in time",
            _ => c"unknown result code",
        };
        text.as_ptr()
    }

    /// See `nccl.h`. The text lives until the thread asks again.
    fn ncclGetLastError(_comm: Comm) -> *const c_char {
        failure::last_text()
    }
}
