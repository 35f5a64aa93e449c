//! Entry points: memory in stream order. Law: no other process opens memory of a pool.

use std::sync::Mutex;

use crate::c::{In, Out, driver};
use crate::code::{Code, Done};
use crate::context::device;
use crate::memory::{self, Kind};
use crate::registry::{Handle, lock};
use crate::stream::{self, Work};

/// Pairs of a device and the owner of a pool that the device may touch. Peer access of contexts
/// does not concern pools.
static ACCESS: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());

/// True if kernels on `device` may touch the pool of `owner`.
pub(crate) fn may_touch(device: i32, owner: i32) -> bool {
    device == owner || lock(&ACCESS).contains(&(device, owner))
}

/// The argument of `cuMemPoolSetAccess`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Access {
    /// The kind of location: 1 is a device.
    kind: i32,
    device: i32,
    /// 3 is reading and writing.
    flags: i32,
}

/// The handle of the first device's pool; the next devices' pools follow.
const POOL: Handle = 0xf6 << 56;

fn pool(handle: Handle) -> Done<i32> {
    device(i32::try_from(handle.wrapping_sub(POOL)).map_err(|_| Code::INVALID_VALUE)?)
}

driver! {
    fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: Handle) = {
        let stream = stream::get(stream)?;
        stream::refuse_if_captured(&stream)?;
        at.put(memory::allocate(stream.context.owner(), bytes, Kind::Pool)?)
    };
    fn cuMemFreeAsync(at: u64, stream: Handle) = {
        let stream = stream::get(stream)?;
        match memory::find(at) {
            Some(block) if block.at == at && block.kind == Kind::Pool => {
                stream.submit(Work::Free(at)).map(drop)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    };
    fn cuDeviceGetDefaultMemPool(found: Out<Handle>, ordinal: i32) =
        found.put(POOL + device(ordinal)? as Handle);
    fn cuMemPoolSetAccess(handle: Handle, list: In<Access>, count: usize) = {
        let owner = pool(handle)?;
        let Access { kind, device: who, flags } = list.get()?;
        if count != 1 || kind != 1 || flags != 3 {
            return Err(Code::INVALID_VALUE);
        }
        let who = device(who)?;
        lock(&ACCESS).push((who, owner));
        Ok(())
    };
}
