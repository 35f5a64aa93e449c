//! CUDA, by its driver alone: found at run time, never needed to build.
//! May touch: element, error, link, form, hop, plan's names, schedule. Unsafe: calls of the driver.

mod board;
mod context;
mod device;
mod driver;
mod graphs;
mod guard;
mod ipc;
mod launch;
mod module;
mod names;
mod ops;
mod order;
mod pinned;
mod release;
mod ring;
mod selftest;
mod stage;
mod together;
mod trouble;
mod watch;
mod work;

pub(crate) use board::{Boards, CAPTURED, MOST_RANKS};
pub(crate) use context::Current;
pub(crate) use context::{is_capturing, refuse_capture};
pub(crate) use device::{Device, Neighbour, device_of, devices, reachable, reaches};
pub(crate) use driver::{Driver, driver};
pub(crate) use guard::Guard;
pub(crate) use ipc::{Memory, Opened, WORDS as HANDLE, handle};
pub(crate) use module::{Kernels, locked};
pub(crate) use names::Wanted;
pub(crate) use order::{after, copy, event, remember};
pub(crate) use pinned::Pinned;
pub(crate) use release::Health;
pub(crate) use ring::Around;
pub(crate) use selftest::{HANDLES, OPERATIONS, REGISTRATION, SelfTest, names as names_of};
pub(crate) use stage::{Area, Limit, SLOT, SLOTS, Stages, Turn};
pub(crate) use together::{Begun, Call, Failure, Together};
pub(crate) use trouble::{Claim, Trouble};
pub(crate) use watch::Watch;
