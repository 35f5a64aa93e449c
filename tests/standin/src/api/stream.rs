//! Entry points: streams, and values in memory.

use super::memory::refused;
use crate::c::{In, Out, driver};
use crate::code::{Code, Done};
use crate::context::current;
use crate::registry::Handle;
use crate::settings;
use crate::stream::{self, Compare, Kind, STREAMS, ValueOp, Work};

/// `CUstreamBatchMemOpParams`, of 48 bytes.
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

/// Operations of a batch.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const WRITE_64: u32 = 5;

fn op(operation: u32, address: u64, value: u64, flags: u32) -> Done<ValueOp> {
    let (bytes, wait) = match operation {
        WAIT_32 => (4, Some(Compare::by_flags(flags)?)),
        // A write without the barrier of flag 1 has it here as well.
        WRITE_32 if flags <= 1 => (4, None),
        WRITE_64 if flags <= 1 => (8, None),
        _ => return Err(Code::INVALID_VALUE),
    };
    let value = if bytes == 4 { value & 0xffff_ffff } else { value };
    let op = ValueOp { address, value, bytes, wait };
    op.check()?;
    Ok(op)
}

fn submit(handle: Handle, ops: Vec<ValueOp>) -> Done {
    refused(settings::get().without.values)?;
    stream::get(handle)?.submit(Work::Values(ops)).map(drop)
}

fn one(handle: Handle, operation: u32, at: u64, value: u64, flags: u32) -> Done {
    submit(handle, vec![op(operation, at, value, flags)?])
}

driver! {
    fn cuStreamCreate(to: Out<Handle>, flags: u32) = {
        let context = current()?;
        let kind = match flags {
            0 => Kind::Blocking,
            1 => Kind::NonBlocking,
            _ => return Err(Code::INVALID_VALUE),
        };
        context.hazard("a stream was made");
        let stream = stream::create(&context, kind)?;
        STREAMS.insert(stream.handle, stream.clone());
        to.put(stream.handle)
    };
    fn cuStreamDestroy_v2(handle: Handle) = {
        STREAMS.remove(handle)?.context.streams.forget(handle);
        Ok(())
    };
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) =
        context.put(stream::get(stream)?.context.handle);
    fn cuStreamSynchronize(stream: Handle) = {
        let stream = stream::get(stream)?;
        stream::refuse_if_captured(&stream)?;
        stream.last().wait();
        stream.context.check()
    };
    fn cuStreamQuery(stream: Handle) = {
        let stream = stream::get(stream)?;
        stream::refuse_if_captured(&stream)?;
        if stream.last().time().is_some() { Ok(()) } else { Err(Code::NOT_READY) }
    };
    fn cuStreamWaitValue32_v2(stream: Handle, at: u64, value: u32, flags: u32) =
        one(stream, WAIT_32, at, value.into(), flags);
    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, value: u32, flags: u32) =
        one(stream, WRITE_32, at, value.into(), flags);
    fn cuStreamWriteValue64_v2(stream: Handle, at: u64, value: u64, flags: u32) =
        one(stream, WRITE_64, at, value, flags);
    fn cuStreamBatchMemOp_v2(stream: Handle, count: u32, list: In<BatchOp>, flags: u32) = {
        if count > BATCH || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut ops = Vec::new();
        for n in 0..count as usize {
            let BatchOp { operation, address, value, flags, .. } = list.nth(n)?;
            ops.push(op(operation, address, value, flags)?);
        }
        submit(stream, ops)
    };
}
