//! Entry points: streams, values in memory, host functions.

use super::memory::refused;
use crate::c::{HostFunction, In, Out, driver};
use crate::code::{Code, Done};
use crate::context::current;
use crate::registry::Handle;
use crate::settings;
use crate::stream::{self, Compare, Kind, STREAMS, ValueOp, Work};

fn create(to: Out<Handle>, flags: u32, priority: i32) -> Done {
    let context = current()?;
    let kind = match flags {
        0 => Kind::Blocking,
        1 => Kind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    context.hazard("a stream was made");
    let stream = stream::create(&context, kind, priority.clamp(-5, 0))?;
    STREAMS.insert(stream.handle, stream.clone());
    to.put(stream.handle)
}

/// How a batch has its operations: `CUstreamBatchMemOpParams`, of 48 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchOp {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    _alias: u64,
    _pad: u64,
}

/// The most operations of one batch.
const BATCH: u32 = 255;

/// An operation on a value of so many bytes: a wait with these flags, or a write.
fn op(address: u64, value: u64, bytes: usize, wait: bool, flags: u32) -> Done<ValueOp> {
    let wait = if wait { Some(Compare::by_flags(flags)?) } else { None };
    // A write without the barrier is stronger here.
    if wait.is_none() && flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let op = ValueOp { address, value, bytes, wait };
    op.check()?;
    Ok(op)
}

fn submit(handle: Handle, ops: Vec<ValueOp>) -> Done {
    refused(settings::get().without.values)?;
    stream::get(handle)?.submit(Work::Values(ops)).map(drop)
}

fn one(handle: Handle, op: ValueOp) -> Done {
    submit(handle, vec![op])
}

driver! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(handle: Handle) {
        let stream = STREAMS.remove(handle)?;
        stream.context.streams.forget(handle);
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) {
        let stream = stream::get(stream)?;
        stream::forbid(&stream)?;
        stream.tail().wait();
        stream.context.check()
    }

    fn cuStreamQuery(stream: Handle) {
        let stream = stream::get(stream)?;
        stream::forbid(&stream)?;
        if stream.tail().time().is_some() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) {
        flags.put(u32::from(stream::get(stream)?.kind == Kind::NonBlocking))
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) {
        priority.put(stream::get(stream)?.priority)
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.put(stream::get(stream)?.context.handle)
    }

    fn cuStreamGetDevice(stream: Handle, device: Out<i32>) {
        device.put(stream::get(stream)?.context.device)
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.put(stream::get(stream)?.handle)
    }

    fn cuStreamWaitValue32_v2(stream: Handle, at: u64, value: u32, flags: u32) {
        one(stream, op(at, value.into(), 4, true, flags)?)
    }

    fn cuStreamWaitValue64_v2(stream: Handle, at: u64, value: u64, flags: u32) {
        one(stream, op(at, value, 8, true, flags)?)
    }

    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, value: u32, flags: u32) {
        one(stream, op(at, value.into(), 4, false, flags)?)
    }

    fn cuStreamWriteValue64_v2(stream: Handle, at: u64, value: u64, flags: u32) {
        one(stream, op(at, value, 8, false, flags)?)
    }

    fn cuStreamBatchMemOp_v2(stream: Handle, count: u32, list: In<BatchOp>, flags: u32) {
        if count > BATCH || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut ops = Vec::new();
        for n in 0..count as usize {
            let BatchOp { operation, address, value, flags, .. } = list.nth(n)?;
            let low = value & 0xffff_ffff;
            match operation {
                1 => ops.push(op(address, low, 4, true, flags)?),
                2 => ops.push(op(address, low, 4, false, flags)?),
                4 => ops.push(op(address, value, 8, true, flags)?),
                5 => ops.push(op(address, value, 8, false, flags)?),
                // A flush of remote writes and a barrier: everything is ordered anyway.
                3 | 6 => {}
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        submit(stream, ops)
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: usize) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        stream::get(stream)?.submit(Work::Host(function, data)).map(drop)
    }
}
