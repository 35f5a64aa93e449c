//! CUDA through its driver alone, which is loaded at run time and not needed to build.

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
mod peer_memory;
mod pinned;
mod release;
mod ring_executor;
mod selftest;
mod slot_layout;
mod staging;
mod stream_order;
mod watchdog;
mod watchdog_thread;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use context::{CurrentContext, is_capturing, refuse_capture, stream_context};
pub(crate) use control_block::{CAPTURED_SLOTS, ControlBlocks, MAX_RANKS};
pub(crate) use device::{
    DeviceFacts, PeerAccess, PeerDevice, can_reach, check_reachable, count_devices, device_facts,
};
pub(crate) use driver::{Driver, driver};
pub(crate) use failure::{CallFailure, FailedCall};
pub(crate) use ipc::{DeviceAllocation, HANDLE_WORDS, export_handle, opening_answer_name};
pub(crate) use kernel_names::KernelReduction;
pub(crate) use module::Kernels;
pub(crate) use peer_executor::{PeerCall, PeerExecutor, StartedCall};
pub(crate) use peer_memory::{Announcement, ExportedMemory, MemoryExchange, PeerMemory};
pub(crate) use pinned::Pinned;
pub(crate) use release::ContextProbe;
pub(crate) use ring_executor::RingCalls;
pub(crate) use selftest::{
    DAMAGED_READS, NO_HANDLES, NO_MEMORY_OPS, NO_REGISTRATION, SelfTest, missing_names,
};
pub(crate) use staging::{BLOCK_BYTES, BLOCK_COUNT, CopyArea, StagingBuffers, StagingTicket};
pub(crate) use stream_order::{LastUse, WaitLimit, copy_on_device, pause};
pub(crate) use watchdog::Watchdog;
pub(crate) use watchdog_thread::WatchdogThread;

/// Locks a mutex. A panic of another thread leaves the data behind it complete, so that poisoning
/// is ignored.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
