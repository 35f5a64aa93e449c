//! CUDA, by its driver alone: found at run time, never needed to build.
//! May touch: element, error. Unsafe: calls of the driver.

mod context;
mod driver;
#[cfg_attr(not(test), expect(dead_code, reason = "no call launches kernels yet"))]
mod module;
#[cfg_attr(not(test), expect(dead_code, reason = "no call launches kernels yet"))]
mod names;
mod stage;

pub(crate) use context::Current;
pub(crate) use context::refuse_capture;
pub(crate) use driver::{Driver, driver};
pub(crate) use stage::{Area, SLOT, SLOTS, Stages, Turn};
