//! Entry points: memory in stream order. Law: memory of a pool is another process's never.

use std::sync::Mutex;

use crate::c::{In, Out, driver};
use crate::code::{Code, Done};
use crate::context::device;
use crate::memory::{self, Kind};
use crate::registry::{Handle, lock};
use crate::stream::{self, Work};

/// Which device may touch the pool of which: enabling peer access does not concern pools.
static ACCESS: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());

/// May kernels on `device` touch what is of the pool of `owner`?
pub(crate) fn may_touch(device: i32, owner: i32) -> bool {
    device == owner || lock(&ACCESS).contains(&(device, owner))
}

/// What `cuMemPoolSetAccess` is given.
#[derive(Clone, Copy)]
#[repr(C)]
struct Access {
    /// Of a location: 1 is a device.
    kind: i32,
    device: i32,
    /// 3 is reading and writing.
    flags: i32,
}

/// Each device has one pool, whose handle is this and the ordinal.
const POOL: Handle = 0xf6 << 56;

fn pool(handle: Handle) -> Done<i32> {
    device(i32::try_from(handle.wrapping_sub(POOL)).map_err(|_| Code::INVALID_VALUE)?)
}

fn allocate(at: Out<u64>, bytes: usize, handle: Handle) -> Done {
    let stream = stream::get(handle)?;
    stream::forbid(&stream)?;
    at.put(memory::allocate(stream.context.owner(), bytes, Kind::Pool)?)
}

driver! {
    fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: Handle) {
        allocate(at, bytes, stream)
    }

    fn cuMemAllocFromPoolAsync(at: Out<u64>, bytes: usize, handle: Handle, stream: Handle) {
        pool(handle)?;
        allocate(at, bytes, stream)
    }

    fn cuMemFreeAsync(at: u64, stream: Handle) {
        let stream = stream::get(stream)?;
        match memory::find(at) {
            Some(block) if block.at == at && block.kind == Kind::Pool => {
                stream.submit(Work::Free(at)).map(drop)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuDeviceGetDefaultMemPool(found: Out<Handle>, ordinal: i32) {
        found.put(POOL + device(ordinal)? as Handle)
    }

    fn cuDeviceGetMemPool(found: Out<Handle>, ordinal: i32) {
        found.put(POOL + device(ordinal)? as Handle)
    }

    fn cuDeviceSetMemPool(ordinal: i32, handle: Handle) {
        if pool(handle)? == device(ordinal)? { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemPoolSetAccess(handle: Handle, list: In<Access>, count: usize) {
        let owner = pool(handle)?;
        let Access { kind, device: who, flags } = list.get()?;
        if count != 1 || kind != 1 || flags != 3 {
            return Err(Code::INVALID_VALUE);
        }
        let who = device(who)?;
        lock(&ACCESS).push((who, owner));
        Ok(())
    }

    fn cuMemPoolTrimTo(handle: Handle, _keep: usize) {
        pool(handle).map(drop)
    }

    fn cuMemPoolSetAttribute(handle: Handle, attribute: u32, _value: Out<u64>) {
        pool(handle)?;
        if (1..=8).contains(&attribute) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemPoolGetAttribute(handle: Handle, attribute: u32, value: Out<u64>) {
        let (free, total) = memory::info(pool(handle)?);
        match attribute {
            1..=3 => value.cast().put(1_i32),
            4 => value.put(0),
            5..=8 => value.put((total - free) as u64),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
