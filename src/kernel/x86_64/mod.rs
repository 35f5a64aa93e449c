//! The kernels of x86-64, one file per level, and the streaming copy.

pub(super) mod avx2;
pub(super) mod avx512;
pub(super) mod avx512_bf16;
pub(super) mod stream;
