//! Floating-point instructions, rounded to nearest even, with subnormals. Law: a NaN result of an
//! `.f32` instruction is 0x7fffffff; `.f64` keeps payloads. Instructions that the hardware
//! approximates (`.approx`, `.full`) or that flush (`.ftz`) are unknown here.

use super::arith::{F2, Function};

pub(super) fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub(super) fn bits_of_f32(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

macro_rules! floats {
    ($name:ident $compare:ident $f:path, $of:path, $sign:expr) => {
        pub(super) fn $name(name: &str) -> Option<Function> {
            use Function::{One, Three, Two};
            Some(match name {
                "mov" => One(|a| a),
                // Signs are bits, of a NaN too.
                "abs" => One(|a| a & !$sign),
                "add" | "add.rn" => Two(|a, b| $of($f(a) + $f(b))),
                "sub" | "sub.rn" => Two(|a, b| $of($f(a) - $f(b))),
                "mul" | "mul.rn" => Two(|a, b| $of($f(a) * $f(b))),
                "div.rn" => Two(|a, b| $of($f(a) / $f(b))),
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

floats! { f32 compare_f32 f32_of, bits_of_f32, 1 << 31 }
floats! { f64 compare_f64 f64::from_bits, f64::to_bits, 1 << 63 }

#[cfg(test)]
mod tests {
    use super::super::arith::{Function, function};

    fn two(name: &str, a: f32, b: f32) -> u32 {
        let Some(Function::Two(run)) = function(name) else { panic!("{name}") };
        run(u64::from(a.to_bits()), u64::from(b.to_bits())) as u32
    }

    #[test]
    fn nan_is_canonical() {
        let nan = f32::from_bits(0xffc0_1234);
        assert_eq!(two("add.f32", nan, 1.0), 0x7fff_ffff);
        assert_eq!(two("sub.rn.f32", f32::INFINITY, f32::INFINITY), 0x7fff_ffff);
        assert!(function("add.ftz.f32").is_none());
        assert!(function("div.approx.f32").is_none());
    }
}
