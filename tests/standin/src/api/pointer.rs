//! Entry points: attributes of pointers.

use std::ops::Range;

use crate::c::{In, Out, driver};
use crate::code::{Code, Done};
use crate::context::initialized;
use crate::memory::{self, Block};
use crate::settings::{self, Ranges};

/// The range that attributes answer for an address of the block.
fn range(at: u64, block: &Block) -> Range<u64> {
    const PAGE: u64 = 1 << 12;
    const RESERVED: u64 = 1 << 30;
    let around = |unit: u64| (at & !(unit - 1))..(at & !(unit - 1)) + unit;
    match settings::get().ranges {
        Ranges::Pages => around(PAGE).start.max(block.at)..around(PAGE).end.min(block.end()),
        Ranges::Reserved => around(RESERVED),
        Ranges::Allocation => block.at..block.end(),
    }
}

/// Stores the attribute of a pointer; zeros for a pointer that the driver does not know.
fn put(to: Out<u8>, attribute: u32, at: u64, block: Option<&Block>) -> Done {
    let range = block.map_or(0..0, |block| range(at, block));
    match attribute {
        // The memory's type: 1 is the host's, 2 a device's.
        2 => to.cast().put(block.map_or(0_u32, |block| 1 + u32::from(block.is_on_device()))),
        // No memory is managed.
        8 => to.put(0),
        9 => to.cast().put(block.map_or(-2, |block| block.owner.device)),
        7 => to.cast().put(block.map_or(0, |block| block.id)),
        11 => to.cast().put(range.start),
        12 => to.cast().put((range.end - range.start) as usize),
        // True if devices have it mapped.
        13 => to.cast().put(u32::from(block.is_some())),
        _ => Err(Code::INVALID_VALUE),
    }
}

driver! {
    fn cuPointerGetAttribute(data: Out<u8>, attribute: u32, at: u64) = {
        initialized()?;
        put(data, attribute, at, Some(&*memory::find(at).ok_or(Code::INVALID_VALUE)?))
    };
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<Out<u8>>, at: u64) = {
        initialized()?;
        let block = memory::find(at);
        (0..count as usize)
            .try_for_each(|n| put(data.nth(n)?, attributes.nth(n)?, at, block.as_deref()))
    };
    fn cuPointerSetAttribute(_value: In<u8>, attribute: u32, at: u64) = {
        initialized()?;
        let known = memory::find(at).is_some();
        if known && attribute == 6 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    };
}
