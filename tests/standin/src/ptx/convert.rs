//! `cvt`: conversions between types. Law: a NaN result of 16 bits is 0x7fff, and one of 32 bits is
//! 0x7fffffff.

use half::f16;

use super::arith::F1;
use super::float::{bits_of_f32, f32_of};

/// By the words after `cvt.`: rounding, the type of the result, the type of the operand.
pub(super) fn function(words: &str) -> Option<F1> {
    Some(match words {
        "u16.u32" | "u32.u16" | "u64.u16" => |a| u64::from(a as u16),
        "u32.u64" | "u64.u32" => |a| u64::from(a as u32),
        "s16.s8" => |a| a as i8 as u64,
        "s64.s32" => |a| a as i32 as u64,
        "f32.f16" => |a| bits_of_f32(f16::from_bits(a as u16).to_f32()),
        "rn.f16.f32" => |a| half_of(f32_of(a)),
        "rn.f32.u32" => |a| bits_of_f32(a as u32 as f32),
        "rn.f64.u32" => |a| f64::from(a as u32).to_bits(),
        _ => return None,
    })
}

fn half_of(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits() })
}

#[cfg(test)]
mod tests {
    use super::function;

    fn run(name: &str, bits: u64) -> u64 {
        function(name).expect(name)(bits)
    }

    #[test]
    fn integers_and_floats() {
        assert_eq!(run("s64.s32", 0xffff_fffe), -2_i64 as u64);
        assert_eq!(run("u64.u32", 0xffff_ffff_ffff_fffe), 0xffff_fffe);
        assert_eq!(run("rn.f16.f32", u64::from(65520.0_f32.to_bits())), 0x7c00);
        assert_eq!(run("rn.f16.f32", u64::from(f32::NAN.to_bits())), 0x7fff);
        let rounded = u64::from(4_294_967_296_f32.to_bits());
        assert_eq!(run("rn.f32.u32", u64::from(u32::MAX)), rounded);
        assert!(function("rm.f32.f64").is_none());
    }
}
