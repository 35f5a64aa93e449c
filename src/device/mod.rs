//! Collectives and messages on buffers of CUDA devices.
//! Law: nothing here is needed at start-up. A missing driver or device is an error of the call that
//! needs it.

pub(crate) mod algorithm;
pub(crate) mod cuda;
pub(crate) mod p2p_domain;
pub(crate) mod ring_pull;
pub(crate) mod stream;

pub use stream::{DeviceMemory, DevicePath, DeviceRef, DeviceRegistration, OnStream, device_count};
