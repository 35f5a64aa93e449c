//! Device memory: operations whose buffers a CUDA device has go on the caller's stream.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
pub use cuda::{is_device_memory, is_present, put_all};
