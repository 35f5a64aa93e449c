//! Launches of kernels, with the parameters that `kernels/README.md` describes.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUstream};

use super::driver::check;
use super::module::BLOCK_THREADS;
use crate::error::Result;

/// Bytes of a buffer for which one more block of threads is launched.
const BYTES_PER_BLOCK: usize = 8 << 10;

/// A table of addresses: where it is, how many it has, and a byte offset that is added to each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerTable {
    pub(crate) at: CUdeviceptr,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldArguments {
    pub(crate) sources: PointerTable,
    pub(crate) outs: PointerTable,
    /// Elements of the kernel's type.
    pub(crate) count: u64,
    /// Bytes of each buffer.
    pub(crate) bytes: usize,
    /// The divisor of an average.
    pub(crate) last: u32,
    pub(crate) scalar: CUdeviceptr,
    pub(crate) words: ControlWords,
}

/// The words by which the host and a kernel agree whether the kernel may run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlWords {
    /// A block of threads that starts and finds 1 here does nothing.
    pub(crate) stop: CUdeviceptr,
    /// A block of threads that starts sets this to 1 first.
    pub(crate) running: CUdeviceptr,
}

/// Puts a reduction on the stream, of at most `most` blocks of threads.
pub(crate) fn launch_fold(
    stream: CUstream,
    function: CUfunction,
    it: &FoldArguments,
    most: u32,
) -> Result<()> {
    let FoldArguments { mut sources, mut outs, mut count, bytes, mut last, mut scalar, mut words } =
        *it;
    let mut params = [
        parameter(&mut sources.at),
        parameter(&mut sources.len),
        parameter(&mut outs.at),
        parameter(&mut outs.len),
        parameter(&mut sources.offset),
        parameter(&mut outs.offset),
        parameter(&mut count),
        parameter(&mut last),
        parameter(&mut scalar),
        parameter(&mut words.stop),
        parameter(&mut words.running),
    ];
    launch(stream, function, [blocks(bytes, most), 1], &mut params)
}

/// Puts the moves of a list on the stream; `longest` is the bytes of the longest.
pub(crate) fn launch_moves(
    stream: CUstream,
    function: CUfunction,
    (mut list, mut len): (CUdeviceptr, u32),
    longest: usize,
    mut words: ControlWords,
    most: u32,
) -> Result<()> {
    let rows = len.min(most);
    let mut params = [
        parameter(&mut list),
        parameter(&mut len),
        parameter(&mut words.stop),
        parameter(&mut words.running),
    ];
    launch(stream, function, [blocks(longest, (most / rows).max(1)), rows], &mut params)
}

fn blocks(bytes: usize, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_BLOCK)).unwrap_or(u32::MAX).clamp(1, most)
}

fn parameter<T>(param: &mut T) -> *mut c_void {
    from_mut(param).cast()
}

fn launch(
    stream: CUstream,
    function: CUfunction,
    [x, y]: [u32; 2],
    params: &mut [*mut c_void],
) -> Result<()> {
    let params = params.as_mut_ptr();
    // SAFETY: the parameters are those of the kernel, as the callers here know, and are copied;
    // whoever put addresses into the tables vouches for the memory behind them.
    let put = unsafe {
        sys::cuLaunchKernel(function, x, y, 1, BLOCK_THREADS, 1, 1, 0, stream, params, null_mut())
    };
    check("launching a kernel", put)
}
