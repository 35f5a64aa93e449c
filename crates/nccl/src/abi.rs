//! NCCL's types, as `nccl.h` of version 2.32 declares them.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::handle::Handle;

/// `NCCL_VERSION_CODE` of the header that this library implements.
pub(crate) const VERSION: c_int = 23203;
/// `NCCL_CONFIG_UNDEF_INT`.
pub(crate) const UNDEFINED: c_int = c_int::MIN;
/// `NCCL_API_MAGIC`.
pub(crate) const MAGIC: c_uint = 0xcafe_beef;
/// The magic number of `ncclSimInfo_t`.
pub(crate) const SIM_MAGIC: c_uint = 0x7468_5283;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;
/// `NCCL_SHRINK_ABORT`.
pub(crate) const SHRINK_ABORT: c_int = 1;

/// `ncclResult_t`.
pub(crate) mod code {
    use core::ffi::c_int;

    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const UNHANDLED_CUDA_ERROR: c_int = 1;
    pub(crate) const SYSTEM_ERROR: c_int = 2;
    pub(crate) const INTERNAL_ERROR: c_int = 3;
    pub(crate) const INVALID_ARGUMENT: c_int = 4;
    pub(crate) const INVALID_USAGE: c_int = 5;
    pub(crate) const REMOTE_ERROR: c_int = 6;
    pub(crate) const IN_PROGRESS: c_int = 7;
    pub(crate) const TIMEOUT: c_int = 8;
}

/// `ncclComm_t`: a handle that callers never look into.
pub type Comm = *mut Handle;
/// `cudaStream_t`.
pub type Stream = *mut c_void;
/// `ncclWindow_t`.
pub type Window = *mut c_void;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NcclUniqueId {
    pub(crate) internal: [u8; 128],
}

/// The first members of `ncclConfig_t`, which all versions have. Most later members are hints about
/// kernels and networks that this library has not.
#[repr(C)]
pub struct NcclConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) hints: [c_int; 3],
    pub(crate) net_name: *const c_char,
}

/// As many members of `ncclConfig_t` as there are up to the name, which version 2.27 has brought.
#[repr(C)]
pub struct NamedConfig {
    pub(crate) first: NcclConfig,
    pub(crate) split_share: c_int,
    pub(crate) traffic_class: c_int,
    pub(crate) comm_name: *const c_char,
}

/// The first members of `ncclCollConfig_t`; the others are hints.
#[repr(C)]
pub struct NcclCollConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
}

/// `ncclSimInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NcclSimInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
}

/// The first members of `ncclEncryptionConfig_t`.
#[repr(C)]
pub struct NcclEncryptionConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) mode: c_int,
}

/// `ncclTeam_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}
