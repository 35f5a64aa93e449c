//! Floating-point instructions, rounded to nearest even, with subnormals. Law: a NaN result of an
//! `.f32` instruction is 0x7fffffff; `.f64` keeps payloads. Instructions that the hardware
//! approximates (`.approx`, `.full`) or that flush (`.ftz`) are unknown here.

use super::arith::{F2, Function};

pub(super) fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub(super) fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub(super) fn bits_of_f32(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

fn bits_of_f64(value: f64) -> u64 {
    value.to_bits()
}

const SIGN_F: u64 = 1 << 31;
const SIGN_D: u64 = 1 << 63;

/// The number if the other value is a NaN; -0 is below +0.
macro_rules! extremes {
    ($min:ident $max:ident $t:ident) => {
        fn $min(a: $t, b: $t) -> $t {
            if b.is_nan() || (!a.is_nan() && a.total_cmp(&b).is_lt()) { a } else { b }
        }

        fn $max(a: $t, b: $t) -> $t {
            if b.is_nan() || (!a.is_nan() && a.total_cmp(&b).is_gt()) { a } else { b }
        }
    };
}

extremes! { min_f max_f f32 }
extremes! { min_d max_d f64 }

macro_rules! floats {
    ($name:ident $compare:ident $f:ident $of:ident $min:ident $max:ident $sign:ident) => {
        pub(super) fn $name(name: &str) -> Option<Function> {
            use Function::{One, Three, Two};
            Some(match name {
                "mov" => One(|a| a),
                // Signs are bits, of a NaN too.
                "abs" => One(|a| a & !$sign),
                "neg" => One(|a| a ^ $sign),
                "sqrt.rn" => One(|a| $of($f(a).sqrt())),
                "add" | "add.rn" => Two(|a, b| $of($f(a) + $f(b))),
                "sub" | "sub.rn" => Two(|a, b| $of($f(a) - $f(b))),
                "mul" | "mul.rn" => Two(|a, b| $of($f(a) * $f(b))),
                "div.rn" => Two(|a, b| $of($f(a) / $f(b))),
                "min" => Two(|a, b| $of($min($f(a), $f(b)))),
                "max" => Two(|a, b| $of($max($f(a), $f(b)))),
                "fma.rn" => Three(|a, b, c| $of($f(a).mul_add($f(b), $f(c)))),
                "selp" => Three(|a, b, p| if p & 1 == 1 { a } else { b }),
                _ => return None,
            })
        }

        pub(super) fn $compare(op: &str) -> Option<F2> {
            Some(match op {
                "eq" => |a, b| u64::from($f(a) == $f(b)),
                "ne" => |a, b| u64::from($f(a) < $f(b) || $f(a) > $f(b)),
                "lt" => |a, b| u64::from($f(a) < $f(b)),
                "le" => |a, b| u64::from($f(a) <= $f(b)),
                "gt" => |a, b| u64::from($f(a) > $f(b)),
                "ge" => |a, b| u64::from($f(a) >= $f(b)),
                "nan" => |a, b| u64::from($f(a).is_nan() || $f(b).is_nan()),
                _ => return None,
            })
        }
    };
}

floats! { f32 compare_f32 f32_of bits_of_f32 min_f max_f SIGN_F }
floats! { f64 compare_f64 f64_of bits_of_f64 min_d max_d SIGN_D }

#[cfg(test)]
mod tests {
    use super::super::arith::{Function, function};

    fn two(name: &str, a: f32, b: f32) -> u32 {
        let Some(Function::Two(run)) = function(name) else { panic!("{name}") };
        run(u64::from(a.to_bits()), u64::from(b.to_bits())) as u32
    }

    #[test]
    fn nan_is_canonical_and_extremes_prefer_numbers() {
        let nan = f32::from_bits(0xffc0_1234);
        assert_eq!(two("add.f32", nan, 1.0), 0x7fff_ffff);
        assert_eq!(two("sub.rn.f32", f32::INFINITY, f32::INFINITY), 0x7fff_ffff);
        assert_eq!(two("min.f32", nan, 1.0), 1.0_f32.to_bits());
        assert_eq!(two("max.f32", 1.0, nan), 1.0_f32.to_bits());
        assert_eq!(two("max.f32", nan, nan), 0x7fff_ffff);
        assert_eq!(two("min.f32", 0.0, -0.0), (-0.0_f32).to_bits());
        assert_eq!(two("max.f32", -0.0, 0.0), 0);
        assert!(function("add.ftz.f32").is_none());
        assert!(function("div.approx.f32").is_none());
    }
}
