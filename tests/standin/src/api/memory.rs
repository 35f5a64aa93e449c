//! Entry points: allocation, registration, memory of other processes.

use std::sync::Arc;

use crate::c::{Out, driver};
use crate::code::{Code, Done};
use crate::context::{Context, current};
use crate::memory::{self, Handle, Kind};
use crate::{settings, stream};

/// For calls that a real driver may let wait for all work: refused in a capture.
fn outside_work(what: &str) -> Done<Arc<Context>> {
    let context = current()?;
    stream::refuse_while_capturing()?;
    context.hazard(what);
    Ok(context)
}

/// For calls that wait for all work of the context.
fn after_work(what: &str) -> Done {
    outside_work(what)?.synchronize()
}

fn allocate(what: &str, at: Out<u64>, bytes: usize, kind: Kind) -> Done {
    at.put(memory::allocate(outside_work(what)?.owner(), bytes, kind)?)
}

/// The error of a feature that the settings take away.
pub(super) fn refused(lacks: bool) -> Done {
    if lacks { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

/// An error if there are other flags than these.
fn only(flags: u32, known: u32) -> Done {
    if flags & !known == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = {
        let (free_bytes, all) = memory::info(current()?.device);
        free.put(free_bytes)?;
        total.put(all)
    };
    fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) = allocate("cuMemAlloc", at, bytes, Kind::Device);
    fn cuMemFree_v2(at: u64) = {
        if at == 0 {
            return Ok(());
        }
        after_work("cuMemFree")?;
        memory::free(at, &[Kind::Device, Kind::Pool], Code::INVALID_VALUE)
    };
    fn cuMemHostAlloc(at: Out<u64>, bytes: usize, flags: u32) = {
        only(flags, 7)?;
        allocate("cuMemHostAlloc", at, bytes, Kind::Host)
    };
    fn cuMemFreeHost(at: u64) = {
        after_work("cuMemFreeHost")?;
        memory::free(at, &[Kind::Host], Code::INVALID_VALUE)
    };
    fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) = {
        only(flags, 15)?;
        refused(settings::get().without.register)?;
        memory::register(outside_work("cuMemHostRegister")?.owner(), at, bytes)
    };
    fn cuMemHostUnregister(at: u64) = {
        after_work("cuMemHostUnregister")?;
        memory::free(at, &[Kind::Registered], Code::HOST_MEMORY_NOT_REGISTERED)
    };
    fn cuMemHostGetDevicePointer_v2(to: Out<u64>, at: u64, flags: u32) = {
        current()?;
        only(flags, 0)?;
        memory::find(at).filter(|block| !block.is_on_device()).ok_or(Code::INVALID_VALUE)?;
        to.put(at)
    };
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, at: u64) = {
        current()?;
        let block = memory::find(at).ok_or(Code::NOT_FOUND)?;
        base.offer(block.at);
        bytes.offer(block.bytes);
        Ok(())
    };
    fn cuIpcGetMemHandle(handle: Out<Handle>, at: u64) = {
        current()?;
        refused(settings::get().without.ipc)?;
        handle.put(memory::export(at)?)
    };
    fn cuIpcOpenMemHandle_v2(at: Out<u64>, handle: CHandle, flags: u32) = {
        refused(settings::get().without.ipc)?;
        let context = outside_work("cuIpcOpenMemHandle")?;
        // The only flag is that for lazy peer access.
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        at.put(memory::open(context.owner(), &handle.0)?)
    };
    fn cuIpcCloseMemHandle(at: u64) = {
        after_work("cuIpcCloseMemHandle")?;
        memory::close(at)
    };
}

/// A handle that C passes by value, as a struct.
#[repr(C)]
struct CHandle(Handle);
