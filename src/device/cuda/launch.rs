//! Launching kernels by what `kernels/README.md` says they take. May touch: error. Unsafe: the
//! driver's calls.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};

use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUstream};

use super::driver::check;
use super::module::BLOCK;
use crate::error::Result;

/// Bytes that are worth a block.
const WORTH: usize = 8 << 10;

/// How many, and where: the tables, and what is added to all that they say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) at: CUdeviceptr,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

/// What one fold does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    pub(crate) sources: Table,
    pub(crate) outs: Table,
    /// Elements of the kernel's type.
    pub(crate) count: u64,
    /// Bytes of each buffer.
    pub(crate) bytes: usize,
    /// What an average is divided by.
    pub(crate) last: u32,
    pub(crate) scalar: CUdeviceptr,
    pub(crate) words: Words,
}

/// By which the host and a kernel agree on whether it may run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Keeps blocks from starting.
    pub(crate) stop: CUdeviceptr,
    /// Blocks that start say so here.
    pub(crate) works: CUdeviceptr,
}

/// Puts a fold on the stream, of at most so many blocks.
pub(crate) fn fold(stream: CUstream, function: CUfunction, it: &Folded, most: u32) -> Result<()> {
    let Folded { mut sources, mut outs, mut count, bytes, mut last, mut scalar, mut words } = *it;
    let mut params = [
        any(&mut sources.at),
        any(&mut sources.len),
        any(&mut outs.at),
        any(&mut outs.len),
        any(&mut sources.offset),
        any(&mut outs.offset),
        any(&mut count),
        any(&mut last),
        any(&mut scalar),
        any(&mut words.stop),
        any(&mut words.works),
    ];
    launch(stream, function, [blocks(bytes, most), 1], &mut params)
}

/// Puts the moves of a list on the stream, none of more than `longest` bytes.
pub(crate) fn moves(
    stream: CUstream,
    function: CUfunction,
    (mut list, mut len): (CUdeviceptr, u32),
    longest: usize,
    mut words: Words,
    most: u32,
) -> Result<()> {
    let rows = len.min(most);
    let mut params = [any(&mut list), any(&mut len), any(&mut words.stop), any(&mut words.works)];
    launch(stream, function, [blocks(longest, (most / rows).max(1)), rows], &mut params)
}

fn blocks(bytes: usize, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(WORTH)).unwrap_or(u32::MAX).clamp(1, most)
}

fn any<T>(param: &mut T) -> *mut c_void {
    from_mut(param).cast()
}

fn launch(
    stream: CUstream,
    function: CUfunction,
    [x, y]: [u32; 2],
    params: &mut [*mut c_void],
) -> Result<()> {
    let params = params.as_mut_ptr();
    // SAFETY: the parameters are those of the kernel, as its callers here know, and are copied; the
    // memory behind them is vouched for by whoever has put it into the tables.
    let put = unsafe {
        sys::cuLaunchKernel(function, x, y, 1, BLOCK, 1, 1, 0, stream, params, null_mut())
    };
    check("launching a kernel", put)
}
