//! Mapped memory that devices see too. May touch: error, link.
//! Law: what is mapped once in this process is registered once, whoever asks.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdeviceptr};

use super::context::Current;
use super::driver::{Driver, check};
use crate::error::Result;
use crate::memory::mapping::Region;

/// What is registered in this process: threads share mappings.
static ALL: Mutex<Vec<Weak<Pinned>>> = Mutex::new(Vec::new());

/// A mapping that devices see.
#[derive(Debug)]
pub(crate) struct Pinned {
    driver: Driver,
    context: Arc<CudaContext>,
    region: Arc<Region>,
    device: CUdeviceptr,
}

impl Pinned {
    /// The context is current.
    pub(crate) fn of(
        driver: Driver,
        context: &Arc<CudaContext>,
        region: &Arc<Region>,
    ) -> Result<Arc<Self>> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.into_iter().find(|one| Arc::ptr_eq(&one.region, region)) {
            return Ok(known);
        }
        let (start, len) = (region.start().as_ptr().cast(), region.len());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the region is mapped for `len` bytes and stays so until this is dropped.
        let registered = unsafe { sys::cuMemHostRegister_v2(start, len, flags) };
        check("showing shared memory to the device", registered)?;
        let (context, region) = (Arc::clone(context), Arc::clone(region));
        let mut pinned = Self { driver, context, region, device: 0 };
        // SAFETY: it was just registered as mapped.
        let seen = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut pinned.device, start, 0) };
        check("finding shared memory's address", seen)?;
        let pinned = Arc::new(pinned);
        all.push(Arc::downgrade(&pinned));
        Ok(pinned)
    }

    /// The mapping, which stays while anybody has this.
    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// Where the host sees it.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start()
    }

    /// Where devices see it.
    pub(crate) fn device(&self) -> CUdeviceptr {
        self.device
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.region.len()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = Current::new(self.driver, self.context.cu_ctx()) {
            // SAFETY: it was registered, and nobody uses it any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.region.start().as_ptr().cast()) };
        }
    }
}
