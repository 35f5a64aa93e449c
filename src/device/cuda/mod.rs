//! CUDA, by its driver alone: found at run time, never needed to build.
//! May touch: element, error, link, form, hop, plan's names, schedule. Unsafe: calls of the driver.

mod context;
mod control_block;
mod device;
mod driver;
mod failure;
mod graphs;
mod ipc;
mod kernel_names;
mod kernel_work;
mod launch;
mod memory_ops;
mod module;
mod peer_executor;
mod pinned;
mod release;
mod ring_executor;
mod selftest;
mod staging;
mod stream_order;
mod watchdog;
mod watchdog_thread;

pub(crate) use context::Current;
pub(crate) use context::{is_capturing, refuse_capture};
pub(crate) use control_block::{Boards, CAPTURED, MOST_RANKS};
pub(crate) use device::{Device, Neighbour, device_of, devices, reachable, reaches};
pub(crate) use driver::{Driver, driver};
pub(crate) use failure::{Claim, Trouble};
pub(crate) use ipc::{Memory, Opened, WORDS as HANDLE, handle};
pub(crate) use kernel_names::Wanted;
pub(crate) use module::{Kernels, locked};
pub(crate) use peer_executor::{Begun, Call, Failure, Together};
pub(crate) use pinned::Pinned;
pub(crate) use release::Health;
pub(crate) use ring_executor::Around;
pub(crate) use selftest::{HANDLES, OPERATIONS, REGISTRATION, SelfTest, names as names_of};
pub(crate) use staging::{Area, Limit, SLOT, SLOTS, Stages, Turn};
pub(crate) use stream_order::{after, copy, event, remember};
pub(crate) use watchdog::Watch;
pub(crate) use watchdog_thread::Guard;
