//! Which device a rank has, what it can do, and what its pointers point to. May touch: error.
//! Unsafe: calls of the driver.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute, CUdeviceptr, CUpointer_attribute, CUresult, CUuuid,
};

use super::driver::{Driver, check};
use crate::error::{Error, Result};

/// A device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// Its name in the world.
    pub(crate) uuid: [u64; 2],
    pub(crate) multiprocessors: u32,
}

/// How many there are for this process.
pub(crate) fn devices(_: Driver) -> Result<usize> {
    let mut count = 0;
    // SAFETY: it stores a number where it is told.
    check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What `device` is.
pub(crate) fn device_of(device: CUdevice) -> Result<Device> {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT;
    let multiprocessors = u32::try_from(attribute(device, COUNT)?).unwrap_or(1).max(1);
    Ok(Device { uuid: uuid(device)?, multiprocessors })
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: it stores a number where it is told.
    let asked = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check("asking what the device can do", asked)?;
    Ok(value)
}

fn uuid(device: CUdevice) -> Result<[u64; 2]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: it stores 16 bytes where it is told.
    let asked = unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    check("asking for the device's UUID", asked)?;
    let half = |half: &[std::ffi::c_char]| {
        half.iter().fold(0, |word, &byte| word << 8 | u64::from(byte as u8))
    };
    Ok([half(&uuid.bytes[..8]), half(&uuid.bytes[8..])])
}

/// Which of these devices' memory can kernels on the device of `context`, which is current, reach?
/// Makes it so where ranks of this process use them; what other processes have is opened when it is
/// allocated.
pub(crate) fn reach(
    _: Driver,
    context: &Arc<CudaContext>,
    devices: impl Iterator<Item = Option<([u64; 2], bool)>>,
) -> Result<Vec<bool>> {
    let (mine, mut count) = (context.cu_device(), 0);
    // SAFETY: it stores a number where it is told.
    check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let known = (0..count).map(|at| {
        let mut device = 0;
        // SAFETY: as above.
        check("finding a device", unsafe { sys::cuDeviceGet(&raw mut device, at) })?;
        Ok((uuid(device)?, device))
    });
    let known = known.collect::<Result<Vec<_>>>()?;
    // Words that streams wait for are the host's.
    let words = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
    let can = attribute(mine, words)? != 0;
    let reached = |wanted: Option<([u64; 2], bool)>| {
        let Some((wanted, beside)) = wanted.filter(|_| can) else { return Ok(false) };
        match known.iter().find(|(uuid, _)| *uuid == wanted) {
            Some(&(_, device)) if device == mine => Ok(true),
            Some(&(_, device)) if !reaches(mine, device)? => Ok(false),
            Some(&(_, device)) if beside => open(mine, device).map(|()| true),
            found => Ok(found.is_some()),
        }
    };
    devices.map(reached).collect()
}

fn reaches(from: CUdevice, to: CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: it stores a number where it is told.
    let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) };
    check("asking whether a device reaches another one", asked)?;
    Ok(can != 0)
}

/// The current context, of `mine`, may touch what `device` has in this process: also what is of its
/// default pool, as cudarc's buffers are.
fn open(mine: CUdevice, device: CUdevice) -> Result<()> {
    let mut theirs = null_mut();
    // SAFETY: it stores the primary context, which is given back below.
    let kept = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut theirs, device) };
    check("entering another device", kept)?;
    // SAFETY: both are contexts.
    let opened = unsafe { sys::cuCtxEnablePeerAccess(theirs, 0) };
    // SAFETY: it was kept; the rank that has it keeps it as long as its communicator.
    let left = unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) };
    check("leaving another device", left)?;
    match opened {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
        answer => check("opening another device's memory", answer)?,
    }
    let mut pool = null_mut();
    // SAFETY: it stores a handle where it is told.
    let found = unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) };
    check("finding another device's memory pool", found)?;
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: mine,
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: one description, which is only read.
    check("opening another device's memory pool", unsafe {
        sys::cuMemPoolSetAccess(pool, &raw const access, 1)
    })
}

/// Checks that devices can touch `bytes` at `start`: of a device, pinned or managed.
pub(crate) fn reachable(call: &'static str, start: CUdeviceptr, bytes: usize) -> Result<()> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_RANGE_SIZE as SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as START,
    };
    if bytes == 0 {
        return Ok(());
    }
    let (mut from, mut size): (CUdeviceptr, usize) = (0, 0);
    let mut attributes = [START, SIZE];
    let mut data: [*mut c_void; 2] = [from_mut(&mut from).cast(), from_mut(&mut size).cast()];
    let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
    // SAFETY: two attributes, an address and a number, and where to store them.
    let asked = unsafe { sys::cuPointerGetAttributes(2, attributes, data, start) };
    let end = from.checked_add(size as u64);
    let inside = from <= start
        && start.checked_add(bytes as u64).is_some_and(|last| end.is_some_and(|end| last <= end));
    if asked == CUresult::CUDA_SUCCESS && size > 0 && inside {
        return Ok(());
    }
    let doing = format!("{call}: finding out what memory a buffer is");
    check(&doing, asked)?;
    let reason = match size {
        0 => "devices can't touch it: it is freed, or neither of a device nor pinned nor managed"
            .into(),
        _ => format!("it has {bytes} bytes, and {size} are all that were allocated there"),
    };
    Err(Error::Device { doing, reason })
}
