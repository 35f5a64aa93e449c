//! Device memory: operations whose buffers a CUDA device has go on the caller's stream.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
pub(crate) use cuda::{Device, allocate, attach, carries_out, current, free};
#[cfg(feature = "cuda")]
pub(crate) use foreign::device::is_device_memory;

#[cfg(not(feature = "cuda"))]
pub(crate) use none::{Device, allocate, attach, carries_out, current, free, is_device_memory};

#[cfg(not(feature = "cuda"))]
mod none {
    use core::ffi::c_int;

    use foreign::Operation;
    use ringreduce::Communicator;

    use crate::failure::Outcome;
    use crate::handle::Rank;

    /// No device.
    #[derive(Debug)]
    pub(crate) enum Device {}

    impl Device {
        pub(crate) fn ordinal(&self) -> c_int {
            match *self {}
        }
    }

    pub(crate) fn is_device_memory(_: usize) -> bool {
        false
    }

    pub(crate) fn attach(_: &mut Communicator, _: Option<c_int>) -> Outcome<Option<Device>> {
        Ok(None)
    }

    pub(crate) fn current() -> Option<c_int> {
        None
    }

    pub(crate) fn carries_out(_: &mut Rank, _: &[Operation]) -> Outcome<bool> {
        Ok(false)
    }

    pub(crate) fn allocate(_: usize) -> Outcome<Option<usize>> {
        Ok(None)
    }

    pub(crate) fn free(_: usize) -> Outcome<bool> {
        Ok(false)
    }
}
