//! Entry points: the driver itself, and its devices.

use std::ffi::c_char;

use crate::c::{Out, driver, put_text};
use crate::code::{Code, describe};
use crate::context::{device, initialize, initialized};
use crate::module::{SHARED_BYTES, SHARED_BYTES_MOST, SM};
use crate::{memory, settings};

/// Streaming multiprocessors.
pub(super) const SMS: i32 = 132;

driver! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        initialize()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(settings::get().version)
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        let (found, _) = describe(Code(code)).ok_or(Code::INVALID_VALUE)?;
        name.put(found.as_ptr())
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        let (_, found) = describe(Code(code)).ok_or(Code::INVALID_VALUE)?;
        text.put(found.as_ptr())
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        initialized()?;
        count.put(settings::get().visible().len() as i32)
    }

    fn cuDeviceGet(found: Out<i32>, ordinal: i32) {
        initialized()?;
        let visible = settings::get().visible();
        let wanted = usize::try_from(ordinal).ok().and_then(|at| visible.get(at));
        found.put(device(*wanted.ok_or(Code::INVALID_DEVICE)?)?)
    }

    fn cuDeviceGetName(name: Out<u8>, length: i32, ordinal: i32) {
        device(ordinal)?;
        put_text(name, usize::try_from(length).unwrap_or(0), "Stand-in H200")
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: i32) {
        uuid.put(uuid_of(device(ordinal)?))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: i32) {
        uuid.put(uuid_of(device(ordinal)?))
    }

    fn cuDeviceGetPCIBusId(name: Out<u8>, length: i32, ordinal: i32) {
        let bus = device(ordinal)? + 1;
        put_text(name, usize::try_from(length).unwrap_or(0), &format!("0000:{bus:02X}:00.0"))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: i32) {
        bytes.put(memory::info(device(ordinal)?).1)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) {
        value.put(attribute_of(attribute, device(ordinal)?).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, ordinal: i32) {
        device(ordinal)?;
        major.put(SM as i32 / 10)?;
        minor.put(SM as i32 % 10)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, ordinal: i32, peer: i32) {
        let other = device(ordinal)? != device(peer)?;
        can.put(i32::from(other && settings::get().reach(ordinal, peer)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, ordinal: i32, peer: i32) {
        if device(ordinal)? == device(peer)? {
            return Err(Code::INVALID_DEVICE);
        }
        let reaches = i32::from(settings::get().reach(ordinal, peer));
        // Rank, access, native atomics, arrays.
        let known = [0, reaches, reaches, reaches];
        value.put(*known.get(attribute.wrapping_sub(1) as usize).ok_or(Code::INVALID_VALUE)?)
    }
}

fn uuid_of(ordinal: i32) -> [u8; 16] {
    let mut uuid = *b"stand-in-device.";
    uuid[15] = ordinal as u8;
    uuid
}

/// What an H200 says, where somebody may ask; unasked ones are 0, unknown ones nothing.
fn attribute_of(attribute: i32, ordinal: i32) -> Option<i32> {
    Some(match attribute {
        // Threads per block, block and grid dimensions.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory per block, per processor, and with opting in.
        8 => SHARED_BYTES as i32,
        81 => 228 << 10,
        97 => SHARED_BYTES_MOST as i32,
        10 => 32,
        // Registers per block and per processor.
        12 | 82 => 65_536,
        // Clocks in kHz, bus width in bits, L2.
        13 => 1_980_000,
        36 => 3_201_000,
        37 => 6144,
        38 => 60 << 20,
        16 => SMS,
        // Maps host memory, runs kernels side by side, has one address space.
        19 | 31 | 41 => 1,
        33 => ordinal + 1,
        39 => 2048,
        40 => 3,
        75 => SM as i32 / 10,
        76 => SM as i32 % 10,
        // Stream priorities, managed memory at once on both sides, preemption, host pointers of
        // registered memory, cooperative launches.
        78 | 83 | 89 | 90 | 91 | 95 => 1,
        // Registers host memory; 32 blocks per processor; read-only registration; pools.
        99 => i32::from(!settings::get().without.register),
        98 => i32::from(settings::get().weak),
        113 | 115 => 1,
        106 => 32,
        // Operations on values, 64-bit ones and NOR.
        122 | 123 => i32::from(!settings::get().without.values),
        _ if (1..145).contains(&attribute) => 0,
        _ => return None,
    })
}
