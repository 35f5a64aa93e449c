//! Floating-point instructions, rounded to nearest even, with subnormals. Law: a NaN that an
//! `.f32` instruction makes is 0x7fffffff; `.f64` keeps payloads. What the hardware approximates
//! (`.approx`, `.full`) or flushes (`.ftz`) is not known here.

use super::arith::{F2, Function};

const NAN: u32 = 0x7fff_ffff;

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn of_f(value: f32) -> u64 {
    u64::from(if value.is_nan() { NAN } else { value.to_bits() })
}

fn of_d(value: f64) -> u64 {
    value.to_bits()
}

const SIGN_F: u64 = 1 << 31;
const SIGN_D: u64 = 1 << 63;

/// The number where one is none, and -0 below +0.
macro_rules! extremes {
    ($min:ident $max:ident $t:ident) => {
        fn $min(a: $t, b: $t) -> $t {
            match (a.is_nan(), b.is_nan()) {
                (true, _) => b,
                (_, true) => a,
                _ if a == b => {
                    if a.is_sign_negative() {
                        a
                    } else {
                        b
                    }
                }
                _ => {
                    if a < b {
                        a
                    } else {
                        b
                    }
                }
            }
        }

        fn $max(a: $t, b: $t) -> $t {
            match (a.is_nan(), b.is_nan()) {
                (true, _) => b,
                (_, true) => a,
                _ if a == b => {
                    if a.is_sign_negative() {
                        b
                    } else {
                        a
                    }
                }
                _ => {
                    if a > b {
                        a
                    } else {
                        b
                    }
                }
            }
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
                "rcp.rn" => One(|a| $of(1.0 / $f(a))),
                "testp.finite" => One(|a| u64::from($f(a).is_finite())),
                "testp.infinite" => One(|a| u64::from($f(a).is_infinite())),
                "testp.number" => One(|a| u64::from(!$f(a).is_nan())),
                "testp.notanumber" => One(|a| u64::from($f(a).is_nan())),
                "testp.normal" => One(|a| u64::from($f(a).is_normal())),
                "testp.subnormal" => One(|a| u64::from($f(a).is_subnormal())),
                "add" | "add.rn" => Two(|a, b| $of($f(a) + $f(b))),
                "sub" | "sub.rn" => Two(|a, b| $of($f(a) - $f(b))),
                "mul" | "mul.rn" => Two(|a, b| $of($f(a) * $f(b))),
                "div.rn" => Two(|a, b| $of($f(a) / $f(b))),
                "min" => Two(|a, b| $of($min($f(a), $f(b)))),
                "max" => Two(|a, b| $of($max($f(a), $f(b)))),
                "copysign" => Two(|a, b| (b & !$sign) | (a & $sign)),
                "fma.rn" | "mad.rn" => Three(|a, b, c| $of($f(a).mul_add($f(b), $f(c)))),
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
                // These hold of a NaN as well.
                "equ" => |a, b| u64::from(!($f(a) < $f(b) || $f(a) > $f(b))),
                "neu" => |a, b| u64::from($f(a) != $f(b)),
                "ltu" => |a, b| 1 - u64::from($f(a) >= $f(b)),
                "leu" => |a, b| 1 - u64::from($f(a) > $f(b)),
                "gtu" => |a, b| 1 - u64::from($f(a) <= $f(b)),
                "geu" => |a, b| 1 - u64::from($f(a) < $f(b)),
                "num" => |a, b| u64::from(!$f(a).is_nan() && !$f(b).is_nan()),
                "nan" => |a, b| u64::from($f(a).is_nan() || $f(b).is_nan()),
                _ => return None,
            })
        }
    };
}

floats! { f32 compare_f32 f of_f min_f max_f SIGN_F }
floats! { f64 compare_f64 d of_d min_d max_d SIGN_D }

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
