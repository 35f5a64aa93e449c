//! Entry points: the driver itself, and its devices.

use std::ffi::c_char;

use crate::c::{Out, driver, put_text};
use crate::code::{Code, describe};
use crate::context::{device, initialize, initialized};
use crate::module::{SHARED_BYTES, SM};
use crate::settings;

driver! {
    fn cuInit(flags: u32) = if flags == 0 { initialize() } else { Err(Code::INVALID_VALUE) };
    fn cuDriverGetVersion(version: Out<i32>) = version.put(settings::get().version);
    fn cuGetErrorName(code: u32, name: Out<*const c_char>) =
        name.put(describe(Code(code)).ok_or(Code::INVALID_VALUE)?.0.as_ptr());
    fn cuGetErrorString(code: u32, text: Out<*const c_char>) =
        text.put(describe(Code(code)).ok_or(Code::INVALID_VALUE)?.1.as_ptr());
    fn cuDeviceGetCount(count: Out<i32>) = {
        initialized()?;
        count.put(settings::get().visible().len() as i32)
    };
    fn cuDeviceGet(found: Out<i32>, ordinal: i32) = {
        initialized()?;
        let visible = settings::get().visible();
        let wanted = usize::try_from(ordinal).ok().and_then(|at| visible.get(at));
        found.put(device(*wanted.ok_or(Code::INVALID_DEVICE)?)?)
    };
    fn cuDeviceGetName(name: Out<u8>, length: i32, ordinal: i32) = {
        device(ordinal)?;
        put_text(name, usize::try_from(length).unwrap_or(0), "Stand-in H200")
    };
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: i32) = uuid.put(uuid_of(device(ordinal)?));
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: i32) = uuid.put(uuid_of(device(ordinal)?));
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) = {
        device(ordinal)?;
        value.put(attribute_of(attribute).ok_or(Code::INVALID_VALUE)?)
    };
    fn cuDeviceCanAccessPeer(can: Out<i32>, ordinal: i32, peer: i32) = {
        let other = device(ordinal)? != device(peer)?;
        can.put(i32::from(other && settings::get().reach(ordinal, peer)))
    };
}

fn uuid_of(ordinal: i32) -> [u8; 16] {
    let mut uuid = *b"stand-in-device.";
    uuid[15] = ordinal as u8;
    uuid
}

/// The attributes of an H200 that programs ask for; others are 0, and unknown ones are none.
fn attribute_of(attribute: i32) -> Option<i32> {
    Some(match attribute {
        // Threads per block, shared bytes per block, threads per warp.
        1 => 1024,
        8 => SHARED_BYTES as i32,
        10 => 32,
        // Processors, bytes of the L2 cache, copy engines.
        16 => 132,
        38 => 60 << 20,
        40 => 3,
        75 => SM as i32 / 10,
        76 => SM as i32 % 10,
        // Kernels run side by side, one address space, stream priorities, managed memory on both
        // sides at once, preemption, host pointers of registered memory, cooperative launches.
        31 | 41 | 78 | 83 | 89 | 90 | 91 | 95 => 1,
        // Registered host memory, flushes of remote writes, memory pools.
        99 => i32::from(!settings::get().without.register),
        98 => i32::from(settings::get().weak),
        115 => 1,
        // Operations on values: of 64 bits, and NOR.
        122 | 123 => i32::from(!settings::get().without.values),
        _ if (1..145).contains(&attribute) => 0,
        _ => return None,
    })
}
