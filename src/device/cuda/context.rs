//! The context that calls of the driver mean. May touch: error.
//! Law: whatever was current before a call is so again after it.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUcontext};

use super::driver::{Driver, check};
use crate::error::Result;

/// A context is this thread's current one while it lives.
#[derive(Debug)]
pub(crate) struct Current(());

impl Current {
    pub(crate) fn new(_: Driver, context: CUcontext) -> Result<Self> {
        // SAFETY: what is no context any more is an error of the call.
        check("entering a context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Self(()))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut ours = null_mut();
        // SAFETY: takes from the top what `new` put there.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut ours) };
    }
}
