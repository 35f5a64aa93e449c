//! Instructions on bits and predicates.

use super::arith::Function;

/// Logic of predicates, by the name without `.pred`.
pub(super) fn predicate(name: &str) -> Option<Function> {
    use Function::{One, Two};
    Some(match name {
        "mov" => One(|a| a & 1),
        "not" => One(|a| !a & 1),
        "and" => Two(|a, b| a & b & 1),
        "or" => Two(|a, b| (a | b) & 1),
        "xor" => Two(|a, b| (a ^ b) & 1),
        _ => return None,
    })
}

/// By the whole name.
pub(super) fn function(name: &str) -> Option<Function> {
    use Function::{Four, One, Three};
    Some(match name {
        "shf.l.wrap.b32" => Three(|a, b, c| u64::from((pair(a, b) << (c & 31) >> 32) as u32)),
        "shf.r.wrap.b32" => Three(|a, b, c| u64::from((pair(a, b) >> (c & 31)) as u32)),
        "shf.l.clamp.b32" => Three(|a, b, c| match c as u32 {
            c if c < 32 => u64::from((pair(a, b) << c >> 32) as u32),
            _ => a & 0xffff_ffff,
        }),
        "shf.r.clamp.b32" => Three(|a, b, c| match c as u32 {
            c if c < 32 => u64::from((pair(a, b) >> c) as u32),
            _ => b & 0xffff_ffff,
        }),
        "prmt.b32" => Three(permute),
        "bfi.b32" => Four(|a, b, at, length| insert(a, b, at, length, 32)),
        "bfi.b64" => Four(|a, b, at, length| insert(a, b, at, length, 64)),
        "bfind.u32" => One(|a| u64::from(31_u32.wrapping_sub((a as u32).leading_zeros()))),
        "bfind.u64" => One(|a| u64::from(63_u32.wrapping_sub(a.leading_zeros()))),
        _ => return None,
    })
}

fn pair(low: u64, high: u64) -> u64 {
    (high << 32) | (low & 0xffff_ffff)
}

/// Four bytes of eight, each chosen by four bits, the highest of which asks for the sign.
fn permute(a: u64, b: u64, choice: u64) -> u64 {
    let bytes = pair(a, b).to_le_bytes();
    let byte = |at: u32| {
        let nibble = choice >> (4 * at);
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u64::from(u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]))
}

fn insert(a: u64, b: u64, at: u64, length: u64, width: u64) -> u64 {
    let (at, length) = (at & 255, length & 255);
    let low = |bits: u64| if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    if at >= width {
        return b & low(width);
    }
    let mask = (low(length.min(width)) << at) & low(width);
    ((b & !mask) | ((a << at) & mask)) & low(width)
}

#[cfg(test)]
mod tests {
    use super::{insert, permute};

    #[test]
    fn bytes_are_permuted() {
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x0123), 0x1122_3344);
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x7654), 0x8877_6655);
        assert_eq!(permute(0x0000_0080, 0, 0x0008), 0x8080_80ff);
    }

    #[test]
    fn fields_are_inserted() {
        assert_eq!(insert(0xff, 0, 8, 4, 32), 0xf00);
        assert_eq!(insert(0, u64::MAX, 8, 4, 32), 0xffff_f0ff);
        assert_eq!(insert(1, 5, 32, 4, 32), 5);
        assert_eq!(insert(7, 0, 31, 9, 32), 0x8000_0000);
    }
}
