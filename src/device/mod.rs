//! Buffers that are not the host's own. May touch: element, error, link, plan, schedule.
//! Law: nothing here is needed to start: what a machine lacks is an error of the call that wants
//! it.

pub(crate) mod algorithm;
pub(crate) mod cuda;
pub(crate) mod p2p_domain;
pub(crate) mod ring_pull;
pub(crate) mod stream;

pub use stream::{DeviceMemory, DevicePath, DeviceRef, DeviceRegistration, OnStream, device_count};
