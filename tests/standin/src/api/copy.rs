//! Entry points: copies and fills. Law: the bytes of pageable memory are read at the call, those of
//! pinned memory when the copy runs; a copy into pageable memory is waited for.

use std::sync::Arc;

use crate::c::driver;
use crate::code::{Code, Done};
use crate::memory;
use crate::registry::Handle;
use crate::stream::{self, Source, Stream, Work};

/// The most pageable bytes that are read at the call, as drivers do; a copy of more is waited for.
const STAGED: usize = 64 << 10;

/// True if the driver knows the memory, false if it is pageable memory of the program.
fn is_known(at: u64, bytes: usize) -> Done<bool> {
    match memory::range(at, bytes) {
        Some(_) => Ok(true),
        None if memory::is_reserved(at) || at == 0 || memory::find(at).is_some() => {
            Err(Code::INVALID_VALUE)
        }
        None => Ok(false),
    }
}

/// An error if an address that must be the device's is not.
fn device(all: &[u64], bytes: usize) -> Done {
    for &at in all {
        if bytes > 0 && !is_known(at, bytes)? {
            return Err(Code::INVALID_VALUE);
        }
    }
    Ok(())
}

fn copy_in(stream: &Arc<Stream>, to: u64, from: u64, bytes: usize, wait: bool) -> Done {
    if bytes == 0 {
        return Ok(());
    }
    let pageable = [is_known(to, bytes)?, is_known(from, bytes)?].map(|known| !known);
    if pageable.contains(&true) {
        stream::refuse_if_captured(stream)?;
    }
    let wait = wait || pageable[0] || (pageable[1] && bytes > STAGED);
    let from = if pageable[1] && !wait {
        let mut read = vec![0_u8; bytes];
        memory::copy(read.as_mut_ptr() as usize, from as usize, bytes);
        Source::Bytes(read.into())
    } else {
        Source::At(from)
    };
    let work = Work::Copy { to, from, bytes };
    if wait { stream.submit_and_wait(work) } else { stream.submit(work).map(drop) }
}

fn copy_now(to: u64, from: u64, bytes: usize) -> Done {
    stream::refuse_while_capturing()?;
    copy_in(&stream::get(0)?, to, from, bytes, true)
}

fn copy_later(to: u64, from: u64, bytes: usize, handle: Handle) -> Done {
    copy_in(&stream::get(handle)?, to, from, bytes, false)
}

/// Fills on a stream, or on the legacy stream, where the fill is waited for.
fn fill(to: u64, value: u32, width: usize, count: usize, handle: Option<Handle>) -> Done {
    let bytes = width.checked_mul(count).ok_or(Code::INVALID_VALUE)?;
    if !to.is_multiple_of(width as u64) {
        return Err(Code::INVALID_VALUE);
    }
    device(&[to], bytes)?;
    let work = Work::Fill { to, value, width, count };
    if let Some(handle) = handle {
        return stream::get(handle)?.submit(work).map(drop);
    }
    stream::refuse_while_capturing()?;
    stream::get(0)?.submit_and_wait(work)
}

driver! {
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) =
        device(&[to], bytes).and_then(|()| copy_now(to, from, bytes));
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) =
        device(&[to], bytes).and_then(|()| copy_later(to, from, bytes, stream));
    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) =
        device(&[from], bytes).and_then(|()| copy_now(to, from, bytes));
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) =
        device(&[from], bytes).and_then(|()| copy_later(to, from, bytes, stream));
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) =
        copy_later(to, from, bytes, stream);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) =
        device(&[to, from], bytes).and_then(|()| copy_later(to, from, bytes, stream));
    fn cuMemcpyPeerAsync(
        to: u64,
        _to_context: Handle,
        from: u64,
        _from_context: Handle,
        bytes: usize,
        stream: Handle,
    ) = device(&[to, from], bytes).and_then(|()| copy_later(to, from, bytes, stream));
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) = fill(to, value.into(), 1, count, None);
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) = fill(to, value, 4, count, None);
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) =
        fill(to, value.into(), 1, count, Some(stream));
}
