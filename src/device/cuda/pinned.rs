//! Mappings of shared host memory that are registered with the driver, so that devices access them.
//! Law: a mapping is registered once in a process, and all its users share the registration.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr};

use super::context::CurrentContext;
use super::driver::{Driver, check};
use super::locked;
use crate::error::Result;
use crate::memory::mapping::Region;

/// The registrations of this process, whose thread ranks share mappings.
static REGISTERED: Mutex<Vec<Weak<Pinned>>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct Pinned {
    driver: Driver,
    context: Arc<CudaContext>,
    region: Arc<Region>,
    device: CUdeviceptr,
}

impl Pinned {
    /// The registration of a mapping. The context is current.
    pub(crate) fn register(
        driver: Driver,
        context: &Arc<CudaContext>,
        region: &Arc<Region>,
    ) -> Result<Arc<Self>> {
        let mut all = locked(&REGISTERED);
        all.retain(|one| one.strong_count() > 0);
        let mut live = all.iter().filter_map(Weak::upgrade);
        if let Some(found) = live.find(|one| Arc::ptr_eq(&one.region, region)) {
            return Ok(found);
        }
        let (start, len) = (region.start().as_ptr().cast(), region.len());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the region is mapped for `len` bytes and stays so until this is dropped.
        let registered = unsafe { sys::cuMemHostRegister_v2(start, len, flags) };
        check("registering shared memory with the device", registered)?;
        let (context, region) = (Arc::clone(context), Arc::clone(region));
        let mut pinned = Self { driver, context, region, device: 0 };
        // SAFETY: the memory was just registered as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut pinned.device, start, 0) };
        check("finding the device address of shared memory", seen)?;
        let pinned = Arc::new(pinned);
        all.push(Arc::downgrade(&pinned));
        Ok(pinned)
    }

    /// The mapping, for a user that may outlive the registration.
    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start()
    }

    pub(crate) fn device_address(&self) -> CUdeviceptr {
        self.device
    }

    pub(crate) fn len(&self) -> usize {
        self.region.len()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: the memory was registered, and nothing uses it any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.region.start().as_ptr().cast()) };
        }
    }
}
