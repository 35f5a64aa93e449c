//! Entry points: allocation, registration, memory of other processes.

use crate::c::{Out, driver};
use crate::code::{Code, Done};
use crate::context::{Context, current};
use crate::memory::{self, Handle, Kind};
use crate::{settings, stream};
use std::sync::Arc;

/// For calls that a real driver may let wait for all work: refused in a capture.
fn outside_work(what: &str) -> Done<Arc<Context>> {
    let context = current()?;
    stream::unsafe_call()?;
    context.hazard(what);
    Ok(context)
}

/// For calls that do wait for all work of the context.
fn after_work(what: &str) -> Done<Arc<Context>> {
    let context = outside_work(what)?;
    context.synchronize()?;
    Ok(context)
}

/// The error of what this driver does without.
pub(super) fn refused(lacks: bool) -> Done {
    if lacks { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

driver! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (free_bytes, all) = memory::info(current()?.device);
        free.put(free_bytes)?;
        total.put(all)
    }

    fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) {
        let context = outside_work("cuMemAlloc")?;
        at.put(memory::allocate(context.owner(), bytes, Kind::Device)?)
    }

    fn cuMemAllocManaged(at: Out<u64>, bytes: usize, flags: u32) {
        if !matches!(flags, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_work("cuMemAllocManaged")?;
        at.put(memory::allocate(context.owner(), bytes, Kind::Managed)?)
    }

    fn cuMemFree_v2(at: u64) {
        if at == 0 {
            return Ok(());
        }
        after_work("cuMemFree")?;
        let may = |kind| matches!(kind, Kind::Device | Kind::Pool | Kind::Managed);
        memory::free(at, may, Code::INVALID_VALUE)
    }

    fn cuMemAllocHost_v2(at: Out<u64>, bytes: usize) {
        let context = outside_work("cuMemAllocHost")?;
        at.put(memory::allocate(context.owner(), bytes, Kind::Host(0))?)
    }

    fn cuMemHostAlloc(at: Out<u64>, bytes: usize, flags: u32) {
        if flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let context = outside_work("cuMemHostAlloc")?;
        at.put(memory::allocate(context.owner(), bytes, Kind::Host(flags))?)
    }

    fn cuMemFreeHost(at: u64) {
        after_work("cuMemFreeHost")?;
        memory::free(at, |kind| matches!(kind, Kind::Host(_)), Code::INVALID_VALUE)
    }

    fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) {
        if flags & !15 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        refused(settings::get().without.register)?;
        let context = outside_work("cuMemHostRegister")?;
        memory::register(context.owner(), at, bytes, flags)
    }

    fn cuMemHostUnregister(at: u64) {
        after_work("cuMemHostUnregister")?;
        let may = |kind| matches!(kind, Kind::Registered(_));
        memory::free(at, may, Code::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(to: Out<u64>, at: u64, flags: u32) {
        current()?;
        let known = memory::find(at).is_some_and(|block| block.is_pinned());
        if !known || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        to.put(at)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, at: u64) {
        current()?;
        match memory::find(at).map(|block| block.kind) {
            Some(Kind::Host(found) | Kind::Registered(found)) => flags.put(found),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, at: u64) {
        current()?;
        let block = memory::find(at).ok_or(Code::NOT_FOUND)?;
        base.offer(block.at);
        bytes.offer(block.bytes);
        Ok(())
    }

    fn cuIpcGetMemHandle(handle: Out<Handle>, at: u64) {
        current()?;
        refused(settings::get().without.ipc)?;
        handle.put(memory::export(at)?)
    }

    fn cuIpcOpenMemHandle_v2(at: Out<u64>, handle: CHandle, flags: u32) {
        refused(settings::get().without.ipc)?;
        let context = outside_work("cuIpcOpenMemHandle")?;
        // Lazy peer access is what there is.
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        at.put(memory::open(context.owner(), &handle.0)?)
    }

    fn cuIpcCloseMemHandle(at: u64) {
        after_work("cuIpcCloseMemHandle")?;
        memory::close(at)
    }
}

/// A handle passed by value, which C knows as a struct.
#[repr(C)]
struct CHandle(Handle);
