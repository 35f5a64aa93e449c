//! Devices: their properties, peer access between them, and the kind of memory that a pointer has.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{from_mut, null_mut};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute, CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult,
    CUuuid,
};

use super::driver::{Driver, check};
use super::ipc::{HANDLE_WORDS, PeerMapping};
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceFacts {
    /// The device's UUID, the same in every process.
    pub(crate) uuid: [u64; 2],
    pub(crate) multiprocessors: u32,
    /// True if a stream can flush what other devices have written to this one.
    pub(crate) flushes: bool,
}

/// The number of devices that this process may use.
pub(crate) fn count_devices(_: Driver) -> Result<usize> {
    Ok(usize::try_from(device_count()?).unwrap_or(0))
}

fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: the driver stores a number where it is told.
    check("counting devices", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(count)
}

pub(crate) fn device_facts(device: CUdevice) -> Result<DeviceFacts> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES as FLUSHES,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT,
    };
    let multiprocessors = u32::try_from(attribute(device, COUNT)?).unwrap_or(1).max(1);
    let flushes = attribute(device, FLUSHES)? != 0;
    Ok(DeviceFacts { uuid: uuid(device)?, multiprocessors, flushes })
}

pub(super) fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: the driver stores a number where it is told.
    let asked = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check("asking what the device can do", asked)?;
    Ok(value)
}

fn uuid(device: CUdevice) -> Result<[u64; 2]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the driver stores 16 bytes where it is told.
    let asked = unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    check("asking for the device's UUID", asked)?;
    let number = u128::from_be_bytes(uuid.bytes.map(|byte| byte as u8));
    Ok([(number >> 64) as u64, number as u64])
}

/// The device of another rank of this host, for [`can_reach`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerDevice {
    pub(crate) uuid: [u64; 2],
    /// The address of the rank's pattern in its own process.
    pub(crate) pattern_start: CUdeviceptr,
    /// The handle of the pattern's memory; none if both ranks are threads of one process.
    pub(crate) handle: Option<[u64; HANDLE_WORDS]>,
}

/// The access of a device to another rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAccess {
    Refused,
    /// The driver grants it, and other bytes arrive than were written.
    Damaged,
    Works,
}

/// The access of kernels on the device of `context`, which is current, to a rank's memory, from
/// which `pattern_arrives` reads. Enables peer access where that rank is a thread of this process;
/// memory of other processes is opened when it is allocated. A device that this process can't see
/// is known by its exported memory alone.
///
/// # Errors
/// If the driver refuses a call that the answer needs.
pub(crate) fn can_reach(
    context: &CudaContext,
    wanted: PeerDevice,
    pattern_arrives: impl FnOnce(CUdeviceptr) -> Result<bool>,
) -> Result<PeerAccess> {
    let (mine, mut found) = (context.cu_device(), None);
    for at in 0..device_count()? {
        let mut device = 0;
        // SAFETY: the driver stores a number where it is told.
        check("finding a device", unsafe { sys::cuDeviceGet(&raw mut device, at) })?;
        found = found.or((uuid(device)? == wanted.uuid).then_some(device));
    }
    let read =
        |start| Ok(if pattern_arrives(start)? { PeerAccess::Works } else { PeerAccess::Damaged });
    match (found, wanted.handle) {
        (Some(device), _) if device != mine && !can_access_peer(mine, device)? => {
            Ok(PeerAccess::Refused)
        }
        (_, Some(handle)) => {
            Ok(PeerMapping::open_and_read(handle, read)?.unwrap_or(PeerAccess::Refused))
        }
        (Some(device), None) if device != mine => {
            enable_peer_access(mine, device)?;
            read(wanted.pattern_start)
        }
        (Some(_), None) => Ok(PeerAccess::Works),
        (None, None) => Ok(PeerAccess::Refused),
    }
}

fn can_access_peer(from: CUdevice, to: CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: the driver stores a number where it is told.
    let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) };
    check("asking whether a device reaches another one", asked)?;
    Ok(can != 0)
}

/// Lets the current context, of device `mine`, access the memory of `device` in this process, with
/// the default memory pool, from which cudarc's buffers are.
fn enable_peer_access(mine: CUdevice, device: CUdevice) -> Result<()> {
    let mut peer_context = null_mut();
    // SAFETY: the driver stores the primary context, which is released below.
    let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut peer_context, device) };
    check("entering another device", retained)?;
    // SAFETY: both are contexts.
    let opened = unsafe { sys::cuCtxEnablePeerAccess(peer_context, 0) };
    // SAFETY: it was retained above; the rank of that device retains it as long as its
    // communicator.
    let released = unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) };
    check("leaving another device", released)?;
    match opened {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
        answer => check("opening another device's memory", answer)?,
    }
    let mut pool = null_mut();
    // SAFETY: the driver stores a handle where it is told.
    let found = unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) };
    check("finding another device's memory pool", found)?;
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: mine,
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the driver reads one description.
    check("opening another device's memory pool", unsafe {
        sys::cuMemPoolSetAccess(pool, &raw const access, 1)
    })
}

/// Refuses an argument unless its `bytes` at `start` are memory of `device`, or pinned or managed
/// memory. The driver reports memory of several mappings piece by piece, or as the whole
/// reservation of addresses.
pub(crate) fn check_reachable(
    (call, argument): (&'static str, &'static str),
    start: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
) -> Result<()> {
    let doing = || format!("{call}: finding out what memory {argument} is");
    let mut checked = 0;
    while checked < bytes {
        let (at, last) = (start + checked as u64, start.saturating_add((bytes - 1) as u64));
        let found = allocation_around(at).and_then(|found| {
            let ends = found.as_ref().is_some_and(|found| last < found.range.end);
            // A reservation may be longer than what is mapped in it, so that the last byte is asked
            // about too.
            if ends && allocation_around(last)?.is_none() { Ok(None) } else { Ok(found) }
        });
        let given = match found {
            Ok(Some(Allocation { device: Some(other), .. })) if other != device => {
                format!("memory of device {other}")
            }
            Ok(Some(Allocation { range, .. })) => {
                checked += (range.end - at) as usize;
                continue;
            }
            Ok(None) | Err(CUresult::CUDA_ERROR_INVALID_VALUE) if checked == 0 => {
                "memory that devices can't touch: it is freed, or neither of a device nor pinned \
                 nor managed"
                    .into()
            }
            Ok(None) | Err(CUresult::CUDA_ERROR_INVALID_VALUE) => {
                format!("{bytes} bytes long, of which {checked} are all that were allocated there")
            }
            Err(answer) => return check(&doing(), answer),
        };
        let expected = format!("memory of device {device}, or pinned or managed memory");
        return Err(Error::Argument { call, argument, given, expected });
    }
    Ok(())
}

/// Memory that the driver knows: its range and, unless devices share it, its device.
struct Allocation {
    range: Range<CUdeviceptr>,
    device: Option<CUdevice>,
}

/// The allocation around an address, if there is one.
fn allocation_around(at: CUdeviceptr) -> std::result::Result<Option<Allocation>, CUresult> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as DEVICE, CU_POINTER_ATTRIBUTE_IS_MANAGED as MANAGED,
        CU_POINTER_ATTRIBUTE_MAPPED as MAPPED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as TYPE,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE as SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as START,
    };
    const OF_A_DEVICE: u32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    let (mut from, mut size, mut mapped): (CUdeviceptr, usize, u32) = (0, 0, 0);
    let (mut kind, mut managed, mut device): (u32, u32, CUdevice) = (0, 0, 0);
    let mut attributes = [START, SIZE, MAPPED, TYPE, MANAGED, DEVICE];
    let mut data: [*mut c_void; 6] = [
        from_mut(&mut from).cast(),
        from_mut(&mut size).cast(),
        from_mut(&mut mapped).cast(),
        from_mut(&mut kind).cast(),
        from_mut(&mut managed).cast(),
        from_mut(&mut device).cast(),
    ];
    let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
    // SAFETY: six attributes, with memory of their types to store them.
    let asked = unsafe { sys::cuPointerGetAttributes(6, attributes, data, at) };
    if asked != CUresult::CUDA_SUCCESS {
        return Err(asked);
    }
    let range = from..from.saturating_add(size as u64);
    let device = (kind == OF_A_DEVICE && managed & 0xff == 0).then_some(device);
    Ok((mapped != 0 && range.contains(&at)).then_some(Allocation { range, device }))
}
