//! CUDA, by its driver alone: found at run time, never needed to build.
//! May touch: error. Unsafe: calls of the driver.

mod context;
mod driver;
mod stage;

pub(crate) use context::Current;
pub(crate) use context::refuse_capture;
pub(crate) use driver::{Driver, driver};
pub(crate) use stage::{Area, SLOT, SLOTS, Stages, Turn};
