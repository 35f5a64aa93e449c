//! The kernels of x86-64, a file for each level.

pub(super) mod avx2;
pub(super) mod avx512;
pub(super) mod avx512_bf16;
