//! The kernels of AArch64.

pub(super) mod neon;
