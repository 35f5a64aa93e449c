//! Which device a rank has, what it can do, and what its pointers point to. May touch: error.
//! Unsafe: calls of the driver.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{from_mut, null_mut};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute, CUdeviceptr, CUpointer_attribute, CUresult, CUuuid,
};

use super::driver::{Driver, check};
use super::ipc::{Opened, WORDS};
use crate::error::{Error, Result};

/// A device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// Its name in the world.
    pub(crate) uuid: [u64; 2],
    pub(crate) multiprocessors: u32,
    /// Can a stream flush what other devices have written to it?
    pub(crate) flushes: bool,
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
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES as FLUSHES,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT,
    };
    let multiprocessors = u32::try_from(attribute(device, COUNT)?).unwrap_or(1).max(1);
    let flushes = attribute(device, FLUSHES)? != 0;
    Ok(Device { uuid: uuid(device)?, multiprocessors, flushes })
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

/// Another rank of this host, for the question whether its device's memory can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour {
    pub(crate) uuid: [u64; 2],
    /// Of memory of its own that it has exported; none where both are threads of one process.
    pub(crate) handle: Option<[u64; WORDS]>,
}

/// Do kernels on the device of `context`, which is current, reach a rank's memory? Makes it so
/// where that rank is a thread of this process; what other processes have is opened when it is
/// allocated. A device that this process can't see is known by its memory alone.
///
/// # Errors
/// If the driver refuses what takes it to know.
pub(crate) fn reaches(context: &CudaContext, wanted: Neighbour) -> Result<bool> {
    let (mine, mut count) = (context.cu_device(), 0);
    // SAFETY: it stores a number where it is told.
    check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let mut found = None;
    for at in 0..count {
        let mut device = 0;
        // SAFETY: as above.
        check("finding a device", unsafe { sys::cuDeviceGet(&raw mut device, at) })?;
        found = found.or((uuid(device)? == wanted.uuid).then_some(device));
    }
    match (found, wanted.handle) {
        (Some(device), _) if device != mine && !is_peer(mine, device)? => Ok(false),
        (_, Some(handle)) => Opened::reaches(handle),
        (Some(device), None) if device != mine => open(mine, device).map(|()| true),
        (found, None) => Ok(found.is_some()),
    }
}

fn is_peer(from: CUdevice, to: CUdevice) -> Result<bool> {
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

/// Checks that devices can touch `bytes` at `start`: of a device, pinned or managed. Memory that is
/// mapped piece by piece may be known by its pieces, or by the whole reservation of addresses.
pub(crate) fn reachable(call: &'static str, start: CUdeviceptr, bytes: usize) -> Result<()> {
    let mut known = 0;
    let doing = || format!("{call}: finding out what memory a buffer is");
    while known < bytes {
        let (at, last) = (start + known as u64, start.saturating_add((bytes - 1) as u64));
        let range = range(at).and_then(|range| {
            let ends = range.as_ref().is_some_and(|range| last < range.end);
            // A reservation says nothing of its end.
            if ends && self::range(last)?.is_none() { Ok(None) } else { Ok(range) }
        });
        match range.map_err(|answer| check(&doing(), answer).err()) {
            Ok(Some(range)) => known += (range.end - at) as usize,
            Err(Some(error)) => return Err(error),
            _ => {
                let reason = match known {
                    0 => "devices can't touch it: it is freed, or neither of a device nor pinned \
                          nor managed"
                        .into(),
                    _ => format!(
                        "it has {bytes} bytes, and {known} are all that were allocated there"
                    ),
                };
                return Err(Error::Device { doing: doing(), reason });
            }
        }
    }
    Ok(())
}

/// The memory around an address, if there is any.
fn range(at: CUdeviceptr) -> std::result::Result<Option<Range<CUdeviceptr>>, CUresult> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_MAPPED as MAPPED, CU_POINTER_ATTRIBUTE_RANGE_SIZE as SIZE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as START,
    };
    let (mut from, mut size, mut mapped): (CUdeviceptr, usize, u32) = (0, 0, 0);
    let mut attributes = [START, SIZE, MAPPED];
    let mut data: [*mut c_void; 3] =
        [from_mut(&mut from).cast(), from_mut(&mut size).cast(), from_mut(&mut mapped).cast()];
    let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
    // SAFETY: three attributes, numbers of their types, and where to store them.
    let asked = unsafe { sys::cuPointerGetAttributes(3, attributes, data, at) };
    if asked != CUresult::CUDA_SUCCESS {
        return Err(asked);
    }
    let end = from.saturating_add(size as u64);
    Ok((mapped != 0 && (from..end).contains(&at)).then_some(from..end))
}
