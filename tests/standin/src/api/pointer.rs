//! Entry points: what a pointer is.

use crate::c::{In, Out, driver};
use crate::code::{Code, Done};
use crate::context::initialized;
use crate::memory::{self, Block, Kind};
use crate::settings::{self, Ranges};
use std::ops::Range;

/// What is said of the range that an address is in.
fn range(at: u64, block: &Block) -> Range<u64> {
    const PAGE: u64 = 1 << 12;
    const RESERVED: u64 = 1 << 30;
    let around = |unit: u64| (at & !(unit - 1))..(at & !(unit - 1)) + unit;
    match settings::get().ranges {
        Ranges::Pages => around(PAGE).start.max(block.at)..around(PAGE).end.min(block.end()),
        Ranges::Reserved => around(RESERVED),
        Ranges::Whole => block.at..block.end(),
    }
}

/// Puts an attribute of a known pointer.
fn put(to: Out<u8>, attribute: u32, at: u64, block: &Block) -> Done {
    let host = !block.is_on_device();
    match attribute {
        1 => to.cast().put(block.context),
        // Managed memory is a device's, by its type.
        2 => to.cast().put(if block.is_pinned() { 1_u32 } else { 2 }),
        3 => to.cast().put(at),
        4 if host => to.cast().put(at),
        // Synchronous operations always are.
        6 => to.cast().put(1_u32),
        7 => to.cast().put(block.id),
        8 => to.cast().put(u32::from(block.kind == Kind::Managed)),
        9 => to.cast().put(block.device),
        10 => {
            let exports = block.kind == Kind::Device && !settings::get().without.ipc;
            to.cast().put(u32::from(exports))
        }
        11 => to.cast().put(range(at, block).start),
        12 => to.cast().put((range(at, block).end - range(at, block).start) as usize),
        13 => to.cast().put(1_u32),
        14 => to.cast().put(0_u64),
        15 => to.cast().put(0_u32),
        16 => to.cast().put(3_u32),
        17 => to.cast().put(0_u64),
        18 => to.cast().put(block.bytes),
        19 => to.cast().put(block.at),
        20 => to.cast().put(block.id),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Zeros an attribute: of the ordinal, a number that no device has.
fn put_nothing(to: Out<u8>, attribute: u32) -> Done {
    match attribute {
        2 | 6 | 8 | 10 | 13 | 15 | 16 => to.cast().put(0_u32),
        9 => to.cast().put(-2_i32),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => to.cast().put(0_u64),
        _ => Err(Code::INVALID_VALUE),
    }
}

driver! {
    fn cuPointerGetAttribute(data: Out<u8>, attribute: u32, at: u64) {
        initialized()?;
        put(data, attribute, at, &*memory::find(at).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<Out<u8>>, at: u64) {
        initialized()?;
        let block = memory::find(at);
        for n in 0..count as usize {
            let (attribute, to) = (attributes.nth(n)?, data.nth(n)?);
            match &block {
                // What this pointer has nothing of is no error when many are asked.
                Some(block) if put(to, attribute, at, block).is_ok() => {}
                _ => put_nothing(to, attribute)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: In<u8>, attribute: u32, at: u64) {
        initialized()?;
        let known = memory::find(at).is_some();
        if known && attribute == 6 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}
