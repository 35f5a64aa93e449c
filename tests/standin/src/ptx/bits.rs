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
    use Function::{Four, Three};
    Some(match name {
        "prmt.b32" => Three(permute),
        "bfi.b32" => Four(|a, b, at, length| insert(a, b, at, length, 32)),
        "bfi.b64" => Four(|a, b, at, length| insert(a, b, at, length, 64)),
        _ => return None,
    })
}

/// Four bytes of eight, each chosen by four bits, the highest of which asks for the sign.
fn permute(a: u64, b: u64, choice: u64) -> u64 {
    let bytes = ((b << 32) | (a & 0xffff_ffff)).to_le_bytes();
    let byte = |at: u32| {
        let nibble = choice >> (4 * at);
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u64::from(u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]))
}

/// The lowest `length` bits of `a`, in place of those of `b` from `at` on.
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
    fn fields_are_inserted() {
        assert_eq!(insert(0xff, 0, 8, 4, 32), 0xf00);
        assert_eq!(insert(0, u64::MAX, 8, 4, 32), 0xffff_f0ff);
        assert_eq!(insert(1, 5, 32, 4, 32), 5);
        assert_eq!(insert(7, 0, 31, 9, 32), 0x8000_0000);
    }

    #[test]
    fn bytes_are_permuted() {
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x0123), 0x1122_3344);
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x7654), 0x8877_6655);
        assert_eq!(permute(0x0000_0080, 0, 0x0008), 0x8080_80ff);
    }
}
